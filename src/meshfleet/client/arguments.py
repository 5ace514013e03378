"""Checks and conversions of the arguments that callers of the SDK pass."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypedDict, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedInput, MalformedText, MalformedTime, UnencodableValue
from meshfleet.protocol.codes import AccessType, Operation
from meshfleet.protocol.hex import Secret, parse_hex
from meshfleet.protocol.ids import Mac, is_identifier, parse_identifier_name, parse_mac, to_device_id
from meshfleet.protocol.times import format_time, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.protocol.ids import DeviceId

Value = TypeVar("Value")


class RequestParameters(TypedDict, total=False):
    """Optional parameters of a request to a device. For None the gateway uses its default."""

    priority: int | None
    """Priority in the mesh, from 0 (lowest) to 4 (highest)."""
    extender_id: str | None
    """MAC of the extender through which an unconnected device is reached. Needs API version 2.1.0."""
    access_type: AccessType | str | None
    """Access to a device outside the secure network: `unprovisioned` or `legacy`. Needs API version 2.2.0."""
    public_key: str | Secret | None
    """Public key in hex, for unprovisioned access."""
    key: str | Secret | None
    """Network key in hex. `key` and `public_key` are secrets, never stored or logged."""


# Values of writes: converted and checked before anything is sent.


def to_wire_value(operation: Operation, value: Any) -> Any:
    """Convert a value to write: to hex for a raw operation, to JSON for a decoded one. None writes NULL."""
    return to_hex_value(value) if operation is Operation.WRITE else to_json_value(value, "value")


def to_hex_value(value: Any) -> str | None:
    """Convert a raw value, bytes or hex, to hex. None stays None. Raise `MalformedInput` for other values."""
    match value:
        case None:
            return None
        case bytes() | bytearray() | memoryview():
            return value.hex()
        case str():
            parse_hex(value)
            return value
    raise UnencodableValue("value", "must be hex or bytes for a raw identifier")


def to_json_value(value: Any, field: str) -> Any:
    """Convert a value to plain JSON types. Raise `UnencodableValue` if JSON cannot represent the value."""
    try:
        return msgspec.json.decode(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        pass
    raise UnencodableValue(field, "cannot be represented in JSON")


def unset_if_none(value: Value | None) -> Value | UnsetType:
    """Return the value for a field of a request body: UNSET, which is not sent, instead of None."""
    return UNSET if value is None else value


EnumT = TypeVar("EnumT", bound=Enum)

Moment = datetime | str
"""Point in time: a `datetime` with an offset from UTC, or ISO 8601 text as in responses (UTC if it has no
offset)."""


_MAX_IDS: Final = 1000
"""Maximum number of device ids in one query. So many ids and other filters fit into a URL of 64 KiB."""


def normalize_mac(text: str, field: str = "gateway") -> Mac:
    """Return the MAC of a gateway or device, given as MAC or device id in either case (id-3, rest-76)."""
    return parse_mac(text.lower().removeprefix("bmac-"), field)


def normalize_device_id(text: str, field: str = "device") -> DeviceId:
    """Convert a MAC or device id, in upper or lower case, to a device id."""
    return to_device_id(normalize_mac(text, field))


def normalize_device_ids(texts: str | Iterable[str], field: str) -> list[DeviceId]:
    """Convert MACs or device ids to device ids. Raise `MalformedInput` if one query cannot have so many."""
    ids = [normalize_device_id(each, field) for each in to_tuple(texts)]
    if len(ids) > _MAX_IDS:
        raise MalformedInput(field, f"has {len(ids)} values; at most {_MAX_IDS} are allowed in one query")
    return ids


def normalize_time(time: Moment, field: str = "time") -> datetime:
    """Convert a time to UTC.

    Text without a UTC offset is taken as UTC; a `datetime` without one raises `MalformedTime`.
    """
    if not isinstance(time, datetime):
        return parse_time(time, field)
    if time.utcoffset() is None:  # Python would assume the local time zone
        raise MalformedTime(field, "has no offset from UTC")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise MalformedTime(field, "is outside the supported range of dates") from None


def format_optional_time(time: Moment | None, field: str = "time") -> str | None:
    """Format a time for a request body or query. None stays None."""
    return None if time is None else format_time(normalize_time(time, field))


def check_timeout(timeout: float) -> float:
    """Return a timeout in seconds unchanged. Raise `MalformedInput` unless positive and finite."""
    if not 0 < timeout < math.inf:  # NaN fails both comparisons
        raise MalformedInput("timeout", "must be a positive number of seconds")
    return timeout


def parse_enum(kind: type[EnumT], value: object, field: str) -> EnumT:
    """Convert a value to a member of an enum.

    Raise `MalformedInput` with the list of valid values if the enum does not have the value.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
    raise MalformedInput(field, f"{quote_input(value)} is not one of {known}")


def check_text(text: str, field: str) -> str:
    """Return a text unchanged. Raise `MalformedText` if the text cannot be encoded as UTF-8.

    The error does not quote the text and has no cause, as the text may be a secret.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return text
    raise MalformedText(field, "is not Unicode text")


def check_argument_names(given: Mapping[str, object], known: type) -> None:
    """Raise `TypeError` for an argument that the TypedDict `known` does not have.

    Without this check, a misspelled filter would be ignored and select the whole fleet.
    """
    for name in given.keys() - known.__annotations__.keys():
        raise TypeError(f"got an unexpected keyword argument {name!r}")


def to_tuple(texts: str | Iterable[str]) -> tuple[str, ...]:
    """Return texts as a tuple. A single text becomes a tuple of one element."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def normalize_identifier(text: str) -> str:
    """Return a hex identifier in lower case, or a name unchanged. Raise `MalformedInput` for other texts."""
    return text.lower() if is_identifier(text.lower()) else parse_identifier_name(text)


_DECODED_OPERATIONS: Mapping[Operation, Operation] = {
    Operation.READ: Operation.READ_DECODED,
    Operation.WRITE: Operation.WRITE_DECODED,
    Operation.ACK: Operation.ACK_DECODED,
}


def select_operation(identifier: str, operation: Operation) -> Operation:
    """Return `operation` for an identifier in hex, its decoded counterpart for a name (request-34)."""
    return operation if is_identifier(identifier) else _DECODED_OPERATIONS[operation]
