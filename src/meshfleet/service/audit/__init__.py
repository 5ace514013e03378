"""The audit log of all changes."""
