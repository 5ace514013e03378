"""What people name on the command line: devices, identifiers, labels, times."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import click

from meshfleet.cli.options import Text, read_mac
from meshfleet.cli.remote.completing import (
    complete_devices,
    complete_gateways,
    complete_identifiers,
    complete_labels,
)
from meshfleet.wire.ids import Mac, is_identifier, parse_identifier_name
from meshfleet.wire.rest import Role, parse_label, parse_username
from meshfleet.wire.times import parse_time

_AGO = re.compile(r"([0-9]{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _device(text: str) -> Mac:
    """As labels print it, or as REST names it."""
    return read_mac(text.lower().removeprefix("bmac-"))


def _identifier(text: str) -> str:
    """In hex, in either case, or a name."""
    return text.lower() if is_identifier(text.lower()) else parse_identifier_name(text)


def _past(text: str) -> datetime:
    found = _AGO.fullmatch(text)
    if found:
        return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
    return parse_time(text)


DEVICE = Text("device", _device)
IDENTIFIER = Text("identifier", _identifier)
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
