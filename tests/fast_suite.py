"""`make test-fast`: tests that need no server, browser or other program, selected by their imports."""

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
"""Modules that start programs, a broker or a service. Test files that import one, even indirectly, are
excluded."""

SLOW_FIXTURES: Final = frozenset({"mosquitto", "postgresql_server", "stage"})
"""Fixtures that start such programs, for tests that import none of these modules."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="run only tests that need no other program")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Exclude files and directories before they are imported, which takes longer than the remaining tests."""
    if not config.getoption("fast"):
        return None
    if collection_path.is_dir():
        collection_path /= "conftest.py"
    elif not collection_path.name.startswith("test_"):
        return None
    if not collection_path.exists() or collection_path == ROOT / "tests" / "conftest.py":
        return None
    return True if _starts_programs(collection_path) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("fast"):
        excluded = {item for item in items if _starts_server(item) or _starts_programs(item.path)}
        config.hook.pytest_deselected(items=list(excluded))
        items[:] = [item for item in items if item not in excluded]


def _starts_server(item: pytest.Item) -> bool:
    """Return whether a test uses a slow fixture, or runs on PostgreSQL by `database_kind`."""
    values = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    return "postgresql" in values.values() or bool(SLOW_FIXTURES & set(getattr(item, "fixturenames", ())))


@cache
def _starts_programs(file: Path) -> bool:
    visited = {file}
    pending = [file, *_find_conftests(file)]
    while pending:
        for name in _list_imports(pending.pop()):
            if any(name == each or name.startswith(f"{each}.") for each in SLOW_MODULES):
                return True
            found = ROOT / f"{name.replace('.', '/')}.py"
            if name.startswith("tests.") and found.exists() and found not in visited:
                visited.add(found)
                pending.append(found)
    return False


def _find_conftests(file: Path) -> list[Path]:
    """Return the conftest files above a test file, except the top one, whose fixtures are used by name."""
    directories = file.parents[: file.parents.index(ROOT / "tests")]
    return [path for directory in directories if (path := directory / "conftest.py").exists()]


@cache
def _list_imports(file: Path) -> frozenset[str]:
    """Return the names of the modules that a file imports at run time, not only for types."""
    names: set[str] = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Import):
            names.update(each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
            names.update(f"{node.module}.{each.name}" for each in node.names)
    return frozenset(names)
