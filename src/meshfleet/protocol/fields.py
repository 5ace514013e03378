"""The field types of payloads: what a struct declares, msgspec checks, and a gateway may spell differently.

A field type is a Python type with its limits and, where the protocol allows more than one spelling or asks
for a certain one, a `Spelling`.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import Meta

from meshfleet.errors.protocol import MalformedMac, MalformedPayload
from meshfleet.protocol.hex import Hex, Secret, parse_hex
from meshfleet.protocol.ids import Mac, ModelNumber, Version, parse_mac, parse_model_number
from meshfleet.protocol.times import format_time, parse_time

if TYPE_CHECKING:
    from collections.abc import Callable

Json = Any
"""What a decoded value may be: any JSON value."""


class FieldCodec(NamedTuple):
    """How a field is read from JSON beyond its plain form, and how it is written."""

    decode: Callable[[Any, str], Any]
    """Takes the JSON value and the field's name. What it cannot help with it returns as it is."""

    encode: Callable[[Any], Any] | None = None


def _decode_time(value: Any, field: str) -> Any:
    return parse_time(value, field) if isinstance(value, str) else value


def _decode_integer(value: Any, _field: str) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_QUOTED = re.compile(r"[0-9]{1,9}")


def _decode_sequence(value: Any, field: str) -> Any:
    if isinstance(value, str) and _QUOTED.fullmatch(value):
        return int(value)
    return _decode_integer(value, field)


def _decode_mac(value: Any, field: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_mac(value.lower(), field)
    except MalformedMac as exc:
        raise MalformedMac(field, "is not 12 hex digits") from exc


def _decode_hex(value: Any, field: str) -> Any:
    if isinstance(value, str):
        parse_hex(value, field)
    return value


def _decode_hex_or_null(value: Any, field: str) -> Any:
    return None if value == "" else _decode_hex(value, field)


def _decode_secret(value: Any, field: str) -> Secret:
    return Secret(parse_hex(_text(value, field), field))


def _decode_version(value: Any, field: str) -> Version:
    return Version.parse(_text(value, field), field)


def _decode_model_number(value: Any, field: str) -> ModelNumber:
    return parse_model_number(_text(value, field), field)


def _text(value: Any, field: str) -> str:
    """For types of ours: msgspec would complain with a name that nobody outside knows."""
    if not isinstance(value, str):
        raise MalformedPayload(field, "is not a string")
    return value


INTEGER_CODEC = FieldCodec(_decode_integer)
"""A whole number may be written `2.0` (report-17)."""

TimeField = Annotated[datetime, Meta(tz=True), FieldCodec(_decode_time, format_time)]
"""UTC in whole milliseconds (id-18 to id-23)."""

# JSON numbers are exact up to 2^53 in every reader; nothing in the protocol comes near it.
IntegerField = Annotated[int, Meta(ge=-(2**53), le=2**53), INTEGER_CODEC]
CountField = Annotated[int, Meta(ge=0, le=2**53), INTEGER_CODEC]
ChannelField = Annotated[int, Meta(ge=37, le=39), INTEGER_CODEC]
"""The BLE advertising channel (report-23)."""

SequenceField = Annotated[int, Meta(ge=0, le=255), FieldCodec(_decode_sequence)]
"""A sequence number; a published sample quotes it, so consumers take both (report-16, report-22)."""

MacField = Annotated[Mac, FieldCodec(_decode_mac)]
"""A MAC inside a payload: read in either case (id-3)."""

ExtenderIdField = Annotated[Mac, FieldCodec(_decode_mac, str.upper)]
"""The MAC of an extender: written in upper case (id-27)."""

HexField = Annotated[Hex, FieldCodec(_decode_hex, str.lower)]
HexOrNullField = Annotated[Hex | None, FieldCodec(_decode_hex_or_null, str.lower)]
"""A value to write; empty text is NULL (request-15)."""

SecretField = Annotated[Secret, FieldCodec(_decode_secret, Secret.reveal)]
ModelNumberField = Annotated[ModelNumber, FieldCodec(_decode_model_number)]
VersionField = Annotated[Version, FieldCodec(_decode_version, str)]
