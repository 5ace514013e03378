"""`meshfleet requests`: what was asked of devices, and what came of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click
from msgspec import UNSET

from meshfleet.cli.options import TEXT
from meshfleet.cli.remote.arguments import device_argument
from meshfleet.cli.remote.printing import Column, facts_of, json_option, print_all, print_facts, print_json
from meshfleet.cli.remote.reaching import talk
from meshfleet.cli.remote.values import any_text, status_text

if TYPE_CHECKING:
    from meshfleet.wire.ids import Mac
    from meshfleet.wire.rest import RequestRecord

_LIMIT: Final = 100


def _came(record: RequestRecord) -> str:
    """What came of a request, in a few words."""
    response = record.response
    if response is None:
        return record.problem.code if record.problem else ""
    if response.status:
        return status_text(response.status)
    identifier = record.request.identifier
    if response.value is UNSET or identifier is UNSET:
        return "ok" if response.version is UNSET else response.version
    return any_text(identifier, response.value)


def _took(record: RequestRecord) -> str:
    took = record.response.response_time if record.response else UNSET
    return "" if took is UNSET else f"{took:g} ms"


_COLUMNS: Final = (
    Column("id", lambda each: each.id, is_whole=True),
    Column("at", lambda each: each.requested_at, is_whole=True),
    Column("by", lambda each: each.by),
    Column("operation", lambda each: each.request.operation),
    Column("identifier", lambda each: each.request.identifier or ""),
    Column("state", lambda each: each.state),
    Column("answer", _came),
    Column("took", _took),
    Column("gateway", lambda each: each.gateway, is_whole=True),
)


class _Requests(click.Group):
    """`requests DEVICE` is short for `requests list DEVICE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put in what may be left out."""
        if args and args[0] not in {*self.commands, *ctx.help_option_names}:
            args = ["list", *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Requests, subcommand_metavar="DEVICE | show ID")
def requests() -> None:
    """Tell which requests were sent to a DEVICE, or all about one of them."""


@requests.command("list")
@device_argument
@click.option("--limit", type=click.IntRange(1), default=_LIMIT, show_default=True)
@json_option
def list_requests(device: Mac, *, limit: int, as_json: bool) -> None:
    """List the requests to a device, the newest first."""
    talk(lambda fleet: print_all(fleet.requests.list(device), _COLUMNS, as_json=as_json, limit=limit))


@requests.command()
@click.argument("request_id", metavar="ID", type=TEXT)
@json_option
def show(request_id: str, *, as_json: bool) -> None:
    """Tell all about a request, and its answer."""
    found = talk(lambda fleet: fleet.requests.show(request_id))
    if as_json:
        print_json(found)
    else:
        print_facts(facts_of(found))
