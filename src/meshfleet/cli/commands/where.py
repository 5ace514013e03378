"""`meshfleet where`: print where a device is."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.arguments import PAST_TIME, device_argument
from meshfleet.cli.output import json_option, print_result
from meshfleet.cli.service_access import call_service
from meshfleet.protocol.times import parse_time
from meshfleet.rest.positions import DEFAULT_WINDOW, MAX_WINDOW, MIN_WINDOW

if TYPE_CHECKING:
    from meshfleet.client import Fleet, Position, PositionAnswer
    from meshfleet.protocol.ids import Mac

_MAX_SECONDS: Final = 120
"""Age from which minutes are printed instead of seconds."""


@click.command()
@device_argument
@click.option(
    "--at", type=PAST_TIME, help="Print where it was at this time: ISO 8601, or an age such as 15m or 7d."
)
@click.option(
    "--window",
    type=click.IntRange(MIN_WINDOW, MAX_WINDOW),
    default=DEFAULT_WINDOW,
    show_default=True,
    help="Seconds of readings to use.",
)
@json_option
def where(device: Mac, *, at: datetime | None, window: int, as_json: bool) -> None:
    """Show where a device is on its site, and the radius in which it is nine times out of ten."""
    answer, sentence = call_service(lambda fleet: _locate(fleet, device, at, window))
    print_result(answer, sentence, as_json=as_json)


async def _locate(fleet: Fleet, device: Mac, at: datetime | None, window: int) -> tuple[PositionAnswer, str]:
    """Return the position of a device, and a sentence that says it."""
    answer = await fleet.devices.position(device, at=at, window=window)
    name = (await fleet.devices.show(device)).friendly_name
    if answer.position is None:
        return answer, f"{name}: {answer.reason}"
    site = (await fleet.sites.show(answer.position.site)).name
    return answer, describe_position(name, site, answer.position, None if at else datetime.now(UTC))


def describe_position(name: str, site: str, position: Position, now: datetime | None) -> str:
    """Return a sentence with a position, and its age; without `now`, its time."""
    when = f"at {position.time}" if now is None else _format_age(position.time, now)
    return (
        f"{name} is on floor {position.floor} of {site} at x {position.x:.1f}, y {position.y:.1f}"
        f" (within {position.radius:.1f} m, level {position.level}, {when})"
    )


def _format_age(time: str, now: datetime) -> str:
    seconds = max((now - parse_time(time)).total_seconds(), 0.0)
    return f"{seconds:.0f} s ago" if seconds < _MAX_SECONDS else f"{seconds / 60:.0f} min ago"
