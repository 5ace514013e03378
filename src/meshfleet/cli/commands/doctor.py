"""`meshfleet doctor`: check an installation, and say what to do."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from meshfleet.cli.findings import build_settings_findings, print_findings
from meshfleet.cli.output import json_option
from meshfleet.cli.settings_options import (
    DATA_SETTINGS,
    list_explicit_settings,
    load_valid_settings,
    settings_options,
)
from meshfleet.errors.startup import WrongSettings
from meshfleet.service.clock import now
from meshfleet.service.doctor.examination import check_database, examine, guard_check
from meshfleet.service.doctor.finding import Finding, Level
from meshfleet.settings import find_settings_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@click.command
@settings_options("data", "database")
@click.option(
    "--deep",
    is_flag=True,
    help="Also read all samples, firmware images and plans of floors, and the whole database.",
)
@json_option
def doctor(*, config: Path | None, deep: bool, as_json: bool, **flags: str | None) -> None:
    """Check an installation: settings, data, disk, database, certificate, ports, backups and more.

    Each line begins with ok, warn or fail. A warn or fail line is followed by the command to run next. The
    exit code is 1 if a check fails. The service may be running. Nothing is changed.
    """
    print_findings(_list_findings(config, flags, is_deep=deep), as_json=as_json)


def _list_findings(config: Path | None, flags: dict[str, str | None], *, is_deep: bool) -> Iterator[Finding]:
    file = find_settings_file(config)
    try:
        settings = load_valid_settings(config, flags)
    except WrongSettings as exc:
        yield from build_settings_findings(exc)
        with suppress(WrongSettings):
            settings = load_valid_settings(config, flags, DATA_SETTINGS)
            yield from guard_check("database", partial(check_database, settings, now, is_deep=is_deep))
        return
    place = "no settings file" if file is None else str(file.absolute())
    yield Finding(Level.OK, "settings", f"{place}, {len(list_explicit_settings(config, flags))} set")
    yield from examine(settings, now, is_deep=is_deep)
