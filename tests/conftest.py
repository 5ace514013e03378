"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

pytest_plugins = ["tests.databases"]

# A shared machine may stall at any moment: a slow example is no failure.
settings.register_profile("default", deadline=None)
settings.load_profile("default")
