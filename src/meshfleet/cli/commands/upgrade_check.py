"""`meshfleet upgrade-check`: say what a new version will change, before it is started."""

from __future__ import annotations

import os
from functools import partial
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from meshfleet.cli.database import check_database_exists
from meshfleet.cli.findings import build_settings_findings, print_findings
from meshfleet.cli.output import json_option
from meshfleet.cli.settings_options import (
    DATA_SETTINGS,
    load_command_settings,
    load_valid_settings,
    settings_options,
)
from meshfleet.errors.startup import WrongSettings
from meshfleet.service.clock import now
from meshfleet.service.doctor.examination import guard_check
from meshfleet.service.doctor.finding import Finding, Level
from meshfleet.service.doctor.upgrade import examine_upgrade, rehearse_upgrade
from meshfleet.settings import list_retired_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.settings import Settings


@click.command
@settings_options("data", "database")
@click.option(
    "--rehearse",
    metavar="DIR",
    type=click.Path(file_okay=False, exists=True, writable=True, path_type=Path),
    help="Also upgrade a copy of all data in a temporary directory inside DIR, and check the copy.",
)
@click.option(
    "--rehearse-database",
    metavar="URL",
    help="Empty PostgreSQL database for the copy; needed if the service uses PostgreSQL.",
)
@json_option
def upgrade_check(
    *,
    config: Path | None,
    rehearse: Path | None,
    rehearse_database: str | None,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Check an upgrade: run this with the new version, before the service is started with it.

    Print the steps that change the database, and what could stop them. A warn or fail line is followed by
    the command to run next. The exit code is 1 if a check fails. The service may be running. Only a rehearsal
    writes anything, and only to the copy.
    """
    settings = load_command_settings(config, flags, DATA_SETTINGS)
    check_database_exists(settings)
    if rehearse is not None and settings.database != "sqlite" and rehearse_database is None:
        raise click.UsageError("a rehearsal with PostgreSQL needs --rehearse-database")
    findings = _list_findings(settings, rehearse, rehearse_database or "sqlite")
    print_findings(chain(_check_settings(config, flags), findings), as_json=as_json)


def _check_settings(config: Path | None, flags: dict[str, str | None]) -> Iterator[Finding]:
    """Yield a finding for each given setting that this version ignores or refuses, with what to do."""
    try:
        load_valid_settings(config, flags)
    except WrongSettings as exc:
        yield from build_settings_findings(exc)
        return
    retired = list_retired_settings(os.environ, file=config)
    for origin, reason in retired:
        yield Finding(Level.WARN, "settings", f"{origin} is ignored: {reason}", "meshfleet serve --help")
    if not retired:
        yield Finding(Level.OK, "settings", "all are known to this version")


def _list_findings(settings: Settings, folder: Path | None, copy_database: str) -> Iterator[Finding]:
    yield from guard_check("upgrade", partial(examine_upgrade, settings))
    if folder is not None:
        with TemporaryDirectory(prefix="meshfleet-rehearsal-", dir=folder) as inside:
            rehearse = partial(rehearse_upgrade, settings, Path(inside), copy_database=copy_database, now=now)
            yield from guard_check("rehearsal", rehearse)
