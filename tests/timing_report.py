"""CPU and wall time of the tests, printed as a table per directory after every larger run."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass
from multiprocessing import forkserver
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from _pytest.terminal import TerminalReporter

MIN_TESTS: Final = 500
"""Minimum number of tests for the table: a run of one file shows only the result of that file."""

CACHE_KEY: Final = "meshfleet/times"
"""Key in pytest's cache for the seconds of each test function, used by scripts/mutate.py."""

_CPU_PROPERTY: Final = "cpu seconds"


@dataclass
class TimeSpent:
    """Time that tests took, in seconds.

    The CPU time of a program counts for the test that waits for its end, or whose teardown does. So a shared
    server or browser counts for the test whose teardown ends it, and not for the others that use it.
    """

    items: int = 0
    cpu: float = 0.0
    wall: float = 0.0


class TimingReport:
    """Sum of the times of all tests, in the process that receives all reports."""

    def __init__(self) -> None:
        self.functions: defaultdict[str, TimeSpent] = defaultdict(TimeSpent)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent = self.functions[report.nodeid.partition("[")[0]]
        spent.wall += report.duration
        if report.when == "teardown":
            spent.items += 1
            spent.cpu += sum(value for name, value in report.user_properties if name == _CPU_PROPERTY)  # type: ignore[misc]

    def sum_by_directory(self) -> dict[str, TimeSpent]:
        directories: defaultdict[str, TimeSpent] = defaultdict(TimeSpent)
        for function, spent in self.functions.items():
            total = directories["/".join(function.partition("::")[0].split("/")[1:-1][:2]) or "(top)"]
            total.items += spent.items
            total.cpu += spent.cpu
            total.wall += spent.wall
        return directories

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter, config: pytest.Config) -> None:
        cache = getattr(config, "cache", None)  # pytest may run without one
        if cache is not None and _is_whole_run(config):
            seconds = cache.get(CACHE_KEY, {})
            seconds.update({name: round(spent.wall, 3) for name, spent in self.functions.items()})
            cache.set(CACHE_KEY, seconds)
        if sum(each.items for each in self.functions.values()) < MIN_TESTS:
            return
        terminalreporter.section("where the time went")
        terminalreporter.line(f"{'tests':<24}{'items':>8}{'CPU s':>10}{'wall s':>10}")
        rows = sorted(self.sum_by_directory().items(), key=lambda row: -row[1].cpu)
        for name, spent in rows:
            terminalreporter.line(f"{name:<24}{spent.items:>8}{spent.cpu:>10.1f}{spent.wall:>10.1f}")
        totals = [sum(getattr(each, part) for _, each in rows) for part in ("items", "cpu", "wall")]
        terminalreporter.line(f"{'all':<24}{totals[0]:>8}{totals[1]:>10.1f}{totals[2]:>10.1f}")


def _is_whole_run(config: pytest.Config) -> bool:
    """Return whether this is `make test`. Other runs use fewer examples, other databases or few tests."""
    option = config.option
    limits = (option.fast, option.part, option.keyword, option.markexpr, option.lf)
    return config.args_source is not config.ArgsSource.ARGS and not any(limits)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of xdist report to the process that started them
        config.pluginmanager.register(TimingReport(), "times")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_CPU_AT_START] = _cpu_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.when == "teardown":
        item.user_properties.append((_CPU_PROPERTY, _cpu_seconds() - item.stash[_CPU_AT_START]))
    return (yield)


_CPU_AT_START: Final = pytest.StashKey[float]()


def _cpu_seconds() -> float:
    """Return the CPU seconds of this process and of the fork server, with ended programs they waited for."""
    return sum(os.times()[:4]) + _fork_server_cpu()


def _fork_server_cpu() -> float:
    """Return the CPU seconds of the fork server of tests/cli/forked_process.py, with ended children."""
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)  # noqa: SLF001 # there is no public attribute
    if pid is None:
        return 0.0
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:  # the process has ended, or this is not Linux
        return 0.0
    fields = stat.rpartition(")")[2].split()  # a name may contain spaces; utime to cstime are 14 to 17
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
