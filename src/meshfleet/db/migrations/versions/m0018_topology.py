"""Adds nothing: placeholder for the tables of the topology."""

from __future__ import annotations

revision = "0018"
down_revision = "0017"


def upgrade() -> None:
    """Do nothing."""
