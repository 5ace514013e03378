"""The field types of payloads: what a struct declares, msgspec checks, and a gateway may spell differently.

A field type is a Python type with its limits and, where the protocol allows more than one spelling or asks
for a certain one, a `Spelling`.
"""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import Meta

from meshfleet.errors import MalformedMac, MalformedPayload
from meshfleet.wire.hextext import Hex, Secret, to_bytes
from meshfleet.wire.ids import Mac, ModelNumber, Version, parse_mac, parse_model_number
from meshfleet.wire.times import parse_time, write_time

if TYPE_CHECKING:
    from collections.abc import Callable

Json = Any
"""What a decoded value may be: any JSON value."""


class Spelling(NamedTuple):
    """How a field is read from JSON beyond its plain form, and how it is written."""

    read: Callable[[Any, str], Any]
    """Takes the JSON value and the field's name. What it cannot help with it returns as it is."""

    write: Callable[[Any], Any] | None = None


def _read_time(value: Any, field: str) -> Any:
    return parse_time(value, field) if isinstance(value, str) else value


def _read_whole(value: Any, _field: str) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


_QUOTED = re.compile(r"[0-9]{1,9}")


def _read_seq(value: Any, field: str) -> Any:
    if isinstance(value, str) and _QUOTED.fullmatch(value):
        return int(value)
    return _read_whole(value, field)


def _read_mac(value: Any, field: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_mac(value.lower(), field)
    except MalformedMac as exc:
        raise MalformedMac(field, "is not 12 hex digits") from exc


def _read_hex(value: Any, field: str) -> Any:
    if isinstance(value, str):
        to_bytes(value, field)
    return value


def _read_hex_or_null(value: Any, field: str) -> Any:
    return None if value == "" else _read_hex(value, field)


def _read_secret(value: Any, field: str) -> Secret:
    return Secret(to_bytes(_text(value, field), field))


def _read_version(value: Any, field: str) -> Version:
    return Version.parse(_text(value, field), field)


def _read_model_number(value: Any, field: str) -> ModelNumber:
    return parse_model_number(_text(value, field), field)


def _text(value: Any, field: str) -> str:
    """For types of ours: msgspec would complain with a name that nobody outside knows."""
    if not isinstance(value, str):
        raise MalformedPayload(field, "is not a string")
    return value


WHOLE = Spelling(_read_whole)
"""A whole number may be written `2.0` (report-17)."""

Time = Annotated[datetime, Meta(tz=True), Spelling(_read_time, write_time)]
"""UTC in whole milliseconds (id-18 to id-23)."""

# JSON numbers are exact up to 2^53 in every reader; nothing in the protocol comes near it.
Whole = Annotated[int, Meta(ge=-(2**53), le=2**53), WHOLE]
Count = Annotated[int, Meta(ge=0, le=2**53), WHOLE]
Channel = Annotated[int, Meta(ge=37, le=39), WHOLE]
"""The BLE advertising channel (report-23)."""

Seq = Annotated[int, Meta(ge=0, le=255), Spelling(_read_seq)]
"""A sequence number; a published sample quotes it, so consumers take both (report-16, report-22)."""

MacField = Annotated[Mac, Spelling(_read_mac)]
"""A MAC inside a payload: read in either case (id-3)."""

ExtenderId = Annotated[Mac, Spelling(_read_mac, str.upper)]
"""The MAC of an extender: written in upper case (id-27)."""

HexField = Annotated[Hex, Spelling(_read_hex, str.lower)]
HexOrNull = Annotated[Hex | None, Spelling(_read_hex_or_null, str.lower)]
"""A value to write; empty text is NULL (request-15)."""

SecretField = Annotated[Secret, Spelling(_read_secret, Secret.reveal)]
ModelNumberField = Annotated[ModelNumber, Spelling(_read_model_number)]
VersionField = Annotated[Version, Spelling(_read_version, str)]
