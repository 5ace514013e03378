"""`meshfleet keys`: API keys, with which programs come."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.arguments import ROLE, TIME
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import Column, json_option, print_list, print_result
from meshfleet.cli.service_access import call_service
from meshfleet.rest import Role

if TYPE_CHECKING:
    from datetime import datetime

_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("role", lambda each: each.role),
    Column("by", lambda each: each.created_by),
    Column("since", lambda each: each.created_at),
    Column("until", lambda each: each.expires_at),
)


@click.group()
def keys() -> None:
    """Let programs in, by API keys."""


@keys.command("list")
@json_option
def list_keys(*, as_json: bool) -> None:
    """List all API keys, without what opens doors."""
    call_service(lambda fleet: print_list(fleet.api_keys.list(), _COLUMNS, as_json=as_json))


@keys.command()
@click.argument("name", type=TEXT)
@click.option("--role", type=ROLE, required=True, help="What the program may do.")
@click.option("--expires", type=TIME, help="When it ends to hold, such as 2027-01-01T00:00:00Z.")
@json_option
def add(name: str, role: str, expires: datetime | None, *, as_json: bool) -> None:
    """Issue an API key for the program NAME; it is shown this once."""
    issued = call_service(lambda fleet: fleet.api_keys.issue(name, Role(role), expires_at=expires))
    print_result(issued, f"{issued.name} comes with the key {issued.key} (shown this once)", as_json=as_json)


@keys.command(context_settings={"ignore_unknown_options": True})  # ids of old keys may begin with a hyphen
@click.argument("key_id", metavar="ID", type=TEXT)
@json_option
def remove(key_id: str, *, as_json: bool) -> None:
    """Revoke the API key with this ID: it does not hold any more."""
    call_service(lambda fleet: fleet.api_keys.revoke(key_id))
    print_result({"id": key_id, "removed": True}, f"{key_id} does not hold any more.", as_json=as_json)
