"""What all tests share."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

from hypothesis import settings

pytest_plugins = ["tests.databases"]

# Tests start programs by the hundred, and each would compile all its modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shared machine may stall at any moment: a slow example is no failure.
settings.register_profile("default", deadline=None)
settings.load_profile("default")


_WORKER: Final = 3 * 1024**3
"""Bytes of memory that a worker may need, with the programs that its tests start."""


def pytest_xdist_auto_num_workers() -> int:
    """Two workers for each processor, where there is memory: tests wait more than they work."""
    processors = os.cpu_count() or 1
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(processors, min(2 * processors, memory // _WORKER))


def pytest_collection_finish() -> None:
    """Spare tests that look for garbage a walk through all the other tests."""
    gc.collect()
    gc.freeze()
