"""Values to write, as callers have them and as they are sent: checked before anything leaves.

Without this a NaN would become null on its way, which writes NULL and triggers commands.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from meshfleet.errors import UnencodableValue
from meshfleet.wire.codes import Operation
from meshfleet.wire.hextext import to_bytes


def value_for(operation: Operation, value: Any) -> Any:
    """What is written: hex for a raw operation, any JSON for a decoded one. None is NULL."""
    return as_hex(value) if operation is Operation.WRITE else as_json(value, "value")


def as_hex(value: Any) -> str | None:
    """A raw value, of bytes or of hex."""
    match value:
        case None:
            return None
        case bytes() | bytearray() | memoryview():
            return value.hex()
        case str():
            to_bytes(value)
            return value
    raise UnencodableValue("value", "is neither hex nor bytes, as raw identifiers have it")


def as_json(value: Any, field: str) -> Any:
    """A value as JSON has it. What JSON does not have is refused."""
    try:
        return msgspec.json.decode(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        pass
    raise UnencodableValue(field, "is nothing that JSON can say")
