"""Selection of tests: `make test` excludes the parts below, `make test-all` runs only those.

A test belongs to a part by its mark, `@pytest.mark.part("long")`. Two parts are variants of tests that use
the fixtures `event_loop` or `database_kind`: `make test` runs them with one value, and with the mark
`both_loops` or `both_databases` with both. `make test-fast` runs everything with one value.
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
    "container": "the image of the service, built and run",
    "databases": "tests above the stores, on PostgreSQL instead of SQLite",
    "deployment": "the files of src/meshfleet/deploy, with systemd, nginx and Caddy",
    "documentation": "the documentation site",
    "fuzz": "long searches for input that breaks something",
    "homeassistant": "the integration with a real Home Assistant",
    "integrations": "other programs that get samples or exchange messages: InfluxDB, Node-RED, mosquitto",
    "long": "tests of more than ten seconds",
    "loops": "tests above the transports, on uvloop instead of asyncio",
    "monitoring": "alerts and dashboards, with Prometheus and its Alertmanager",
    "search": "all property tests, with random examples",
    "variants": "more variants of tests: every mode and version, more outages, clients and rounds",
}

_VARIANT_FIXTURES: Final = {
    "database_kind": (("sqlite", "postgresql"), "both_databases", "databases"),
    "event_loop": (("asyncio", "uvloop"), "both_loops", "loops"),
}
"""Fixtures with two values: the values, the mark of tests that run with both, and the part of the second
one."""


@pytest.fixture(scope="session")
def database_kind(request: pytest.FixtureRequest) -> str:
    """Kind of the database: `sqlite` or `postgresql`."""
    return str(request.param)


@pytest.fixture(scope="session")
def event_loop(request: pytest.FixtureRequest) -> str:
    """Event loop: `asyncio` or `uvloop`."""
    return str(request.param)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--part", action="append", default=[], help="run these parts of make test-all, or all")


def selected_parts(config: pytest.Config) -> frozenset[str]:
    """Return the parts that were requested with `--part`."""
    requested = frozenset(name for text in config.getoption("part") for name in text.split(",") if name)
    return requested - {"all"} | frozenset(PARTS) if "all" in requested else requested


def pytest_configure(config: pytest.Config) -> None:
    if unknown := selected_parts(config) - PARTS.keys():
        raise pytest.UsageError(
            f"unknown part: {', '.join(sorted(unknown))}; the parts are {', '.join(PARTS)}"
        )
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_PartSummary(selected_parts(config)), "part summary")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Create only tests that will run: each one costs a millisecond in every worker."""
    selected = selected_parts(metafunc.config)
    for fixture, ((first, second), both, part) in _VARIANT_FIXTURES.items():
        if fixture not in metafunc.fixturenames:
            continue
        values: list[object] = [first]
        if metafunc.definition.get_closest_marker(both) is not None and not metafunc.config.option.fast:
            values = [first, second]
        elif part in selected:
            values = [first, pytest.param(second, marks=pytest.mark.part(part))]
        metafunc.parametrize(fixture, values, indirect=True, scope="session")


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Report a misspelt part of a test or row as an error: the test would never run."""
    report = yield
    errors = [
        f"{item.nodeid}: unknown part: {name}; the parts are {', '.join(PARTS)}"
        for item in report.result or ()
        if isinstance(item, pytest.Item)
        for name in _parts_of(item)
        if name not in PARTS
    ]
    if errors:
        report.outcome, report.longrepr, report.result = "failed", "\n".join(errors), []
    return report


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    selected = selected_parts(config)
    included: list[pytest.Item] = []
    excluded: list[pytest.Item] = []
    for item in items:
        parts = set(_parts_of(item))
        if "search" in selected and is_hypothesis_test(getattr(item, "obj", None)):
            parts.add("search")
            item.user_properties.append(("part", "search"))
        is_included = bool(parts & selected) if selected else not parts
        (included if is_included else excluded).append(item)
    if excluded:
        config.hook.pytest_deselected(items=excluded)
        items[:] = included


def pytest_itemcollected(item: pytest.Item) -> None:
    """Copy the parts to the reports, because the process that prints them has no marks."""
    item.user_properties.extend(("part", name) for name in _parts_of(item))


def _parts_of(item: pytest.Item) -> list[str]:
    return [name for mark in item.iter_markers("part") for name in mark.args]


class _PartSummary:
    """Prints at the end of `make test-all` which parts ran, and which tests were skipped and why."""

    def __init__(self, selected: frozenset[str]) -> None:
        self._selected = selected
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
        if not self._selected:
            return
        terminalreporter.section("parts")
        for part, meaning in PARTS.items():
            outcomes = self._outcomes[part]
            counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
            status = counts or ("no test" if part in self._selected else "not requested")
            terminalreporter.line(f"{part:<12}{status:<30}{meaning}")
            for reason in sorted(self._reasons[part]):
                terminalreporter.line(f"{'':<12}skipped: {reason}")


def backend_for_loop(event_loop: str) -> tuple[str, dict[str, bool]]:
    """Return the value of anyio's fixture `anyio_backend` for an event loop."""
    return "asyncio", {"use_uvloop": event_loop == "uvloop"}
