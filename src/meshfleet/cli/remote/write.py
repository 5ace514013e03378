"""`meshfleet write`: a property of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from meshfleet.cli.options import TEXT
from meshfleet.cli.remote.answers import spelt, tell_answer
from meshfleet.cli.remote.arguments import device_argument, identifier_argument
from meshfleet.cli.remote.asking import Way, access, access_options, send, way_options
from meshfleet.cli.remote.printing import json_option
from meshfleet.errors import MalformedHex
from meshfleet.wire.hextext import to_bytes
from meshfleet.wire.ids import is_identifier

_ALL_VALUES: Final = "meshfleet.write.all-values"

if TYPE_CHECKING:
    from meshfleet.wire.fields import Json
    from meshfleet.wire.ids import Mac


class _Write(click.Command):
    """A negative number is a value, although it begins like an option; a text only behind `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Remember whether there is a `--`, of which nothing is left."""
        ctx.meta[_ALL_VALUES] = "--" in args
        return super().parse_args(ctx, args)


@click.command(cls=_Write, context_settings={"ignore_unknown_options": True})
@device_argument
@identifier_argument
@click.argument("value", type=TEXT, required=False)
@way_options
@access_options
@json_option
def write(  # noqa: PLR0913 # one for each option
    device: Mac,
    identifier: str,
    value: str | None,
    *,
    gateway: Mac | None,
    broker: Any,
    topic_prefix: str,
    tls_ca: Any,
    as_json: bool,
    **given: Any,
) -> None:
    """Write VALUE to the property IDENTIFIER of a device, or NULL without a VALUE.

    By its name IDENTIFIER takes JSON, and what is none is taken as text; by its id in hex it takes hex.
    """
    way, how, written = (
        Way.chosen(gateway, broker, topic_prefix, tls_ca),
        access(**given),
        _value(identifier, value),
    )
    found = send(
        way,
        lambda fleet: fleet.requests.write(device, identifier, written, gateway=gateway, **how),
        lambda mesh, through: mesh.write(through, device, identifier, written, **how),
    )
    text = "NULL" if value is None else value
    tell_answer(spelt(found, gateway), device, f"{identifier} = {text} is written", as_json=as_json)


def _value(identifier: str, text: str | None) -> Json:
    if text is None:
        return None
    if is_identifier(identifier):
        return _hex(text)
    try:
        value: Json = msgspec.json.decode(text.encode())
    except msgspec.DecodeError:
        value = text
    if value is text and text.startswith("-") and not click.get_current_context().meta[_ALL_VALUES]:
        raise click.NoSuchOption(text)
    return value


def _hex(text: str) -> str:
    try:
        to_bytes(text)
    except MalformedHex as exc:
        raise click.BadParameter(exc.reason, param_hint="'[VALUE]'") from exc
    return text.lower()
