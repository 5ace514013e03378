"""Rules which package may import which. The diagram in docs/architecture.md shows this table."""

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

_SHARED = {
    "errors",
    "protocol",
    "rest",
    "csv_format",
    "tls",
    "event_loop",
    "mqtt",
    "mqtt.codec",
    "mqtt.client",
}

PACKAGES = {
    "errors": set[str](),
    "tls": {"errors"},
    "event_loop": set[str](),
    "csv_format": set[str](),
    "ip_networks": set[str](),
    "protocol": {"errors"},
    "rest": {"errors", "protocol", "csv_format"},
    "mqtt": {"errors"},
    "mqtt.codec": {"errors"},
    "mqtt.client": {"errors", "mqtt", "mqtt.codec", "tls", "event_loop"},
    "db": {"errors"},
    "positioning": set[str](),
    "settings": {"errors", "protocol", "rest", "mqtt", "mqtt.client", "tls"},
    "mqtt.broker": {"errors", "protocol", "rest", "mqtt", "mqtt.codec", "db", "ip_networks"},
    "service": {*_SHARED, "db", "positioning", "settings", "mqtt.broker", "ip_networks"},
    "emulator": _SHARED,
    "client": _SHARED,
    "testing": {*_SHARED, "emulator", "client", "db", "service", "settings", "mqtt.broker"},
    "cli": {*_SHARED, "client", "emulator", "db", "service", "settings", "mqtt.broker"},
    "__main__": {"cli"},
}
"""Packages, and the packages that each may import."""

SERVICE_ORDER = (
    *("byte_format", "time_zones", "clock", "actor", "metrics", "readiness"),
    *("sockets", "secret_store", "transport", "locks", "backup", "systemd", "server_certificate", "reload"),
    *("http", "audit", "accounts", "catalogue", "console", "asyncapi", "devices", "labels"),
    *("ingest", "backfill", "telemetry", "sites", "positions", "influx", "presence", "requests", "metadata"),
    *("gateways", "jobs", "storage", "availability", "alarms", "notifications", "fleet_metrics"),
    *("firmware", "topology", "live", "operations"),
    "metric_table",
    *("embedded_broker", "external_broker", "homeassistant"),
    *("doctor", "status_report", "api", "runtime", "app"),
)
"""Packages and modules of `service`: each may import only those before it."""

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
    "hashlib",  # used on bytes in memory, as are io, zipfile and zlib: a firmware package is a zip
    "io",
    "itertools",
    "math",
    "re",
    "struct",
    "typing",
    "unicodedata",
    "urllib",  # only urllib.parse: see below
    "zipfile",
    "zlib",
    "msgspec",
}
"""Libraries of the pure packages: none opens connections, waits, logs or reads the clock."""

EXCEPTIONS = {
    (
        "protocol/identifiers/catalogue.py",
        "importlib",
    ),  # reads the built-in table of the package
    ("protocol/decoders.py", "threading"),  # a lock, held while a decoder is created
}

LIBRARIES = {
    "event_loop": {"uvloop"},
    "mqtt": {"msgspec", "websockets"},
    "mqtt.client": {"msgspec", "websockets"},
    "db": {"alembic", "msgspec", "psycopg", "sqlalchemy"},
    "positioning": {"numpy"},
    "settings": {"msgspec"},
    "mqtt.broker": {"msgspec", "sqlalchemy", "websockets"},
    "service": {
        *("argon2", "jwt", "msgspec", "prometheus_client", "sqlalchemy"),
        *("httptools", "httpx", "litestar", "multipart", "numpy", "uvicorn", "websockets"),
    },
    "emulator": {"httpx", "msgspec"},
    "client": {"httpx", "msgspec"},
    "testing": {"httpx", "msgspec", "sqlalchemy"},
    "cli": {"click", "httpx", "rich", "msgspec", "sqlalchemy"},
}
"""Libraries that each of the other packages may use."""


def _list_modules(directory: str = "") -> dict[str, Path]:
    """Return the modules below a directory of the package, by relative path."""
    return {str(path.relative_to(SOURCE)): path for path in sorted((SOURCE / directory).rglob("*.py"))}


def _get_package_of_path(path: str) -> str:
    return _get_package(path.removesuffix(".py").replace("/", "."))


def _get_package(module: str) -> str:
    """Return the package of a module below `meshfleet`: the longest entry of the table."""
    parts = module.split(".")
    inner = ".".join(parts[:2])
    return inner if inner in PACKAGES else parts[0]


@cache
def _parse(module: Path) -> ast.Module:
    return ast.parse(module.read_text())


@cache
def _list_imports(module: Path) -> frozenset[str]:
    return frozenset(name for node in _walk_statements(_parse(module)) for name in _imported_names(node))


def _walk_statements(block: ast.AST) -> Iterator[ast.AST]:
    """Yield all statements of a block and its nested blocks.

    Visiting expressions would take ten times as long.
    """
    for _, value in ast.iter_fields(block):
        for each in value if isinstance(value, list) else ():
            if isinstance(each, ast.stmt | ast.excepthandler | ast.match_case):
                yield each
                yield from _walk_statements(each)


def _imported_names(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        if node.module in {"meshfleet", "meshfleet.mqtt", "meshfleet.service"}:  # their members are packages
            return [f"{node.module}.{alias.name}" for alias in node.names]
        return [f"{'.' * node.level}{node.module or ''}"]
    return []


def test_imports_are_found_in_all_kinds_of_blocks() -> None:
    source = """
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
    names = {name for node in _walk_statements(ast.parse(dedent(source))) for name in _imported_names(node)}
    assert names == {*["a", "b.c", "e", "f", "g", "h", "i", "j", "k", "l", "o", "q", "s", "v", "."]}


def test_modules_import_only_the_packages_they_may() -> None:
    offenders = [
        (path, name)
        for path, module in _list_modules().items()
        for name in sorted(_list_imports(module))
        if not _may_import(_get_package_of_path(path), name)
    ]
    assert offenders == []
    assert len(_list_modules()) > 400  # guards against a wrong directory


def _may_import(package: str, name: str) -> bool:
    if name.startswith(".") or package == "__init__":
        return False  # imports are absolute, and meshfleet/__init__.py has none
    top, _, module = name.partition(".")
    return top != "meshfleet" or _get_package(module) in {package, *PACKAGES[package]}


def test_packages_of_the_service_import_only_those_before_them() -> None:
    offenders = [
        (path, name)
        for path, module in _list_modules("service").items()
        if path != "service/__init__.py"
        for name in sorted(_list_imports(module))
        if name.startswith("meshfleet.service.")
        and SERVICE_ORDER.index(name.split(".")[2]) > SERVICE_ORDER.index(_get_service_part(path))
    ]
    assert offenders == []


def _get_service_part(path: str) -> str:
    return path.split("/")[1].removesuffix(".py")


def test_pure_modules_import_no_io_libraries() -> None:
    offenders = {
        (path, name)
        for directory in PURE_PACKAGES
        for path, module in _list_modules(directory).items()
        for name in _list_imports(module)
        if name.split(".")[0] not in {*PURE_LIBRARIES, "meshfleet"}
        or (name.startswith("urllib") and name != "urllib.parse")
    }
    assert offenders == EXCEPTIONS


def test_pure_modules_do_not_read_the_clock() -> None:
    offenders = [
        (path, node.attr, node.lineno)
        for directory in PURE_PACKAGES
        for path, module in _list_modules(directory).items()
        for node in ast.walk(_parse(module))
        if isinstance(node, ast.Attribute) and node.attr in {"now", "utcnow", "today"}
    ]
    assert offenders == []


def test_modules_import_only_the_libraries_of_their_package() -> None:
    offenders = [
        (path, name)
        for path, module in _list_modules().items()
        if _get_package_of_path(path) in LIBRARIES
        for name in sorted({name.split(".")[0] for name in _list_imports(module)})
        if name not in {*sys.stdlib_module_names, "meshfleet", *LIBRARIES[_get_package_of_path(path)]}
    ]
    assert offenders == []
