"""Fixtures of backups."""

from __future__ import annotations

from tests.db.samples.conftest import sqlite_harness

__all__ = ["sqlite_harness"]
