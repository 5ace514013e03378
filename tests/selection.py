"""Which tests run: `make test` leaves out the parts below, `make test-all` runs them and nothing else.

A test belongs to a part by its mark, `@pytest.mark.part("long")`. Two parts are the other half of tests that
ask for `event_loop` or `database_kind`: in `make test` they run with one of the two, and with the mark
`both_loops` or `both_databases` with both. `make test-fast` runs all with one.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import is_hypothesis_test

if TYPE_CHECKING:
    from collections.abc import Generator

    from _pytest.terminal import TerminalReporter

PARTS: Final = {
    "databases": "tests above the stores, on PostgreSQL instead of SQLite",
    "fuzz": "long searches for input that breaks something",
    "long": "tests of more than ten seconds",
    "loops": "tests above the transports, on uvloop instead of asyncio",
    "search": "all properties, with examples that are new every time",
    "variants": "the same questions in other ways: every mode and version, more outages, clients and rounds",
}

_VARIANT_FIXTURES: Final = {
    "database_kind": (("sqlite", "postgresql"), "both_databases", "databases"),
    "event_loop": (("asyncio", "uvloop"), "both_loops", "loops"),
}
"""Fixtures with two values: these, the mark of tests that run with both, and the part of the second one."""


@pytest.fixture(scope="session")
def database_kind(request: pytest.FixtureRequest) -> str:
    """`sqlite` or `postgresql`."""
    return str(request.param)


@pytest.fixture(scope="session")
def event_loop(request: pytest.FixtureRequest) -> str:
    """`asyncio` or `uvloop`."""
    return str(request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", action="append", default=[], help="run these parts of make test-all, or all")


def selected_parts(config: pytest.Config) -> frozenset[str]:
    """Return the parts that were asked for."""
    asked = frozenset(name for text in config.getoption("part") for name in text.split(",") if name)
    return asked - {"all"} | frozenset(PARTS) if "all" in asked else asked


def pytest_configure(config: pytest.Config) -> None:
    if unknown := selected_parts(config) - PARTS.keys():
        raise pytest.UsageError(f"no such part: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_PartSummary(selected_parts(config)), "parts told")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make no test that would not run: to make it takes a millisecond in every worker."""
    chosen = selected_parts(metafunc.config)
    for fixture, ((first, second), both, part) in _VARIANT_FIXTURES.items():
        if fixture not in metafunc.fixturenames:
            continue
        values: list[object] = [first]
        if metafunc.definition.get_closest_marker(both) is not None and not metafunc.config.option.fast:
            values = [first, second]
        elif part in chosen:
            values = [first, pytest.param(second, marks=pytest.mark.part(part))]
        metafunc.parametrize(fixture, values, indirect=True, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Refuse a misspelt part of a test or of one of its rows: the test would run nowhere."""
    report = yield
    wrong = [
        f"{item.nodeid}: no such part: {name}; there are {', '.join(PARTS)}"
        for item in report.result or ()
        if isinstance(item, pytest.Item)
        for name in _parts_of(item)
        if name not in PARTS
    ]
    if wrong:
        report.outcome, report.longrepr, report.result = "failed", "\n".join(wrong), []
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    chosen = selected_parts(config)
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        parts = set(_parts_of(item))
        if "search" in chosen and is_hypothesis_test(getattr(item, "obj", None)):
            parts.add("search")
            item.user_properties.append(("part", "search"))
        wanted = bool(parts & chosen) if chosen else not parts
        (kept if wanted else left).append(item)
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = kept


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let reports tell the part: the process that prints them has no marks."""
    item.user_properties.extend(("part", name) for name in _parts_of(item))


def _parts_of(item: pytest.Item) -> list[str]:
    return [name for mark in item.iter_markers("part") for name in mark.args]


class _PartSummary:
    """Says at the end of `make test-all` which parts ran, and what was skipped and why."""

    def __init__(self, chosen: frozenset[str]) -> None:
        self._chosen = chosen
        self._outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._reasons: defaultdict[str, set[str]] = defaultdict(set)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        for name, part in report.user_properties:
            if name == "part":
                self._outcomes[str(part)][report.outcome] += 1
                if report.outcome == "skipped" and isinstance(report.longrepr, tuple):
                    self._reasons[str(part)].add(str(report.longrepr[2]))

    def pytest_terminal_summary(self, terminalreporter: TerminalReporter) -> None:
        if not self._chosen:
            return
        terminalreporter.section("parts")
        for part, meaning in PARTS.items():
            outcomes = self._outcomes[part]
            told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            said = told or ("no test" if part in self._chosen else "not asked for")
            terminalreporter.line(f"{part:<12}{said:<30}{meaning}")
            for reason in sorted(self._reasons[part]):
                terminalreporter.line(f"{'':<12}skipped: {reason}")


def backend_for_loop(event_loop: str) -> tuple[str, dict[str, bool]]:
    """Return what anyio's fixture `anyio_backend` says for an event loop."""
    return "asyncio", {"use_uvloop": event_loop == "uvloop"}
