"""Command-line options and parameter types that several commands share."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import (
    LineFault,
    MalformedCatalogue,
    MalformedInput,
    MalformedMac,
    MalformedText,
)
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, IdentifierCatalogue
from meshfleet.protocol.ids import EVERY_GATEWAY, Mac, Version, parse_mac
from meshfleet.protocol.topics import TopicCodec

if TYPE_CHECKING:
    from collections.abc import Callable


# --- The option --table: user-defined identifiers ---


def _load_catalogue(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> IdentifierCatalogue:
    """Return the built-in catalogue, extended by the definitions in the file of `--table`."""
    if path is None:
        return BUILTIN_CATALOGUE
    try:
        return BUILTIN_CATALOGUE.extended(_read_utf8(path), str(path))
    except MalformedCatalogue as exc:
        # Each fault starts a new line, so that editors can link file and line number.
        raise click.ClickException(f"the identifier table cannot be used:\n{exc}") from exc


def _read_utf8(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")  # some editors write a byte order mark
    except UnicodeDecodeError as exc:
        line = raw[: exc.start].count(b"\n") + 1
        raise MalformedCatalogue(str(path), [LineFault(line, "is not UTF-8")]) from exc


def table_option(command: Any) -> Any:
    """Add the option `--table` to a command, which receives the extended catalogue as `catalogue`."""
    return click.option(
        "--table",
        "catalogue",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=_load_catalogue,
        help="Text file with definitions of your own identifiers (format: docs/identifiers.md).",
    )(command)


class TextParamType(click.ParamType[Any]):
    """Parameter type of an option or argument whose text is converted by a parse function."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a string. If the parse function raises `MalformedInput`, fail with a usage error."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except MalformedInput as exc:
            self.fail(exc.reason, param, ctx)


class NumberParamType(click.FloatRange):
    """Parameter type for a number within a range. Rejects NaN, which click accepts."""

    name = "number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a number within the range. Fail with a usage error for NaN."""
        number = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def parse_any_mac(text: str) -> Mac:
    """Parse a MAC with or without colons or hyphens, in any case, as printed on devices."""
    try:
        mac = parse_mac(text.replace(":", "").replace("-", "").lower())
    except MalformedMac:
        raise MalformedMac("mac", f"{quote_input(text)} is not 12 hex digits") from None
    if mac == EVERY_GATEWAY:
        raise MalformedMac("mac", f"{mac} stands for all gateways, not for one")
    return mac


def parse_text(text: str, field: str = "text") -> str:
    """Return a command-line string unchanged. Raise `MalformedText` if its bytes were not UTF-8.

    Python represents such bytes by surrogates.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedText(
            field, "is not Unicode text"
        ) from None  # the cause would contain the text, which may be secret
    return text


def _parse_prefix(text: str) -> str:
    TopicCodec(text)
    return text


TEXT = TextParamType("text", parse_text)
METERS = NumberParamType(-10_000, 10_000)
"""Parameter type for a coordinate on a site."""

ALLOW_NEGATIVE_NUMBERS: Final = {"ignore_unknown_options": True}
"""Context settings of commands with floors or coordinates as arguments: `-1` is no option."""
MAC = TextParamType("mac", parse_any_mac)
VERSION = TextParamType("version", Version.parse)
ADDRESS = TextParamType("url", BrokerAddress.parse)
PREFIX = TextParamType("prefix", _parse_prefix)


TLS_CA_VARIABLE: Final = "MESHFLEET_TLS_CA"

broker_option = click.option(
    "--broker",
    type=ADDRESS,
    envvar="MESHFLEET_BROKER",
    show_envvar=True,
    help="URL of the MQTT broker: mqtt://[user:password@]host[:port]; also mqtts://, ws:// and wss://.",
)
tls_ca_option = click.option(
    "--tls-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar=TLS_CA_VARIABLE,
    show_envvar=True,
    help="PEM file with the certificate authorities to trust for TLS, instead of the system's.",
)
speed_option = click.option(
    "--speed",
    type=NumberParamType(0.001, 100_000),
    default=1.0,
    show_default=True,
    help="Speed of the simulation relative to real time. Reports carry wall-clock times at any speed.",
)
seed_option = click.option(
    "--seed",
    default=1,
    show_default=True,
    help="Random seed of the simulation; equal seeds give equal simulations.",
)
