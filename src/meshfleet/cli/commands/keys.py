"""`meshfleet keys`: list, create and revoke API keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.arguments import ROLE, TIME
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import Column, json_option, print_list, print_result
from meshfleet.cli.service_access import call_service
from meshfleet.rest.accounts import ApiKeyKind, Role

if TYPE_CHECKING:
    from datetime import datetime

_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("role", lambda each: each.role),
    Column("for", lambda each: each.kind),
    Column("by", lambda each: each.created_by),
    Column("since", lambda each: each.created_at),
    Column("until", lambda each: each.expires_at),
)


@click.group()
def keys() -> None:
    """List, create and revoke API keys for programs."""


@keys.command("list")
@json_option
def list_keys(*, as_json: bool) -> None:
    """List all API keys, without their secret values."""
    call_service(lambda fleet: print_list(fleet.api_keys.list(), _COLUMNS, as_json=as_json))


@keys.command()
@click.argument("name", type=TEXT)
@click.option("--role", type=ROLE, required=True, help="Role of programs that use the API key.")
@click.option(
    "--for",
    "kind",
    type=click.Choice([each.value for each in ApiKeyKind]),
    default=ApiKeyKind.PROGRAM.value,
    show_default=True,
    help="What uses the API key: a program, or Home Assistant at the embedded MQTT broker.",
)
@click.option(
    "--expires",
    type=TIME,
    help="Time when the API key expires, such as 2027-01-01T00:00:00Z. Default: never.",
)
@json_option
def add(name: str, role: str, kind: str, expires: datetime | None, *, as_json: bool) -> None:
    """Create an API key called NAME for a program. The key is shown only once."""
    issued = call_service(lambda fleet: fleet.api_keys.issue(name, Role(role), expires_at=expires, kind=kind))
    print_result(issued, f"The API key of {issued.name} is {issued.key} (shown only once)", as_json=as_json)


@keys.command(context_settings={"ignore_unknown_options": True})  # ids of old keys may begin with a hyphen
@click.argument("key_id", metavar="ID", type=TEXT)
@json_option
def remove(key_id: str, *, as_json: bool) -> None:
    """Revoke the API key with this ID: programs can no longer use the key."""
    call_service(lambda fleet: fleet.api_keys.revoke(key_id))
    print_result({"id": key_id, "removed": True}, f"{key_id} is revoked.", as_json=as_json)
