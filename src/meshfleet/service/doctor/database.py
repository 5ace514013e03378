"""Checks of the database: whether it can be used, its schema, its connections, and the disk."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Final

from sqlalchemy import make_url

from meshfleet.db.driver_errors import classify_error, is_sqlite_damaged
from meshfleet.db.samples import DAY_MS
from meshfleet.db.schema import OLDEST_POSTGRESQL, list_revisions
from meshfleet.errors.readiness import ReadinessCode
from meshfleet.service.byte_format import format_bytes
from meshfleet.service.doctor.finding import RESTORE_COMMAND, Finding, Level, describe_error
from meshfleet.service.storage.monitor import assess_storage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection
    from sqlalchemy.exc import DBAPIError

    from meshfleet.service.storage.monitor import StorageStatus
    from meshfleet.settings import Settings

_NEEDED_CONNECTIONS: Final = 9
"""Connections of a service: the pool, and one that holds the lock."""

_CONNECTION_COUNTS: Final = """
    SELECT count(*), count(*) FILTER (WHERE datname = current_database()),
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int,
        (SELECT datconnlimit FROM pg_database WHERE datname = current_database())
    FROM pg_stat_activity WHERE backend_type = 'client backend'
"""

_FULL_BYTES: Final = 200_000_000
_FAIL_DAYS, _WARN_DAYS = 3, 30


def describe_database(settings: Settings) -> str:
    """Return the kind and place of the database as text, without the password."""
    if settings.database == "sqlite":
        return f"SQLite in {settings.data.absolute()}"
    url = make_url(settings.database)
    return (
        f"PostgreSQL at {url.host or 'the local socket'}{f':{url.port}' if url.port else ''}/{url.database}"
    )


def build_unusable_finding(settings: Settings, exc: DBAPIError) -> Finding:
    """Return the finding for a database that cannot be opened, with the reason code that `/readyz` has."""
    text = f"{classify_error(exc)}: {describe_database(settings)}: {describe_error(exc)}"
    if is_sqlite_damaged(exc):
        return Finding(Level.FAIL, "database", f"{text}; restore the newest backup", RESTORE_COMMAND)
    return Finding(Level.FAIL, "database", text, _build_serve_command(settings))


def build_missing_finding(settings: Settings) -> Finding:
    """Return the finding for a data directory that contains no database."""
    text = f"{describe_database(settings)}: there is no database; give the data directory with --data"
    return Finding(Level.FAIL, "database", text, _build_serve_command(settings))


def _build_serve_command(settings: Settings) -> str:
    return f"meshfleet serve --data {shlex.quote(str(settings.data.absolute()))} --log-level info"


def check_server(connection: Connection, settings: Settings) -> Iterator[Finding]:
    """Check the version of the PostgreSQL server, and that it has connections left."""
    version = connection.dialect.server_version_info or ()
    text = f"{describe_database(settings)}, version {'.'.join(map(str, version))}"
    if connection.dialect.name == "sqlite":
        yield Finding(Level.OK, "database", text)
        return
    if version < (OLDEST_POSTGRESQL,):
        text = f"{text}; {OLDEST_POSTGRESQL} or newer is required"
        yield Finding(Level.FAIL, "database", text, "pg_upgradecluster --help")
        return
    used, used_here, server_limit, database_limit = connection.exec_driver_sql(_CONNECTION_COUNTS).one()
    if 0 <= database_limit < server_limit:
        used, server_limit = used_here, database_limit
    text = f"{text}, {used} of {server_limit} connections in use"
    if server_limit - used < _NEEDED_CONNECTIONS:
        text = f"{text}; a service needs {_NEEDED_CONNECTIONS}"
        yield Finding(Level.WARN, "database", text, 'psql -c "SELECT * FROM pg_stat_activity"')
    else:
        yield Finding(Level.OK, "database", text)


def check_schema(revision: str | None) -> Iterator[Finding]:
    """Check that this version can use the schema of the database. `revision` is None without tables."""
    newest = list_revisions()[-1]
    if revision == newest:
        yield Finding(Level.OK, ReadinessCode.SCHEMA, f"{revision}, current")
    elif revision is None:
        text = "no tables of Meshfleet; the service creates them at its next start"
        yield Finding(Level.WARN, ReadinessCode.SCHEMA, text, "meshfleet serve")
    elif revision in list_revisions():
        text = f"{revision} is older than that of this Meshfleet, {newest}: upgraded at the next start"
        yield Finding(Level.WARN, ReadinessCode.SCHEMA, text, "meshfleet backup DIRECTORY")
    else:
        text = f"{revision} is of a newer Meshfleet; this one knows {newest}: run the newer version"
        yield Finding(Level.FAIL, ReadinessCode.SCHEMA, text, "meshfleet --version")


def check_disk(connection: Connection, settings: Settings, *, now: int) -> Iterator[Finding]:
    """Check the free disk space, and when it will be used up."""
    status = assess_storage(connection, settings, now=now)
    yield judge_disk(status, f"du -xh --max-depth=1 {shlex.quote(str(settings.data.absolute()))}", now=now)


def judge_disk(status: StorageStatus, command: str, *, now: int) -> Finding:
    """Return the finding for a measurement of the disk.

    `command`, the next command of a warning, shows what uses the disk.
    """
    free, growth = status.measurement.free, status.forecast.total_growth
    used = format_bytes(sum(status.measurement.sizes.values()))
    rate = "growth not known yet" if growth is None else f"{format_bytes(growth)} a day"
    if free is None:
        return Finding(Level.OK, "disk", f"{used} of data; {rate}; the disk of the server is not known")
    text = f"{used} of data, {format_bytes(free)} free; {rate}"
    if free < _FULL_BYTES:
        return Finding(Level.FAIL, "disk", f"{ReadinessCode.DISK_FULL}: {text}", command)
    if status.forecast.full_at is None:
        return Finding(Level.OK, "disk", text)
    days = math.floor((status.forecast.full_at - now) / DAY_MS)
    level = Level.FAIL if days < _FAIL_DAYS else Level.WARN if days < _WARN_DAYS else Level.OK
    return Finding(level, "disk", f"{text}: full in {days} days", None if level is Level.OK else command)
