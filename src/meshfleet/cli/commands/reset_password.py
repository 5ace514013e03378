"""`meshfleet users reset-password`: set a user's password directly in the database."""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Final

import click
import msgspec

from meshfleet.cli.database import check_database_exists, open_existing_database
from meshfleet.cli.settings_options import DATA_SETTINGS, load_command_settings, settings_options
from meshfleet.rest.inputs import parse_password, parse_username
from meshfleet.service.accounts import user_store
from meshfleet.service.accounts.passwords import hash_password
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.clock import now

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.settings import Settings

_PASSWORD_BYTES: Final = 15
"""Number of random bytes in a generated password."""


@click.command("reset-password")
@click.argument("name")
@settings_options("data", "database")
@click.option("--ask", is_flag=True, help="Prompt for the new password instead of generating one.")
@click.option("--json", "as_json", is_flag=True, help="Print the user name and the new password as JSON.")
def reset_password(name: str, *, config: Path | None, ask: bool, as_json: bool, **flags: str | None) -> None:
    """Set a new password for the user NAME, and end all sessions of the user.

    The command changes the database directly, whether the service is running or not.
    """
    settings = load_command_settings(config, flags, DATA_SETTINGS)
    username = parse_username(name)
    check_database_exists(settings)
    password = _prompt_password() if ask else secrets.token_urlsafe(_PASSWORD_BYTES)
    _save_password(settings, username, password)
    if as_json:
        click.echo(msgspec.json.encode({"username": username, "password": None if ask else password}))
    elif ask:
        click.echo(f"{username} can now log in with the new password.")
    else:
        click.echo(f"{username} can now log in with the password {password} (shown only once)")


def _prompt_password() -> str:
    return parse_password(click.prompt("New password", hide_input=True, confirmation_prompt=True, err=True))


def _save_password(settings: Settings, username: str, password: str) -> None:
    hashed = hash_password(password)
    with open_existing_database(settings) as database:
        database.write_now(user_store.update_password, username, hashed, by=COMMAND_LINE, now=now())
