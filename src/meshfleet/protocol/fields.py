"""Types of the fields in message payloads.

A field type is a Python type with limits that msgspec checks. A field type has a `FieldCodec` if the
protocol accepts several spellings of its values or requires a particular one.
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
"""Any JSON value."""


class FieldCodec(NamedTuple):
    """Converts the values of a field from and to JSON, where msgspec's own conversion is not sufficient."""

    decode: Callable[[Any, str], Any]
    """Function that takes the JSON value and the field name and returns the converted value.

    The function returns a value that needs no conversion unchanged. It may also return a value of a wrong
    type unchanged, because msgspec rejects the value afterwards.
    """

    encode: Callable[[Any], Any] | None = None
    """Function that converts a field value to JSON; None if msgspec's own conversion is sufficient."""


def _decode_time(value: Any, field: str) -> Any:
    return parse_time(value, field) if isinstance(value, str) else value


def _decode_integer(value: Any, _field: str) -> Any:
    """Convert a float without a fraction, such as 2.0, to an integer. Return any other value unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


_QUOTED_NUMBER = re.compile(r"[0-9]{1,9}")


def _decode_sequence_number(value: Any, field: str) -> Any:
    """Convert a sequence number from a string of digits, or from a float, to an integer."""
    if isinstance(value, str) and _QUOTED_NUMBER.fullmatch(value):
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
    """Check that a string is hex, and return it. Return None for an empty string."""
    return None if value == "" else _decode_hex(value, field)


def _decode_secret(value: Any, field: str) -> Secret:
    return Secret(parse_hex(_require_string(value, field), field))


def _decode_version(value: Any, field: str) -> Version:
    return Version.parse(_require_string(value, field), field)


def _decode_model_number(value: Any, field: str) -> ModelNumber:
    return parse_model_number(_require_string(value, field), field)


def _require_string(value: Any, field: str) -> str:
    """Return a string unchanged, or raise `MalformedPayload`, which is clearer than msgspec's error."""
    if not isinstance(value, str):
        raise MalformedPayload(field, "is not a string")
    return value


INTEGER_CODEC = FieldCodec(_decode_integer)
"""Codec for fields with whole numbers; accepts `2.0` for 2 (report-17)."""

TimeField = Annotated[datetime, Meta(tz=True), FieldCodec(_decode_time, format_time)]
"""UTC time in whole milliseconds (id-18 to id-23)."""

# Every JSON reader handles integers up to 2^53 exactly; the protocol needs no larger ones.
IntegerField = Annotated[int, Meta(ge=-(2**53), le=2**53), INTEGER_CODEC]
CountField = Annotated[int, Meta(ge=0, le=2**53), INTEGER_CODEC]
ChannelField = Annotated[int, Meta(ge=37, le=39), INTEGER_CODEC]
"""BLE advertising channel (report-23)."""

SequenceField = Annotated[int, Meta(ge=0, le=255), FieldCodec(_decode_sequence_number)]
"""Sequence number from 0 to 255, accepted as a JSON number or string (report-16, report-22)."""

MacField = Annotated[Mac, FieldCodec(_decode_mac)]
"""MAC in a payload, accepted in upper or lower case (id-3)."""

ExtenderIdField = Annotated[Mac, FieldCodec(_decode_mac, str.upper)]
"""MAC of an extender, written in upper case in payloads (id-27)."""

HexField = Annotated[Hex, FieldCodec(_decode_hex, str.lower)]
HexOrNullField = Annotated[Hex | None, FieldCodec(_decode_hex_or_null, str.lower)]
"""Raw value to write, as hex; an empty string or None writes NULL (request-15)."""

SecretField = Annotated[Secret, FieldCodec(_decode_secret, Secret.reveal)]
ModelNumberField = Annotated[ModelNumber, FieldCodec(_decode_model_number)]
VersionField = Annotated[Version, FieldCodec(_decode_version, str)]
