"""What all tests share."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

from hypothesis import settings

if TYPE_CHECKING:
    import pytest

pytest_plugins = [
    "tests.program_logs",  # the others import it
    "tests.databases",
    "tests.fast_suite",
    "tests.module_preload",
    "tests.run_order",
    "tests.selection",
    "tests.timing_report",
]

# Tests start programs by the hundred, and each would compile all its modules anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell has what it starts in the background ignore Ctrl C, and so would every program that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A shared machine may stall at any moment: a slow example is no failure. Examples are the same every time, so
# that no run fails by chance; `make test-all` and `--hypothesis-profile=search` look for others.
settings.register_profile("default", deadline=None, derandomize=True, max_examples=50)
# A profile has what it does not name from the current one, which is the default of the line before.
settings.register_profile("search", deadline=None, derandomize=False, max_examples=100)
settings.register_profile("fast", settings.get_profile("default"), max_examples=15)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("part"):
        settings.load_profile("search")
    elif config.getoption("fast"):
        settings.load_profile("fast")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Two for each core: many tests wait for programs that they have started. Each needs a gigabyte.

    Few of the fast ones wait.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # it is told to us
    cores = len(os.sched_getaffinity(0))
    return min(cores + 1 if config.getoption("fast") else 2 * cores, 8)


def pytest_collection() -> None:
    """Look for no garbage among tests by the thousand, which all stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Spare tests that look for garbage a walk through all the other tests."""
    gc.enable()
    gc.collect()
    gc.freeze()
