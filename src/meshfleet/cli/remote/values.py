"""Values as people read them: decoded, with their unit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from meshfleet.cli.terminal import printable
from meshfleet.errors import WireError
from meshfleet.wire.codes import Status
from meshfleet.wire.hextext import to_bytes
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.ids import is_identifier

if TYPE_CHECKING:
    from meshfleet.wire.fields import Json
    from meshfleet.wire.identifiers import Decoded

_STATUSES: Final = {int(status): status.name.lower().replace("_", "-") for status in Status}


def value_text(identifier: str | None, value: Json) -> str:
    """A decoded value, with its unit where the catalogue knows the identifier."""
    entry = BUILTIN.find(identifier or "")
    unit = entry.unit if entry and value is not None else ""
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return printable(f"{text} {unit}".rstrip())


def any_text(identifier: str, value: Json) -> str:
    """A value as it was asked for: decoded by name, raw in hex, with what that means where we know it."""
    meant = decoded(identifier, value) if is_identifier(identifier) and isinstance(value, str) else None
    if meant is not None:
        return f"{value} ({name_of(identifier)} {value_text(identifier, meant.value)}{ext_text(meant.ext)})"
    return printable(str(value)) if is_identifier(identifier) else value_text(identifier, value)


def ext_text(ext: dict[str, Any] | None) -> str:
    """What stands behind a value."""
    return "".join(
        printable(f", {name} {msgspec.json.encode(value).decode()}") for name, value in (ext or {}).items()
    )


def name_of(identifier: str) -> str:
    """The name of an identifier, where the catalogue knows it."""
    entry = BUILTIN.find(identifier)
    return entry.name if entry else identifier


def decoded(identifier: str, raw: str) -> Decoded | None:
    """A raw value in JSON; None: the catalogue does not know how, or it does not fit."""
    entry = BUILTIN.find(identifier)
    if entry is None or entry.layout is None:
        return None
    try:
        return entry.decode(to_bytes(raw))
    except WireError:
        return None


def status_text(status: int) -> str:
    """A status in words, where it has a meaning here."""
    words = _STATUSES.get(status)
    return f"{words} (status {status})" if words else f"status {status}"


def error_text(sample: Any) -> str:
    """Why a measurement failed; empty: it did not."""
    return "" if sample.error is None else f"error: {status_text(sample.error)}"
