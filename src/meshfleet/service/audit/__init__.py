"""Audit log of all changes, and its REST route."""
