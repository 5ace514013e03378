"""Command-line arguments that several commands share: devices, identifiers, labels, times, samples."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, get_args

import click

from meshfleet.cli.commands.identifiers import find_similar_identifier
from meshfleet.cli.completers import (
    complete_devices,
    complete_firmware,
    complete_gateways,
    complete_identifiers,
    complete_jobs,
    complete_labels,
    complete_sites,
)
from meshfleet.cli.options import TextParamType, parse_any_mac
from meshfleet.client.arguments import normalize_identifier
from meshfleet.client.rest.samples import SampleKind
from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedText, MalformedTime
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import is_identifier
from meshfleet.protocol.times import parse_time
from meshfleet.rest.accounts import Role
from meshfleet.rest.inputs import parse_label, parse_username

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.protocol.ids import Mac

_AGE = re.compile(r"([0-9]{1,6})([smhd])")
_FIRMWARE = re.compile("fw-[0-9a-f]{16}")
_SITE = re.compile("site-[0-9a-f]{16}")
_ALARM = re.compile("(?:alarm-)?([1-9][0-9]{0,17})")
_CHANNEL = re.compile("(?:channel-)?([1-9][0-9]{0,17})")
_SILENCE = re.compile("(?:silence-)?([1-9][0-9]{0,17})")
_DELIVERY = re.compile("(?:delivery-)?([1-9][0-9]{0,17})")
_JOB = re.compile("(?:job-)?([1-9][0-9]{0,17})")
_AGE_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def _parse_device(text: str) -> Mac:
    """Parse a device id (`bmac-…`), or a MAC as printed on a device. Return the MAC."""
    return parse_any_mac(text.lower().removeprefix("bmac-"))


def _parse_past_time(text: str) -> datetime:
    found = _AGE.fullmatch(text)
    if not found:
        return parse_time(text)
    try:
        return datetime.now(UTC) - timedelta(**{_AGE_UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise MalformedTime("time", f"{text} is too long ago") from None


def _parse_duration(text: str) -> timedelta:
    found = _AGE.fullmatch(text)
    if not found:
        raise MalformedTime("duration", f"{quote_input(text)} is not a duration such as 90s, 15m, 2h or 7d")
    return timedelta(**{_AGE_UNITS[found[2]]: int(found[1])})


def _parse_firmware_id(text: str) -> str:
    if not _FIRMWARE.fullmatch(text.lower()):
        raise MalformedText(
            "firmware", f"{quote_input(text)} is not a firmware id such as fw-0123456789abcdef"
        )
    return text.lower()


def _parse_site_id(text: str) -> str:
    if not _SITE.fullmatch(text.lower()):
        raise MalformedText("site", f"{quote_input(text)} is not a site id such as site-0123456789abcdef")
    return text.lower()


def _parse_job_id(text: str) -> str:
    """Parse a job id such as `job-12`, or only the number, such as `12`. Return the job id."""
    found = _JOB.fullmatch(text.lower())
    if not found:
        raise MalformedText("job", f"{quote_input(text)} is not a job id such as job-12")
    return f"job-{found[1]}"


def _parse_alarm_id(text: str) -> str:
    """Parse an alarm id such as `alarm-12`, or only the number, such as `12`. Return the alarm id."""
    found = _ALARM.fullmatch(text.lower())
    if not found:
        raise MalformedText("alarm", f"{quote_input(text)} is not an alarm id such as alarm-12")
    return f"alarm-{found[1]}"


def _parse_channel_id(text: str) -> str:
    """Parse a channel id such as `channel-3`, or only the number, such as `3`. Return the channel id."""
    found = _CHANNEL.fullmatch(text.lower())
    if not found:
        raise MalformedText("channel", f"{quote_input(text)} is not a channel id such as channel-3")
    return f"channel-{found[1]}"


def _parse_silence_id(text: str) -> str:
    """Parse a silence id such as `silence-3`, or only the number, such as `3`. Return the silence id."""
    found = _SILENCE.fullmatch(text.lower())
    if not found:
        raise MalformedText("silence", f"{quote_input(text)} is not a silence id such as silence-3")
    return f"silence-{found[1]}"


def _parse_delivery_id(text: str) -> str:
    """Parse the id of a message such as `delivery-5`, or only the number. Return the id."""
    found = _DELIVERY.fullmatch(text.lower())
    if not found:
        raise MalformedText("delivery", f"{quote_input(text)} is not the id of a message such as delivery-5")
    return f"delivery-{found[1]}"


class _IdentifierParamType(TextParamType):
    """Parameter type for an identifier of a property, measurement or event: its hex id or its name.

    A name that is not in the catalogue is accepted, because a gateway may know more identifiers. If the
    catalogue has a similar name, a hint is printed to standard error.
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse an identifier, and print a hint if its name looks misspelled."""
        found = super().convert(value, param, ctx)
        is_known = is_identifier(found) or BUILTIN_CATALOGUE.find(found) is not None
        if not is_known and (similar := find_similar_identifier(found, BUILTIN_CATALOGUE)) is not None:
            click.echo(f"Hint: {found} is not in the catalogue; did you mean {similar}?", err=True)
        return found


ALARM = TextParamType("alarm", _parse_alarm_id)
CHANNEL = TextParamType("channel", _parse_channel_id)
SILENCE = TextParamType("silence", _parse_silence_id)
DELIVERY = TextParamType("delivery", _parse_delivery_id)
DEVICE = TextParamType("device", _parse_device)
DURATION = TextParamType("duration", _parse_duration)
"""Parameter type for a duration such as 90s, 15m, 2h or 7d."""
FIRMWARE = TextParamType("firmware", _parse_firmware_id)
IDENTIFIER = _IdentifierParamType("identifier", normalize_identifier)
JOB = TextParamType("job", _parse_job_id)
LABEL = TextParamType("label", parse_label)
SITE = TextParamType("site", _parse_site_id)
TIME = TextParamType("time", parse_time)
"""Parameter type for an ISO 8601 time, which is in UTC unless it has a UTC offset."""
TIME = TextParamType("time", parse_time)
PAST_TIME = TextParamType("time", _parse_past_time)
"""Parameter type for an ISO 8601 time, or an age such as 90s, 15m, 2h or 7d before now."""
USERNAME = TextParamType("username", parse_username)
ROLE = click.Choice([each.value for each in Role])

device_argument = click.argument("device", type=DEVICE, shell_complete=complete_devices)
gateway_argument = click.argument("gateway", type=DEVICE, shell_complete=complete_gateways)
firmware_argument = click.argument(
    "firmware_id", metavar="FIRMWARE", type=FIRMWARE, shell_complete=complete_firmware
)
job_argument = click.argument("job", type=JOB, shell_complete=complete_jobs)
site_argument = click.argument("site", type=SITE, shell_complete=complete_sites)
identifier_argument = click.argument("identifier", type=IDENTIFIER, shell_complete=complete_identifiers)
label_argument = click.argument("label", type=LABEL, shell_complete=complete_labels)


def sample_filter_options(verb: str) -> Callable[[Any], Any]:
    """Return a decorator that adds the options `--kind` and `--identifier` to a command for samples.

    The command receives `kinds` and `identifier`. `verb` begins the help of the options, such as "Show".
    """

    def decorate(command: Any) -> Any:
        kind = click.option(
            "--kind",
            "kinds",
            type=click.Choice(get_args(SampleKind)),
            multiple=True,
            help=f"{verb} only samples of this kind; repeatable.",
        )
        identifier = click.option(
            "--identifier",
            type=IDENTIFIER,
            shell_complete=complete_identifiers,
            help=f"{verb} only samples of this property, measurement or event (name or hex id).",
        )
        return kind(identifier(command))

    return decorate
