"""Formats values of properties, measurements and events for the terminal, decoded and with units."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.cli.terminal import to_printable
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.codes import Status
from meshfleet.protocol.hex import parse_hex
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import is_identifier

if TYPE_CHECKING:
    from meshfleet.protocol.fields import Json
    from meshfleet.protocol.identifiers import DecodedValue

_STATUS_NAMES: Final = {int(status): status.name.lower().replace("_", "-") for status in Status}


def format_decoded_value(identifier: str | None, value: Json) -> str:
    """Format a decoded value, with its unit if the identifier is in the catalogue."""
    entry = BUILTIN_CATALOGUE.find(identifier or "")
    unit = entry.unit if entry and value is not None else ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return to_printable(f"{text} {unit}".rstrip())


def format_value(identifier: str, value: Json) -> str:
    """Format a value. If the identifier is a hex id, the value is hex, and its decoded value is added."""
    decoded = (
        decode_raw_value(identifier, value) if is_identifier(identifier) and isinstance(value, str) else None
    )
    if decoded is not None:
        text = format_decoded_value(identifier, decoded.value)
        return f"{value} ({find_identifier_name(identifier)} {text}{format_ext(decoded.ext)})"
    return to_printable(str(value)) if is_identifier(identifier) else format_decoded_value(identifier, value)


def format_ext(ext: dict[str, Any] | None) -> str:
    """Format the additional fields (`ext`) of a decoded value; empty if there are none."""
    return "".join(
        to_printable(f", {name} {msgspec.json.encode(value).decode()}") for name, value in (ext or {}).items()
    )


def find_identifier_name(identifier: str) -> str:
    """Return the name of an identifier, or the identifier unchanged if it is not in the catalogue."""
    entry = BUILTIN_CATALOGUE.find(identifier)
    return entry.name if entry else identifier


def decode_raw_value(identifier: str, raw: str) -> DecodedValue | None:
    """Decode a raw value (hex). Return None if its layout is unknown or does not fit the value."""
    entry = BUILTIN_CATALOGUE.find(identifier)
    if entry is None or entry.layout is None:
        return None
    try:
        return entry.decode(parse_hex(raw))
    except MalformedInput:
        return None


def format_status(status: int) -> str:
    """Format the status code of a response, with the name of the code if it has one."""
    name = _STATUS_NAMES.get(status)
    return f"{name} (status {status})" if name else f"status {status}"


def format_sample_error(sample: Any) -> str:
    """Format the error of a failed measurement; empty for any other sample."""
    return "" if sample.error is None else f"error: {format_status(sample.error)}"
