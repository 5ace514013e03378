"""Who may import whom. The picture in docs/architecture.md is this table drawn."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parent.parent / "src" / "meshfleet"

ROOMS = {
    "errors": set[str](),
    "wire": {"errors"},
    "link": {"errors", "wire"},
    "db": {"errors"},
    "settings": {"errors", "wire", "link"},
    "broker": {"errors", "wire", "link", "db", "settings"},
    "service": {"errors", "wire", "link", "db", "settings", "broker"},
    "gateway": {"errors", "wire", "link"},
    "client": {"errors", "wire", "link"},
    "testing": {"errors", "wire", "link", "gateway", "client", "db", "service", "settings", "broker"},
    "cli": {"errors", "wire", "link", "client", "gateway", "db", "service", "settings", "broker"},
    "__main__": {"cli"},
}
"""The rooms of the package, and the rooms that each may use."""

PURE = {
    "__future__",
    "abc",
    "binascii",
    "collections",
    "contextlib",
    "dataclasses",
    "datetime",
    "enum",
    "fractions",
    "functools",
    "hashlib",  # works on bytes in memory here, as do io, zipfile and zlib: a package of firmware is a zip
    "io",
    "itertools",
    "math",
    "re",
    "struct",
    "typing",
    "unicodedata",
    "urllib",  # urllib.parse alone: see below
    "zipfile",
    "zlib",
    "msgspec",
}
"""What `wire` may use besides: nothing that talks, waits, logs or asks for the time."""

EXCEPTIONS = {
    ("wire/identifiers/catalogue.py", "importlib"),  # reads the built-in table, which is part of the package
    ("wire/decoders.py", "threading"),  # a lock, held while a type is learned
}

OUTSIDE = {
    "link": {"msgspec", "uvloop", "websockets"},
    "db": {"alembic", "msgspec", "psycopg", "sqlalchemy"},
    "settings": {"msgspec"},
    "broker": {"msgspec", "sqlalchemy", "websockets"},
    "service": {
        *("argon2", "jwt", "msgspec", "prometheus_client", "sqlalchemy"),
        *("httptools", "litestar", "multipart", "uvicorn", "websockets"),
    },
    "gateway": {"httpx", "msgspec"},
    "client": {"httpx", "msgspec"},
    "testing": {"httpx", "msgspec", "sqlalchemy"},
    "cli": {"click", "httpx", "rich", "msgspec", "sqlalchemy"},
}
"""The libraries that each of the other rooms may use."""


def _modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _room(module: Path) -> str:
    return module.relative_to(SOURCE).parts[0].removesuffix(".py")


def _imports(module: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute here"
            yield str(node.module)


@pytest.mark.parametrize("module", _modules(), ids=lambda module: str(module.relative_to(SOURCE)))
def test_a_module_imports_only_rooms_that_its_own_may_use(module: Path) -> None:
    room = _room(module)
    if room == "__init__":
        assert not list(_imports(module))
        return
    ours = [name.split(".") for name in _imports(module) if name.split(".")[0] == "meshfleet"]
    assert {parts[1] for parts in ours} <= {room, *ROOMS[room]}


@pytest.mark.parametrize("module", sorted((SOURCE / "wire").rglob("*.py")), ids=lambda module: module.name)
def test_a_module_of_wire_imports_nothing_that_does_io(module: Path) -> None:
    names = {name for name in _imports(module) if name.split(".")[0] not in {*PURE, "meshfleet"}}
    place = str(module.relative_to(SOURCE))
    assert {(place, name) for name in names} <= EXCEPTIONS
    assert not any(name.startswith("urllib") and name != "urllib.parse" for name in _imports(module))


@pytest.mark.parametrize("module", sorted((SOURCE / "wire").rglob("*.py")), ids=lambda module: module.name)
def test_a_module_of_wire_never_asks_for_the_time(module: Path) -> None:
    named = {node.attr for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.Attribute)}
    assert not named & {"now", "utcnow", "today"}


@pytest.mark.parametrize(
    "module", [module for module in _modules() if _room(module) in OUTSIDE], ids=lambda module: module.name
)
def test_a_module_of_another_room_imports_only_its_libraries(module: Path) -> None:
    outside = {name.split(".")[0] for name in _imports(module)} - set(sys.stdlib_module_names) - {"meshfleet"}
    assert outside <= OUTSIDE[_room(module)]
