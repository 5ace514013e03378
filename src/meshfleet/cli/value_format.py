"""Values as people read them: decoded, with their unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.cli.terminal import to_printable
from meshfleet.errors.protocol import WireError
from meshfleet.protocol.codes import Status
from meshfleet.protocol.hex import parse_hex
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import is_identifier

if TYPE_CHECKING:
    from meshfleet.protocol.fields import Json
    from meshfleet.protocol.identifiers import DecodedValue

_STATUS_NAMES: Final = {int(status): status.name.lower().replace("_", "-") for status in Status}


def format_decoded_value(identifier: str | None, value: Json) -> str:
    """A decoded value, with its unit where the catalogue knows the identifier."""
    entry = BUILTIN_CATALOGUE.find(identifier or "")
    unit = entry.unit if entry and value is not None else ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return to_printable(f"{text} {unit}".rstrip())


def format_value(identifier: str, value: Json) -> str:
    """A value as it was asked for: decoded by name, raw in hex, with what that means where we know it."""
    meant = (
        decode_raw_value(identifier, value) if is_identifier(identifier) and isinstance(value, str) else None
    )
    if meant is not None:
        decoded = format_decoded_value(identifier, meant.value)
        return f"{value} ({find_identifier_name(identifier)} {decoded}{format_ext(meant.ext)})"
    return to_printable(str(value)) if is_identifier(identifier) else format_decoded_value(identifier, value)


def format_ext(ext: dict[str, Any] | None) -> str:
    """What stands behind a value."""
    return "".join(
        to_printable(f", {name} {msgspec.json.encode(value).decode()}") for name, value in (ext or {}).items()
    )


def find_identifier_name(identifier: str) -> str:
    """The name of an identifier, where the catalogue knows it."""
    entry = BUILTIN_CATALOGUE.find(identifier)
    return entry.name if entry else identifier


def decode_raw_value(identifier: str, raw: str) -> DecodedValue | None:
    """A raw value in JSON; None: the catalogue does not know how, or it does not fit."""
    entry = BUILTIN_CATALOGUE.find(identifier)
    if entry is None or entry.layout is None:
        return None
    try:
        return entry.decode(parse_hex(raw))
    except WireError:
        return None


def format_status(status: int) -> str:
    """A status in words, where it has a meaning here."""
    words = _STATUS_NAMES.get(status)
    return f"{words} (status {status})" if words else f"status {status}"


def format_sample_error(sample: Any) -> str:
    """Why a measurement failed; empty: it did not."""
    return "" if sample.error is None else f"error: {format_status(sample.error)}"
