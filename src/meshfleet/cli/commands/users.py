"""`meshfleet users`: manage user accounts and their roles."""

from __future__ import annotations

import secrets
from importlib import import_module
from typing import Final

import click

from meshfleet.cli.arguments import ROLE, USERNAME
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import Column, json_option, print_list, print_result
from meshfleet.cli.service_access import call_service
from meshfleet.rest.accounts import Role
from meshfleet.rest.inputs import parse_password

_RESET_PASSWORD: Final = "reset-password"  # noqa: S105 # the name of a command
"""Name of the command that is imported only on use, because it needs the modules of the database."""

_PASSWORD_BYTES: Final = 15
"""Number of random bytes in a generated password."""

_COLUMNS: Final = (
    Column("name", lambda each: each.username, no_wrap=True),
    Column("role", lambda each: each.role),
    Column("since", lambda each: each.created_at),
    Column("last login", lambda each: each.last_login_at),
)

name_argument = click.argument("name", type=USERNAME)


class _UsersGroup(click.Group):
    """Command group `users`, which imports the command `reset-password` only on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands."""
        return sorted([*super().list_commands(ctx), _RESET_PASSWORD])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Return the command with this name, or None if the name is unknown."""
        if name != _RESET_PASSWORD:
            return super().get_command(ctx, name)
        command: click.Command = import_module("meshfleet.cli.commands.reset_password").reset_password
        return command


@click.group(cls=_UsersGroup)
def users() -> None:
    """Manage user accounts and reset passwords."""


@users.command("list")
@json_option
def list_users(*, as_json: bool) -> None:
    """List all user accounts."""
    call_service(lambda fleet: print_list(fleet.users.list(), _COLUMNS, as_json=as_json))


@users.command()
@name_argument
@click.option("--role", type=ROLE, required=True, help="Role of the new user.")
@click.option(
    "--ask", is_flag=True, help="Prompt for the password of the new user instead of generating a password."
)
@json_option
def add(name: str, role: str, *, ask: bool, as_json: bool) -> None:
    """Create the user NAME with a generated password, which is shown only once."""
    password = _prompt_password() if ask else secrets.token_urlsafe(_PASSWORD_BYTES)
    added = call_service(lambda fleet: fleet.users.add(name, password, Role(role)))
    credentials = "the password you entered" if ask else f"the password {password} (shown only once)"
    result = {"username": added.username, "role": added.role, "password": None if ask else password}
    print_result(result, f"{added.username} can log in with {credentials}", as_json=as_json)


@users.command()
@name_argument
@click.argument("role", type=ROLE)
@json_option
def role(name: str, role: str, *, as_json: bool) -> None:
    """Change the role of the user NAME to ROLE."""
    changed = call_service(lambda fleet: fleet.users.change(name, role=Role(role)))
    print_result(changed, f"{changed.username} now has the role {changed.role}.", as_json=as_json)


@users.command()
@name_argument
@json_option
def remove(name: str, *, as_json: bool) -> None:
    """Delete the account of the user NAME, who can then no longer log in."""
    call_service(lambda fleet: fleet.users.remove(name))
    print_result({"username": name, "removed": True}, f"{name} is deleted.", as_json=as_json)


def _prompt_password() -> str:
    return parse_password(
        click.prompt("Password", type=TEXT, hide_input=True, confirmation_prompt=True, err=True)
    )
