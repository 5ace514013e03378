"""What people name on the command line: devices, identifiers, labels, times."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.cli.commands.identifiers import find_similar_identifier
from meshfleet.cli.completers import (
    complete_devices,
    complete_firmware,
    complete_gateways,
    complete_identifiers,
    complete_jobs,
    complete_labels,
)
from meshfleet.cli.options import TextParamType, parse_any_mac
from meshfleet.client.arguments import normalize_identifier
from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedText, MalformedTime
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import is_identifier
from meshfleet.protocol.times import parse_time
from meshfleet.rest import Role, parse_label, parse_username

if TYPE_CHECKING:
    from meshfleet.protocol.ids import Mac

_AGO = re.compile(r"([0-9]{1,6})([smhd])")
_FIRMWARE = re.compile("fw-[0-9a-f]{16}")
_JOB = re.compile("(?:job-)?([1-9][0-9]{0,17})")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _parse_device(text: str) -> Mac:
    """As labels print it, or as REST names it."""
    return parse_any_mac(text.lower().removeprefix("bmac-"))


def _parse_past_time(text: str) -> datetime:
    found = _AGO.fullmatch(text)
    if not found:
        return parse_time(text)
    try:
        return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise MalformedTime("time", f"{text} is longer ago than there are dates") from None


def _parse_firmware_id(text: str) -> str:
    if not _FIRMWARE.fullmatch(text.lower()):
        raise MalformedText(
            "firmware", f"{quote_input(text)} is not the id of firmware, such as fw-0123456789abcdef"
        )
    return text.lower()


def _parse_job_id(text: str) -> str:
    """By its id, or its number alone."""
    found = _JOB.fullmatch(text.lower())
    if not found:
        raise MalformedText("job", f"{quote_input(text)} is not the id of a job, such as job-12")
    return f"job-{found[1]}"


class _IdentifierParamType(TextParamType):
    """An identifier by its id in hex or by its name.

    A name that is not in the catalogue is no mistake, for a gateway may know more. But if it looks like one
    that is, a hint says so.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        found = super().convert(value, param, ctx)
        is_known = is_identifier(found) or BUILTIN_CATALOGUE.find(found) is not None
        if not is_known and (meant := find_similar_identifier(found, BUILTIN_CATALOGUE)) is not None:
            click.echo(f"Hint: {found} is not in the catalogue; did you mean {meant}?", err=True)
        return found


DEVICE = TextParamType("device", _parse_device)
FIRMWARE = TextParamType("firmware", _parse_firmware_id)
IDENTIFIER = _IdentifierParamType("identifier", normalize_identifier)
JOB = TextParamType("job", _parse_job_id)
LABEL = TextParamType("label", parse_label)
TIME = TextParamType("time", parse_time)
"""As ISO 8601 has it, UTC unless it says otherwise."""
PAST_TIME = TextParamType("time", _parse_past_time)
"""The same, or so long ago: 90s, 15m, 2h, 7d."""
USERNAME = TextParamType("username", parse_username)
ROLE = click.Choice([each.value for each in Role])

device_argument = click.argument("device", type=DEVICE, shell_complete=complete_devices)
gateway_argument = click.argument("gateway", type=DEVICE, shell_complete=complete_gateways)
firmware_argument = click.argument(
    "firmware_id", metavar="FIRMWARE", type=FIRMWARE, shell_complete=complete_firmware
)
job_argument = click.argument("job", type=JOB, shell_complete=complete_jobs)
identifier_argument = click.argument("identifier", type=IDENTIFIER, shell_complete=complete_identifiers)
label_argument = click.argument("label", type=LABEL, shell_complete=complete_labels)
