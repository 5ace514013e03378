"""`meshfleet alarms`: what needs attention, and who takes care of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.cli.arguments import ALARM, DEVICE, DURATION, PAST_TIME
from meshfleet.cli.commands.alarm_rules import rules
from meshfleet.cli.commands.silences import silences
from meshfleet.cli.completers import complete_devices, complete_gateways
from meshfleet.cli.options import TEXT
from meshfleet.cli.output import Column, json_option, limit_option, print_json, print_list, print_result
from meshfleet.cli.service_access import call_service
from meshfleet.cli.terminal import to_printable
from meshfleet.rest.alarms import AlarmRule, AlarmSeverity, AlarmStateFilter

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from datetime import timedelta

    from meshfleet.client import Alarm, Fleet

_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("severity", lambda each: each.severity, no_wrap=True),
    Column("state", lambda each: each.state, no_wrap=True),
    Column("since", lambda each: each.since, no_wrap=True),
    Column("alarm", lambda each: each.sentence),
)

_MEMBER_COLUMNS: Final = (
    Column("id", lambda each: each.id, no_wrap=True),
    Column("name", lambda each: each.name),
    Column("since", lambda each: each.since, no_wrap=True),
    Column("state", lambda each: each.state, no_wrap=True),
)

_EVENT_COLUMNS: Final = (
    Column("time", lambda each: each.time, no_wrap=True),
    Column("event", lambda each: each.kind, no_wrap=True),
    Column("by", lambda each: each.actor),
    Column("detail", lambda each: ", ".join(f"{key} {value}" for key, value in each.detail.items())),
)


@click.group()
def alarms() -> None:
    """Show what needs attention, acknowledge and silence alarms."""


alarms.add_command(rules)


@alarms.command("list")
@click.option(
    "--state",
    "states",
    type=click.Choice([str(each) for each in AlarmStateFilter]),
    multiple=True,
    help="Show alarms in this state; can be repeated. Default: open and acknowledged.",
)
@click.option(
    "--severity",
    "severities",
    type=click.Choice([str(each) for each in AlarmSeverity]),
    multiple=True,
    help="Show alarms of this severity; can be repeated.",
)
@click.option(
    "--rule", type=click.Choice([str(each) for each in AlarmRule]), help="Show alarms of this rule."
)
@click.option("--gateway", type=DEVICE, shell_complete=complete_gateways, help="Show alarms of this gateway.")
@click.option(
    "--device", type=DEVICE, shell_complete=complete_devices, help="Show alarms that this device belongs to."
)
@click.option(
    "--from", "since", type=PAST_TIME, help="Show alarms opened since: ISO 8601, or an age such as 7d."
)
@click.option("--to", "until", type=PAST_TIME, help="Show alarms opened before: ISO 8601, or an age.")
@click.option("--exit-code", is_flag=True, help="End with exit code 1 if a critical alarm is listed.")
@limit_option
@json_option
def list_alarms(*, limit: int | None, exit_code: bool, as_json: bool, **filters: Any) -> None:
    """List alarms, the most severe first, and among these the newest first."""
    severities: list[str] = []

    async def run(fleet: Fleet) -> None:
        await print_list(_note_severities(fleet, filters, severities), _COLUMNS, as_json=as_json, limit=limit)

    call_service(run)
    if exit_code and AlarmSeverity.CRITICAL in severities:
        raise click.exceptions.Exit(1)


@alarms.command()
@click.argument("alarm", type=ALARM)
@json_option
def show(alarm: str, *, as_json: bool) -> None:
    """Show an alarm: what happened, how many devices it affects, and what to do."""
    shown = call_service(lambda fleet: fleet.alarms.show(alarm))
    if as_json:
        print_json(shown)
        return
    for line in _describe_alarm(shown):
        click.echo(to_printable(line))


@alarms.command()
@click.argument("alarm", type=ALARM)
@limit_option
@json_option
def members(alarm: str, *, limit: int | None, as_json: bool) -> None:
    """List the devices or gateways that belong to an alarm now."""
    call_service(
        lambda fleet: print_list(fleet.alarms.members(alarm), _MEMBER_COLUMNS, as_json=as_json, limit=limit)
    )


@alarms.command()
@click.argument("alarm", type=ALARM)
@limit_option
@json_option
def events(alarm: str, *, limit: int | None, as_json: bool) -> None:
    """List what happened to an alarm, the newest event first."""
    call_service(
        lambda fleet: print_list(fleet.alarms.events(alarm), _EVENT_COLUMNS, as_json=as_json, limit=limit)
    )


@alarms.command()
@click.argument("alarm", type=ALARM)
@click.option("--note", type=TEXT, help="Write this note on the alarm.")
@click.option("--undo", is_flag=True, help="Take the acknowledgment back.")
@json_option
def ack(alarm: str, *, note: str | None, undo: bool, as_json: bool) -> None:
    """Acknowledge an alarm: others see that you take care of it. A new member opens it again."""

    async def run(fleet: Fleet) -> Alarm:
        changed = await (fleet.alarms.unacknowledge(alarm) if undo else fleet.alarms.acknowledge(alarm))
        return changed if note is None else await fleet.alarms.add_note(alarm, note)

    changed = call_service(run)
    print_result(changed, f"{changed.id} is {changed.state}: {changed.sentence}", as_json=as_json)


@alarms.command()
@click.argument("alarm", type=ALARM)
@click.option(
    "--for",
    "duration",
    type=DURATION,
    required=True,
    help="How long to send no messages about the alarm, such as 30m, 2h or 7d; at most 90d.",
)
@click.option("--note", type=TEXT, help="Write this note on the alarm, such as the reason.")
@json_option
def silence(alarm: str, *, duration: timedelta, note: str | None, as_json: bool) -> None:
    """Send no messages about an alarm for a while, also not about its end. It stays in the list."""
    changed = call_service(lambda fleet: fleet.alarms.silence(alarm, duration, note=note))
    sentence = f"{changed.id} is silenced until {changed.silenced_until}: {changed.sentence}"
    print_result(changed, sentence, as_json=as_json)


@alarms.command()
@click.argument("alarm", type=ALARM)
@json_option
def unsilence(alarm: str, *, as_json: bool) -> None:
    """End the silence of an alarm."""
    changed = call_service(lambda fleet: fleet.alarms.unsilence(alarm))
    print_result(changed, f"{changed.id} is not silenced: {changed.sentence}", as_json=as_json)


alarms.add_command(silences)


async def _note_severities(
    fleet: Fleet, filters: dict[str, Any], severities: list[str]
) -> AsyncIterator[Alarm]:
    """Yield alarms, and note the severity of each."""
    async for each in fleet.alarms.list(**filters):
        severities.append(each.severity)
        yield each


def _describe_alarm(alarm: Alarm) -> list[str]:
    lines = [
        alarm.sentence,
        f"What to do: {alarm.action.text}",
        f"{alarm.severity}, {alarm.state}, since {alarm.since}, rule {alarm.rule}",
    ]
    if alarm.acknowledged is not None:
        lines.append(f"Acknowledged by {alarm.acknowledged.by} at {alarm.acknowledged.at}")
    if alarm.silenced_until is not None:
        lines.append(f"Silenced by {alarm.silenced_by} until {alarm.silenced_until}")
    return lines
