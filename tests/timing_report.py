"""Measure where the time of a run goes, and print a table per folder of tests after every larger run."""

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
"""Tests that a run must have for the table: whoever runs one file wants to see that file's result only."""

CACHE_KEY: Final = "meshfleet/times"
"""Where pytest's cache keeps the seconds of each test function, for scripts/mutate.py."""

_CPU_PROPERTY: Final = "cpu seconds"


@dataclass
class TimeSpent:
    """What some tests took, in seconds.

    The CPU time of a program counts for the test that waits for its end, or whose teardown does. So a shared
    server or browser counts for the test whose teardown ends it, and not for the others that use it.
    """

    items: int = 0
    cpu: float = 0.0
    wall: float = 0.0


class TimingReport:
    """Adds up what tests took, in the process that gets all reports."""

    def __init__(self) -> None:
        self.functions: defaultdict[str, TimeSpent] = defaultdict(TimeSpent)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        spent = self.functions[report.nodeid.partition("[")[0]]
        spent.wall += report.duration
        if report.when == "teardown":
            spent.items += 1
            spent.cpu += sum(value for name, value in report.user_properties if name == _CPU_PROPERTY)  # type: ignore[misc]

    def sum_by_folder(self) -> dict[str, TimeSpent]:
        folders: defaultdict[str, TimeSpent] = defaultdict(TimeSpent)
        for function, spent in self.functions.items():
            total = folders["/".join(function.partition("::")[0].split("/")[1:-1][:2]) or "(top)"]
            total.items += spent.items
            total.cpu += spent.cpu
            total.wall += spent.wall
        return folders

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
        rows = sorted(self.sum_by_folder().items(), key=lambda row: -row[1].cpu)
        for name, spent in rows:
            terminalreporter.line(f"{name:<24}{spent.items:>8}{spent.cpu:>10.1f}{spent.wall:>10.1f}")
        whole = [sum(getattr(each, part) for _, each in rows) for part in ("items", "cpu", "wall")]
        terminalreporter.line(f"{'all':<24}{whole[0]:>8}{whole[1]:>10.1f}{whole[2]:>10.1f}")


def _is_whole_run(config: pytest.Config) -> bool:
    """Tell whether this is `make test`. Others try fewer examples or other databases, or run few tests."""
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
    """CPU seconds of this process and of the fork server, with ended programs that they waited for."""
    return sum(os.times()[:4]) + _fork_server_cpu()


def _fork_server_cpu() -> float:
    """CPU seconds of the process that tests/cli/forked_process.py forks from, with children that ended."""
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)  # noqa: SLF001 # nothing public tells it
    if pid is None:
        return 0.0
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:  # it has ended, or this is not Linux
        return 0.0
    fields = stat.rpartition(")")[2].split()  # a name may contain spaces; utime to cstime are 14 to 17
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
