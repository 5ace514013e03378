"""Settings of pytest and Hypothesis for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys

import pytest
from hypothesis import HealthCheck, settings

from tests.examples import DEFAULT_EXAMPLES, FAST_EXAMPLES

pytest_plugins = [
    "tests.program_logs",  # first: the others import it
    "tests.databases",
    "tests.fast_suite",
    "tests.module_preload",
    "tests.run_order",
    "tests.selection",
    "tests.timing_report",
]

# Tests start hundreds of programs, and each would compile all its modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell makes background processes ignore SIGINT, and so would every program that tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# A shared machine may stall at any time: a slow example, or slow generation of examples, is not a failure.
# A fixture may be shared by all examples of a test: such tests clear or name apart what an example writes.
# Examples are the same in every run, so that no run fails by chance; `make test-all` and
# `--hypothesis-profile=search` try others.
settings.register_profile(
    "default",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
    max_examples=DEFAULT_EXAMPLES,
)
settings.register_profile("search", settings.get_profile("default"), derandomize=False, max_examples=100)
settings.register_profile("fast", settings.get_profile("default"), max_examples=FAST_EXAMPLES)
settings.load_profile("default")


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Run async tests on asyncio. Tests of transports override this to run on uvloop too."""
    return "asyncio"


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("part"):
        settings.load_profile("search")
    elif config.getoption("fast"):
        settings.load_profile("fast")


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return three workers per core: many tests wait for programs that they have started.

    Each worker needs a gigabyte, so there are at most eight. Few of the fast tests wait.
    """
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None  # set by the user
    cores = len(os.sched_getaffinity(0))
    return min(cores + 1 if config.getoption("fast") else 3 * cores, 8)


def pytest_collection() -> None:
    """Disable the garbage collector while tests are collected: thousands of objects, all of which stay."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the collected tests from later runs of the garbage collector."""
    gc.enable()
    gc.collect()
    gc.freeze()
