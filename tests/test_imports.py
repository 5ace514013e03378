"""Which package may import which. The picture in docs/architecture.md is this table drawn."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from textwrap import dedent
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parent.parent / "src" / "meshfleet"

_SHARED = {"errors", "protocol", "rest", "tls", "event_loop", "mqtt", "mqtt.codec", "mqtt.client"}

PACKAGES = {
    "errors": set[str](),
    "tls": {"errors"},
    "event_loop": set[str](),
    "ip_networks": set[str](),
    "protocol": {"errors"},
    "rest": {"errors", "protocol"},
    "mqtt": {"errors"},
    "mqtt.codec": {"errors"},
    "mqtt.client": {"errors", "mqtt", "mqtt.codec", "tls", "event_loop"},
    "db": {"errors"},
    "settings": {"errors", "protocol", "rest", "mqtt", "mqtt.client", "tls"},
    "mqtt.broker": {"errors", "protocol", "rest", "mqtt", "mqtt.codec", "db", "ip_networks"},
    "service": {*_SHARED, "db", "settings", "mqtt.broker", "ip_networks"},
    "emulator": _SHARED,
    "client": _SHARED,
    "testing": {*_SHARED, "emulator", "client", "db", "service", "settings", "mqtt.broker"},
    "cli": {*_SHARED, "client", "emulator", "db", "service", "settings", "mqtt.broker"},
    "__main__": {"cli"},
}
"""The packages, and the packages that each may import."""

PURE_PACKAGES = ("protocol", "rest", "mqtt/codec")

PURE_LIBRARIES = {
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
"""The libraries of the pure packages: nothing that opens a connection, waits, logs or reads the clock."""

EXCEPTIONS = {
    (
        "protocol/identifiers/catalogue.py",
        "importlib",
    ),  # reads the built-in table, which is part of the package
    ("protocol/decoders.py", "threading"),  # a lock, held while a type is learned
}

LIBRARIES = {
    "event_loop": {"uvloop"},
    "mqtt": {"msgspec", "websockets"},
    "mqtt.client": {"msgspec", "websockets"},
    "db": {"alembic", "msgspec", "psycopg", "sqlalchemy"},
    "settings": {"msgspec"},
    "mqtt.broker": {"msgspec", "sqlalchemy", "websockets"},
    "service": {
        *("argon2", "jwt", "msgspec", "prometheus_client", "sqlalchemy"),
        *("httptools", "litestar", "multipart", "uvicorn", "websockets"),
    },
    "emulator": {"httpx", "msgspec"},
    "client": {"httpx", "msgspec"},
    "testing": {"httpx", "msgspec", "sqlalchemy"},
    "cli": {"click", "httpx", "rich", "msgspec", "sqlalchemy"},
}
"""The libraries that each of the other packages may use."""


def _modules(folder: str = "") -> dict[str, Path]:
    """The modules below a folder of the package, by their place in it."""
    return {str(path.relative_to(SOURCE)): path for path in sorted((SOURCE / folder).rglob("*.py"))}


def _package_of(place: str) -> str:
    return _package(place.removesuffix(".py").replace("/", "."))


def _package(module: str) -> str:
    """Return the package that a module below `meshfleet` belongs to: the longest one of the table."""
    parts = module.split(".")
    inner = ".".join(parts[:2])
    return inner if inner in PACKAGES else parts[0]


@cache
def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


@cache
def _imports(module: Path) -> frozenset[str]:
    return frozenset(name for node in _statements(_tree(module)) for name in _imported_names(node))


def _statements(block: ast.AST) -> Iterator[ast.AST]:
    """All statements of a block and of the blocks in it. To look into expressions takes ten times as long."""
    for _, value in ast.iter_fields(block):
        for each in value if isinstance(value, list) else ():
            if isinstance(each, ast.stmt | ast.excepthandler | ast.match_case):
                yield each
                yield from _statements(each)


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.module in {"meshfleet", "meshfleet.mqtt"}:  # what they hold are packages of the table
            return [f"{node.module}.{alias.name}" for alias in node.names]
        return [f"{'.' * node.level}{node.module or ''}"]
    return []


def test_imports_are_found_wherever_they_stand() -> None:
    places = """
        import a
        from b.c import d
        if x:
            import e
        elif y:
            import f
        else:
            import g
        try:
            import h
        except ValueError:
            import i
        else:
            import j
        finally:
            import k
        for n in m:
            import l
        else:
            import o
        with p:
            import q
        match r:
            case 1:
                import s
        async def t():
            while u:
                import v
        class w:
            def z():
                from . import no
    """
    found = {name for node in _statements(ast.parse(dedent(places))) for name in _imported_names(node)}
    assert found == {*["a", "b.c", "e", "f", "g", "h", "i", "j", "k", "l", "o", "q", "s", "v", "."]}


def test_modules_import_only_packages_that_their_own_may_use() -> None:
    offenders = [
        (place, name)
        for place, module in _modules().items()
        for name in sorted(_imports(module))
        if not _may_import(_package_of(place), name)
    ]
    assert offenders == []
    assert len(_modules()) > 400  # or we look in the wrong place


def _may_import(package_name: str, name: str) -> bool:
    if name.startswith(".") or package_name == "__init__":
        return False  # imports are absolute here, and the package itself imports nothing
    top, _, module = name.partition(".")
    return top != "meshfleet" or _package(module) in {package_name, *PACKAGES[package_name]}


def test_pure_modules_import_nothing_that_does_io() -> None:
    offenders = {
        (place, name)
        for folder in PURE_PACKAGES
        for place, module in _modules(folder).items()
        for name in _imports(module)
        if name.split(".")[0] not in {*PURE_LIBRARIES, "meshfleet"}
        or (name.startswith("urllib") and name != "urllib.parse")
    }
    assert offenders == EXCEPTIONS


def test_pure_modules_never_ask_for_the_time() -> None:
    offenders = [
        (place, node.attr, node.lineno)
        for folder in PURE_PACKAGES
        for place, module in _modules(folder).items()
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today"}
    ]
    assert offenders == []


def test_modules_of_other_packages_import_only_their_libraries() -> None:
    offenders = [
        (place, name)
        for place, module in _modules().items()
        if _package_of(place) in LIBRARIES
        for name in sorted({name.split(".")[0] for name in _imports(module)})
        if name not in {*sys.stdlib_module_names, "meshfleet", *LIBRARIES[_package_of(place)]}
    ]
    assert offenders == []
