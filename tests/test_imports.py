"""Who may import whom. The picture in docs/architecture.md is this table drawn."""

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


def _modules(folder: str = "") -> dict[str, Path]:
    """The modules below a folder of the package, by their place in it."""
    return {str(path.relative_to(SOURCE)): path for path in sorted((SOURCE / folder).rglob("*.py"))}


def _room(place: str) -> str:
    return place.partition("/")[0].removesuffix(".py")


@cache
def _tree(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


@cache
def _imports(module: Path) -> frozenset[str]:
    return frozenset(name for node in _statements(_tree(module)) for name in _named(node))


def _statements(block: ast.AST) -> Iterator[ast.AST]:
    """All statements of a block and of the blocks in it. To look into expressions takes ten times as long."""
    for _, value in ast.iter_fields(block):
        for each in value if isinstance(value, list) else ():
            if isinstance(each, ast.stmt | ast.excepthandler | ast.match_case):
                yield each
                yield from _statements(each)


def _named(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
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
    found = {name for node in _statements(ast.parse(dedent(places))) for name in _named(node)}
    assert found == {*["a", "b.c", "e", "f", "g", "h", "i", "j", "k", "l", "o", "q", "s", "v", "."]}


def test_modules_import_only_rooms_that_their_own_may_use() -> None:
    offenders = [
        (place, name)
        for place, module in _modules().items()
        for name in sorted(_imports(module))
        if not _may_import(_room(place), name)
    ]
    assert offenders == []
    assert len(_modules()) > 500  # or we look in the wrong place


def _may_import(room: str, name: str) -> bool:
    if name.startswith(".") or room == "__init__":
        return False  # imports are absolute here, and the package itself imports nothing
    package, _, rest = name.partition(".")
    return package != "meshfleet" or rest.partition(".")[0] in {room, *ROOMS[room]}


def test_modules_of_wire_import_nothing_that_does_io() -> None:
    offenders = {
        (place, name)
        for place, module in _modules("wire").items()
        for name in _imports(module)
        if name.split(".")[0] not in {*PURE, "meshfleet"}
        or (name.startswith("urllib") and name != "urllib.parse")
    }
    assert offenders == EXCEPTIONS


def test_modules_of_wire_never_ask_for_the_time() -> None:
    offenders = [
        (place, node.attr, node.lineno)
        for place, module in _modules("wire").items()
        for node in ast.walk(_tree(module))
        if isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today"}
    ]
    assert offenders == []


def test_modules_of_other_rooms_import_only_their_libraries() -> None:
    offenders = [
        (place, name)
        for place, module in _modules().items()
        if _room(place) in OUTSIDE
        for name in sorted({name.split(".")[0] for name in _imports(module)})
        if name not in {*sys.stdlib_module_names, "meshfleet", *OUTSIDE[_room(place)]}
    ]
    assert offenders == []
