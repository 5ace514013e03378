"""`meshfleet samples`: list or export the stored samples of a device."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.cli.arguments import PAST_TIME, device_argument, sample_filter_options
from meshfleet.cli.output import Column, json_option, print_list
from meshfleet.cli.service_access import call_service
from meshfleet.cli.terminal import to_printable
from meshfleet.cli.value_format import format_decoded_value, format_sample_error

if TYPE_CHECKING:
    from meshfleet.client import Fleet
    from meshfleet.protocol.ids import Mac

_DEFAULT_LIMIT: Final = 100

_COLUMNS: Final = (
    Column("time", lambda each: each.time, no_wrap=True),
    Column("kind", lambda each: each.kind),
    Column("identifier", lambda each: each.name or each.identifier),
    Column(
        "value",
        lambda each: (
            format_sample_error(each) or format_decoded_value(each.identifier or each.name, each.value)
        ),
    ),
    Column("raw", lambda each: each.raw),
    Column("seq", lambda each: each.seq),
    Column("gateway", lambda each: each.gateway, no_wrap=True),
)


@click.command()
@device_argument
@sample_filter_options("Show")
@click.option(
    "--from",
    "since",
    type=PAST_TIME,
    help="Show only samples from this time on: 2026-11-15T10:00:00Z, or an age such as 90s, 15m, 2h, 7d.",
)
@click.option(
    "--to",
    "until",
    type=PAST_TIME,
    help="Show only samples before this time: 2026-11-15T10:00:00Z, or an age such as 90s, 15m, 2h, 7d.",
)
@click.option(
    "--limit", type=click.IntRange(1), help=f"Maximum number of samples to list.  [default: {_DEFAULT_LIMIT}]"
)
@click.option("--csv", "as_csv", is_flag=True, help="Print all matching samples as CSV, oldest first.")
@json_option
def samples(device: Mac, *, limit: int | None, as_csv: bool, as_json: bool, **filters: Any) -> None:
    """List the samples of a device, newest first."""
    if as_csv and (as_json or limit):
        raise click.UsageError("--csv cannot be combined with --json or --limit.")
    if as_csv:
        call_service(lambda fleet: _print_csv(fleet, device, filters))
        return
    call_service(
        lambda fleet: print_list(
            fleet.samples.list(device, **filters), _COLUMNS, as_json=as_json, limit=limit or _DEFAULT_LIMIT
        )
    )


async def _print_csv(fleet: Fleet, device: Mac, filters: dict[str, Any]) -> None:
    is_terminal = sys.stdout.isatty()
    async for line in fleet.samples.csv(device, **filters):
        # In a pipe, print bytes: in text, click would remove everything that looks like a color code.
        click.echo(to_printable(line) if is_terminal else line.encode())
