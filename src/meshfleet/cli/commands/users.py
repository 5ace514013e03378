"""`meshfleet users`: people, and what they may do."""

from __future__ import annotations

import secrets
from importlib import import_module
from typing import Final

import click

from meshfleet.cli.arguments import ROLE, USERNAME
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import Column, json_option, print_list, print_result
from meshfleet.cli.service_access import call_service
from meshfleet.rest import Role, parse_password

_RESET_PASSWORD: Final = "reset-password"  # noqa: S105 # the name of a command
"""It works on the database, and is loaded when it is used: the others need no service on this machine."""

_PASSWORD_BYTES: Final = 15
"""Of chance in a new password."""

_COLUMNS: Final = (
    Column("name", lambda each: each.username, no_wrap=True),
    Column("role", lambda each: each.role),
    Column("since", lambda each: each.created_at),
    Column("last login", lambda each: each.last_login_at),
)

name_argument = click.argument("name", type=USERNAME)


class _UsersGroup(click.Group):
    """The commands here, and the one that is loaded when it is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All there are."""
        return sorted([*super().list_commands(ctx), _RESET_PASSWORD])

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Find one of them."""
        if name != _RESET_PASSWORD:
            return super().get_command(ctx, name)
        command: click.Command = import_module("meshfleet.cli.commands.reset_password").reset_password
        return command


@click.group(cls=_UsersGroup)
def users() -> None:
    """Let people in, and help those who cannot log in."""


@users.command("list")
@json_option
def list_users(*, as_json: bool) -> None:
    """List all people."""
    call_service(lambda fleet: print_list(fleet.users.list(), _COLUMNS, as_json=as_json))


@users.command()
@name_argument
@click.option("--role", type=ROLE, required=True, help="What they may do.")
@click.option("--ask", is_flag=True, help="Ask for the password, instead of making one up.")
@json_option
def add(name: str, role: str, *, ask: bool, as_json: bool) -> None:
    """Let the person NAME in, with a password that is shown this once."""
    password = _prompt_password() if ask else secrets.token_urlsafe(_PASSWORD_BYTES)
    added = call_service(lambda fleet: fleet.users.add(name, password, Role(role)))
    shown = "the password that you gave" if ask else f"the password {password} (shown this once)"
    told = {"username": added.username, "role": added.role, "password": None if ask else password}
    print_result(told, f"{added.username} logs in with {shown}", as_json=as_json)


@users.command()
@name_argument
@click.argument("role", type=ROLE)
@json_option
def role(name: str, role: str, *, as_json: bool) -> None:
    """Let the person NAME do what ROLE says from now on."""
    changed = call_service(lambda fleet: fleet.users.change(name, role=Role(role)))
    print_result(changed, f"{changed.username} is {changed.role} from now on.", as_json=as_json)


@users.command()
@name_argument
@json_option
def remove(name: str, *, as_json: bool) -> None:
    """Let the person NAME in no more."""
    call_service(lambda fleet: fleet.users.remove(name))
    print_result({"username": name, "removed": True}, f"{name} does not get in any more.", as_json=as_json)


def _prompt_password() -> str:
    return parse_password(
        click.prompt("Password", type=TEXT, hide_input=True, confirmation_prompt=True, err=True)
    )
