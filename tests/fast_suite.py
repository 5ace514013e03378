"""`make test-fast`: tests that need no server, browser or other program, found by what they import."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

SLOW_MODULES: Final = frozenset(
    {
        "multiprocessing",
        "playwright",
        "subprocess",
        "tests.mqtt.broker.running_broker",
        "tests.external_tools",
        "tests.service.http.running_service",
        "tests.servers",
    }
)
"""Modules that start programs, a broker or a service. A file that imports one, also by way of others, is left
out."""

SLOW_FIXTURES: Final = frozenset({"postgresql_server", "stage"})
"""Fixtures that start such things, for tests that import nothing of the kind."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="run only what needs no other program")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files before they are imported, which takes longer than the tests that stay."""
    if not config.getoption("fast") or not collection_path.name.startswith("test_"):
        return None
    return True if _starts_programs(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("fast"):
        left = [item for item in items if _starts_server(item) or _starts_programs(item.path)]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


def _starts_server(item: pytest.Item) -> bool:
    """Whether a test names such a fixture, or `database_kind` names it for the test."""
    values = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return "postgresql" in values.values() or bool(SLOW_FIXTURES & set(getattr(item, "fixturenames", ())))


@cache
def _starts_programs(file: Path) -> bool:
    seen = {file}
    left = [file, *_conftests(file)]
    while left:
        for name in _imported(left.pop()):
            if any(name == each or name.startswith(f"{each}.") for each in SLOW_MODULES):
                return True
            found = ROOT / f"{name.replace('.', '/')}.py"
            if name.startswith("tests.") and found.exists() and found not in seen:
                seen.add(found)
                left.append(found)
    return False


def _conftests(file: Path) -> list[Path]:
    """Those of its folders, but for the first: what it brings is asked for by name."""
    folders = file.parents[: file.parents.index(ROOT / "tests")]
    return [folder / "conftest.py" for folder in folders if (folder / "conftest.py").exists()]


@cache
def _imported(file: Path) -> frozenset[str]:
    """Return the names of the modules that a file imports while it runs, and not only for types."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{each.name}" for each in node.names)
    return frozenset(names)
