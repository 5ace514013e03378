"""Options that several commands take, checked before anything starts."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.errors import MalformedMac, MalformedText, WireError, shown
from meshfleet.link import Address
from meshfleet.wire.ids import EVERY_GATEWAY, Mac, Version, parse_mac
from meshfleet.wire.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Callable


class Text(click.ParamType[Any]):
    """A text with a meaning, read by one of our parsers."""

    def __init__(self, name: str, read: Callable[[str], object]) -> None:
        self.name = name
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it, or say what is wrong with it."""
        if not isinstance(value, str):
            return value
        try:
            return self._read(value)
        except WireError as exc:
            self.fail(exc.reason, param, ctx)


class Number(click.FloatRange):
    """A number within limits. NaN is within none, but click lets it pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        number = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def read_mac(text: str) -> Mac:
    """Labels print MACs in other ways than topics do."""
    try:
        mac = parse_mac(text.replace(":", "").replace("-", "").lower())
    except MalformedMac:
        raise MalformedMac("mac", f"{shown(text)} is not 12 hex digits") from None
    if mac == EVERY_GATEWAY:
        raise MalformedMac("mac", f"{mac} stands for all gateways")
    return mac


def read_text(text: str, field: str = "text") -> str:
    """Bytes of a command line or a variable that are no text come to us as halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedText(field, "is not Unicode text") from None  # the cause would hold what may be secret
    return text


def _prefix(text: str) -> str:
    Topics(text)
    return text


TEXT = Text("text", read_text)
MAC = Text("mac", read_mac)
VERSION = Text("version", Version.parse)
ADDRESS = Text("url", Address.parse)
PREFIX = Text("prefix", _prefix)


TLS_CA: Final = "MESHFLEET_TLS_CA"

broker_option = click.option(
    "--broker",
    type=ADDRESS,
    envvar="MESHFLEET_BROKER",
    show_envvar=True,
    help="mqtt://[user:password@]host[:port]; also mqtts://, ws:// and wss://.",
)
authorities_option = click.option(
    "--tls-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar=TLS_CA,
    show_envvar=True,
    help="Trust the authorities in this file, instead of the system's.",
)
speed_option = click.option(
    "--speed",
    type=Number(0.001, 100_000),
    default=1.0,
    show_default=True,
    help="Let the simulated world run so many times faster; times in reports stay those of the wall.",
)
seed_option = click.option("--seed", default=1, show_default=True, help="The same seed gives the same world.")
