"""`meshfleet alarms silences`: maintenance windows in which alarms are not told."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.arguments import DEVICE, DURATION, LABEL, SILENCE, TIME
from meshfleet.cli.completers import complete_devices, complete_gateways
from meshfleet.cli.local_time_zone import find_local_time_zone
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import Column, json_option, print_json, print_result, print_table
from meshfleet.cli.service_access import call_service
from meshfleet.protocol.ids import to_device_id
from meshfleet.protocol.times import format_time
from meshfleet.rest.alarms import AlarmRule
from meshfleet.rest.silences import NewSilence, Repetition, SilenceScope

if TYPE_CHECKING:
    from datetime import timedelta

    from meshfleet.client import Silence
    from meshfleet.protocol.ids import Mac


def _describe_scope(each: Silence) -> list[str]:
    scope = each.scope
    return [*scope.rules, *scope.gateways, *scope.devices, *scope.labels]


def _describe_repetition(each: Silence) -> str:
    return "" if each.repeat is None else f"{each.repeat} until {each.repeat_until} ({each.time_zone})"


_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("state", lambda each: each.state, no_wrap=True),
    Column("from", lambda each: each.starts_at, no_wrap=True),
    Column("until", lambda each: each.until, no_wrap=True),
    Column("repeated", _describe_repetition),
    Column("for", _describe_scope),
    Column("alarms", lambda each: each.alarms),
    Column("note", lambda each: each.note),
)


@click.group()
def silences() -> None:
    """Plan maintenance windows, in which alarms are listed but not told."""


@silences.command("list")
@json_option
def list_silences(*, as_json: bool) -> None:
    """List all silences by their beginning, also those that ended in the last 30 days."""
    found = call_service(lambda fleet: fleet.alarms.silences())
    if as_json:
        for each in found:
            print_json(each)
    else:
        print_table(_COLUMNS, found)


@silences.command()
@click.option("--from", "start", type=TIME, help="Begin at this time (ISO 8601). Default: now.")
@click.option("--for", "duration", type=DURATION, required=True, help="Length, such as 2h; at most 90d.")
@click.option(
    "--device", "devices", type=DEVICE, multiple=True, shell_complete=complete_devices, help="Device."
)
@click.option(
    "--gateway",
    "gateways",
    type=DEVICE,
    multiple=True,
    shell_complete=complete_gateways,
    help="Gateway, with all devices behind it.",
)
@click.option("--label", "labels", type=LABEL, multiple=True, help="Label of devices or of their gateway.")
@click.option(
    "--rule", "rules", type=click.Choice([str(each) for each in AlarmRule]), multiple=True, help="Rule."
)
@click.option(
    "--repeat", type=click.Choice([str(each) for each in Repetition]), help="Repeat it at this time of day."
)
@click.option("--repeat-until", type=TIME, help="Do not repeat it from this time on; required with --repeat.")
@click.option("--time-zone", type=TEXT, help="Time zone of the repetitions. Default: that of this machine.")
@click.option("--note", type=TEXT, default="", help="Reason, which others see.")
@json_option
def add(  # noqa: PLR0913 # the options
    *,
    start: datetime | None,
    duration: timedelta,
    devices: tuple[Mac, ...],
    gateways: tuple[Mac, ...],
    labels: tuple[str, ...],
    rules: tuple[str, ...],
    repeat: str | None,
    repeat_until: datetime | None,
    time_zone: str | None,
    note: str,
    as_json: bool,
) -> None:
    """Create a silence. --device, --gateway, --label and --rule can be repeated; one is required.

    Alarms are silenced if all their members are at these places. A message tells what is still open at the
    end.
    """
    begin = datetime.now(UTC) if start is None else start
    new = NewSilence(
        scope=SilenceScope(
            devices=[to_device_id(each) for each in devices], gateways=gateways, labels=labels, rules=rules
        ),
        starts_at=format_time(begin),
        until=format_time(begin + duration),
        repeat=None if repeat is None else Repetition(repeat),
        repeat_until=None if repeat_until is None else format_time(repeat_until),
        time_zone=time_zone or find_local_time_zone(),
        note=note,
    )
    created = call_service(lambda fleet: fleet.alarms.add_silence(new))
    print_result(created, f"{created.id} lasts until {created.until}.", as_json=as_json)


@silences.command()
@click.argument("silence", type=SILENCE)
@json_option
def delete(silence: str, *, as_json: bool) -> None:
    """Delete a silence. Alarms that it silences are told that they are still open."""
    call_service(lambda fleet: fleet.alarms.delete_silence(silence))
    print_result({"id": silence, "deleted": True}, f"{silence} is deleted.", as_json=as_json)
