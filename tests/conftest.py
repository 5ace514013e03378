"""What all tests share."""

from __future__ import annotations

import gc
import os
import sys

from hypothesis import settings

pytest_plugins = ["tests.databases"]

# Tests start programs by the hundred, and each would compile all its modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shared machine may stall at any moment: a slow example is no failure.
settings.register_profile("default", deadline=None)
settings.load_profile("default")


def pytest_collection_finish() -> None:
    """Spare tests that look for garbage a walk through all the other tests."""
    gc.collect()
    gc.freeze()
