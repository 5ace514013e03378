"""Options that several commands take, checked before anything starts."""

from __future__ import annotations

from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedCatalogue, MalformedMac, MalformedText, Mistake, WireError
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE, IdentifierCatalogue
from meshfleet.protocol.ids import EVERY_GATEWAY, Mac, Version, parse_mac
from meshfleet.protocol.topics import TopicCodec

if TYPE_CHECKING:
    from collections.abc import Callable


# The option `--table`: identifiers of the user's own, beside the built-in ones.


def _load_catalogue(_ctx: click.Context, _param: click.Parameter, path: Path | None) -> IdentifierCatalogue:
    if path is None:
        return BUILTIN_CATALOGUE
    try:
        return BUILTIN_CATALOGUE.extended(_read_utf8(path), str(path))
    except MalformedCatalogue as exc:
        # Each mistake at the beginning of a line, where editors look for file and line.
        raise click.ClickException(f"the table cannot be used:\n{exc}") from exc


def _read_utf8(path: Path) -> str:
    raw = path.read_bytes()
    try:
        return raw.decode("utf-8-sig")  # some editors put a mark in front
    except UnicodeDecodeError as exc:
        line = raw[: exc.start].count(b"\n") + 1
        raise MalformedCatalogue(str(path), [Mistake(line, "is not UTF-8")]) from exc


def table_option(command: Any) -> Any:
    """Give a command the option `--table`; it gets the catalogue as `catalogue`."""
    return click.option(
        "--table",
        "catalogue",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        callback=_load_catalogue,
        help="A table of your own identifiers, added to the built-in ones.",
    )(command)


class TextParamType(click.ParamType[Any]):
    """A text with a meaning, read by one of our parsers."""

    def __init__(self, name: str, parse: Callable[[str], object]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it, or say what is wrong with it."""
        if not isinstance(value, str):
            return value
        try:
            return self._parse(value)
        except WireError as exc:
            self.fail(exc.reason, param, ctx)


class NumberParamType(click.FloatRange):
    """A number within limits. NaN is within none, but click lets it pass."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it."""
        number = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


def parse_any_mac(text: str) -> Mac:
    """Labels print MACs in other ways than topics do."""
    try:
        mac = parse_mac(text.replace(":", "").replace("-", "").lower())
    except MalformedMac:
        raise MalformedMac("mac", f"{quote_input(text)} is not 12 hex digits") from None
    if mac == EVERY_GATEWAY:
        raise MalformedMac("mac", f"{mac} stands for all gateways")
    return mac


def parse_text(text: str, field: str = "text") -> str:
    """Bytes of a command line or a variable that are no text come to us as halves of characters."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MalformedText(field, "is not Unicode text") from None  # the cause would hold what may be secret
    return text


def _parse_prefix(text: str) -> str:
    TopicCodec(text)
    return text


TEXT = TextParamType("text", parse_text)
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
    help="mqtt://[user:password@]host[:port]; also mqtts://, ws:// and wss://.",
)
tls_ca_option = click.option(
    "--tls-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar=TLS_CA_VARIABLE,
    show_envvar=True,
    help="Trust the authorities in this file, instead of the system's.",
)
speed_option = click.option(
    "--speed",
    type=NumberParamType(0.001, 100_000),
    default=1.0,
    show_default=True,
    help="Let the simulated world run so many times faster; times in reports stay those of the wall.",
)
seed_option = click.option("--seed", default=1, show_default=True, help="The same seed gives the same world.")
