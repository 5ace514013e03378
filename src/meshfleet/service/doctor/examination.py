"""Runs all checks of an installation, one after another. A check that fails becomes a finding."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from sqlalchemy.exc import DBAPIError

from meshfleet.db import open_read_only
from meshfleet.db.driver_errors import is_sqlite_damaged
from meshfleet.db.schema import list_revisions, load_revision
from meshfleet.service.doctor import certificate, contents, database, deep, machine, network
from meshfleet.service.doctor.finding import RESTORE_COMMAND, Finding, Level, describe_error
from meshfleet.service.doctor.process import find_running_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import Connection

    from meshfleet.service.clock import Now
    from meshfleet.settings import Settings


def examine(settings: Settings, now: Now, *, is_deep: bool) -> Iterator[Finding]:
    """Yield the findings about an installation with valid settings. Nothing is changed.

    If it is unknown whether a service is running, the checks that depend on this are left out.
    """
    try:
        service = find_running_service(settings.data)
    except OSError as exc:
        text = f"the lock of {settings.data.absolute()} cannot be read: {describe_error(exc)}"
        yield Finding(Level.FAIL, "data", text, "sudo meshfleet doctor")
    else:
        yield from guard_check("data", partial(machine.check_data_folder, settings, service))
        yield from guard_check("descriptors", partial(machine.check_open_file_limit, settings, service))
        yield from guard_check("listeners", partial(network.check_listeners, settings, service))
        yield from guard_check("public-url", partial(network.check_public_url, settings, service))
    yield from guard_check("certificate", partial(certificate.check_certificate, settings, now=now()))
    yield from guard_check("clock", lambda: machine.check_clock(machine.read_clock_state()))
    yield from guard_check("broker", partial(network.check_broker, settings))
    yield from guard_check("influx", partial(network.check_influx, settings))
    yield from guard_check("homeassistant", partial(network.check_homeassistant, settings))
    yield from guard_check("database", partial(check_database, settings, now, is_deep=is_deep))


def check_database(settings: Settings, now: Now, *, is_deep: bool) -> Iterator[Finding]:
    """Check the database and what it contains; with `is_deep`, also read all samples, images and plans."""
    if settings.database == "sqlite" and not (settings.data / "meshfleet.sqlite").exists():
        yield database.build_missing_finding(settings)
        return
    try:
        with open_read_only(settings.database, settings.data) as connection:
            revision = load_revision(connection)  # first: it fails if the database cannot be read
            yield from database.check_server(connection, settings)
            yield from database.check_schema(revision)
            if revision == list_revisions()[-1]:  # otherwise tables may be missing
                yield from _check_contents(connection, settings, now(), is_deep=is_deep)
    except DBAPIError as exc:
        yield database.build_unusable_finding(settings, exc)


def _check_contents(
    connection: Connection, settings: Settings, now: int, *, is_deep: bool
) -> Iterator[Finding]:
    checks: dict[str, Callable[[], Iterable[Finding]]] = {
        "disk": partial(database.check_disk, connection, settings, now=now),
        "rejects": partial(contents.check_rejects, connection, now=now),
        "backup": partial(contents.check_backups, connection, now=now),
        "gateways": partial(contents.check_gateways, connection),
    }
    if is_deep and connection.dialect.name == "sqlite":
        checks["integrity"] = partial(deep.check_integrity, connection)
        checks["samples"] = partial(deep.check_segments, connection, settings.data)
    if is_deep:
        checks["images"] = partial(deep.check_images, connection, settings.data)
        checks["plans"] = partial(deep.check_plans, connection)
    for name, check in checks.items():
        yield from guard_check(name, check)
        connection.rollback()  # after an error PostgreSQL refuses all further statements of a transaction


def guard_check(check: str, run: Callable[[], Iterable[Finding]]) -> Iterator[Finding]:
    """Yield the findings of a check. If the check raises an error, yield a finding with the error."""
    try:
        yield from run()
    except Exception as exc:  # noqa: BLE001 # the other checks still run, and an operator wants no traceback
        text = f"could not be checked: {describe_error(exc)}"
        command = "meshfleet doctor --help"
        if is_sqlite_damaged(exc):
            text, command = f"{text}; restore the newest backup", RESTORE_COMMAND
        yield Finding(Level.FAIL, check, text, command)
