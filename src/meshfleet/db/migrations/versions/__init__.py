"""Migrations, one module each. A released migration is never edited."""
