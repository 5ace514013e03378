"""`meshfleet database`: give SQL programs access to samples in PostgreSQL."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.database import open_existing_database
from meshfleet.cli.output import print_result
from meshfleet.cli.settings_options import DATA_SETTINGS, load_command_settings, settings_options
from meshfleet.db.reader_role import check_role_name, grant_reader
from meshfleet.rest.inputs import parse_password
from meshfleet.service.telemetry.identifiers import list_identifier_names

if TYPE_CHECKING:
    from pathlib import Path

_PASSWORD_BYTES: Final = 24
"""Number of random bytes in a generated password."""


@click.group()
def database() -> None:
    """Give SQL programs access to samples in PostgreSQL."""


@database.command("grant-reader")
@click.argument("name")
@settings_options("data", "database")
@click.option("--stdin", "from_stdin", is_flag=True, help="Read the password from the standard input.")
@click.option("--new-password", is_flag=True, help="Set a new password if the role exists already.")
@click.option("--json", "as_json", is_flag=True, help="Print the role and its password as JSON.")
def grant_reader_command(
    name: str,
    *,
    config: Path | None,
    from_stdin: bool,
    new_password: bool,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Let the PostgreSQL role NAME read the view meshfleet_read.sample, and no other data of the service.

    A role that does not exist is created, with a password that is printed once. The password of a role that
    exists is only changed with --new-password or --stdin. The service may be running.
    """
    settings = load_command_settings(config, flags, DATA_SETTINGS)
    if settings.database == "sqlite":
        raise click.UsageError(
            "the database is SQLite, which has no roles; programs can read samples over REST, with an API key"
        )
    check_role_name(name)
    password = _read_password() if from_stdin else secrets.token_urlsafe(_PASSWORD_BYTES)
    with open_existing_database(settings) as opened:
        grant = opened.write_now(
            grant_reader,
            name,
            password,
            change_password=from_stdin or new_password,
            names=list_identifier_names(),
        )
    shown = password if grant.password_changed and not from_stdin else None
    result = {"role": name, "created": grant.is_new, "password": shown, "readsOther": grant.other_table}
    sentence = f"{name} may read meshfleet_read.sample"
    if shown is not None:
        sentence += f" with the password {shown} (shown only once)"
    elif not grant.password_changed:
        sentence += "; its password was not changed"
    print_result(result, sentence if shown is not None else f"{sentence}.", as_json=as_json)
    if grant.other_table is not None:
        click.echo(
            f"Warning: {name} may also read other tables, such as {grant.other_table}. "
            "Use a role without other rights for programs that only need samples.",
            err=True,
        )


def _read_password() -> str:
    """Read a password from the first line of the standard input."""
    return parse_password(sys.stdin.readline().rstrip("\r\n"))
