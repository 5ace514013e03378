"""What people name on the command line: devices, identifiers, labels, times."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import click

from meshfleet.cli.options import Text, read_mac
from meshfleet.cli.remote.completing import (
    complete_devices,
    complete_gateways,
    complete_identifiers,
    complete_labels,
)
from meshfleet.client.names import identifier_of
from meshfleet.errors import MalformedTime
from meshfleet.wire.rest import Role, parse_label, parse_username
from meshfleet.wire.times import parse_time

if TYPE_CHECKING:
    from meshfleet.wire.ids import Mac

_AGO = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _device(text: str) -> Mac:
    """As labels print it, or as REST names it."""
    return read_mac(text.lower().removeprefix("bmac-"))


def _past(text: str) -> datetime:
    found = _AGO.fullmatch(text)
    if not found:
        return parse_time(text)
    try:
        return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise MalformedTime("time", f"{text} is longer ago than there are dates") from None


DEVICE = Text("device", _device)
IDENTIFIER = Text("identifier", identifier_of)
LABEL = Text("label", parse_label)
TIME = Text("time", parse_time)
"""As ISO 8601 has it, UTC unless it says otherwise."""
PAST = Text("time", _past)
"""The same, or so long ago: 90s, 15m, 2h, 7d."""
USERNAME = Text("username", parse_username)
ROLE = click.Choice([each.value for each in Role])

device_argument = click.argument("device", type=DEVICE, shell_complete=complete_devices)
gateway_argument = click.argument("gateway", type=DEVICE, shell_complete=complete_gateways)
identifier_argument = click.argument("identifier", type=IDENTIFIER, shell_complete=complete_identifiers)
label_argument = click.argument("label", type=LABEL, shell_complete=complete_labels)
