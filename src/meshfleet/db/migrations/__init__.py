"""Alembic migrations of the schema."""
