"""Checks and conversions of arguments of the SDK's methods."""

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
    """Optional parameters of a request to a device. None means the default of the gateway."""

    priority: int | None
    """Priority of the request in the mesh, from 0 (lowest) to 4 (highest)."""
    extender_id: str | None
    """MAC of the extender that reaches an unconnected device. Needs API version 2.1.0 or newer."""
    access_type: AccessType | str | None
    """Access to a device outside the secured mesh: `unprovisioned` or `legacy`.

    Needs API version 2.2.0 or newer.
    """
    public_key: str | Secret | None
    """Public key in hex, for unprovisioned access; never stored or logged."""
    key: str | Secret | None
    """Network key in hex, which is never stored or logged."""


# Values of writes: converted and checked before anything is sent.


def to_wire_value(operation: Operation, value: Any) -> Any:
    """Convert the value of a write: to hex for a raw write, to JSON for a decoded write. None writes NULL."""
    return to_hex_value(value) if operation is Operation.WRITE else to_json_value(value, "value")


def to_hex_value(value: Any) -> str | None:
    """Convert bytes to hex; return hex and None unchanged. Raise `MalformedInput` for any other value."""
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
    """Replace None by UNSET, which omits a field from a request body. Return any other value unchanged."""
    return UNSET if value is None else value


EnumT = TypeVar("EnumT", bound=Enum)

Moment = datetime | str
"""Point in time: a `datetime` with a UTC offset, or an ISO 8601 string (in UTC if it has no offset)."""


_MAX_IDS: Final = 1000
"""Maximum number of device ids in one REST query, so that the URL has at most 64 KiB."""


def normalize_mac(text: str, field: str = "gateway") -> Mac:
    """Convert a MAC or device id, in upper or lower case, to a MAC (id-3, rest-76)."""
    return parse_mac(text.lower().removeprefix("bmac-"), field)


def normalize_device_id(text: str, field: str = "device") -> DeviceId:
    """Convert a MAC or device id, in upper or lower case, to a device id."""
    return to_device_id(normalize_mac(text, field))


def normalize_device_ids(texts: str | Iterable[str], field: str) -> list[DeviceId]:
    """Convert MACs or device ids to device ids. Raise `MalformedInput` for more than `_MAX_IDS` devices."""
    ids = [normalize_device_id(each, field) for each in to_tuple(texts)]
    if len(ids) > _MAX_IDS:
        raise MalformedInput(field, f"has {len(ids)} values; at most {_MAX_IDS} are allowed in one query")
    return ids


def normalize_time(time: Moment, field: str = "time") -> datetime:
    """Convert a time to UTC.

    A string without a UTC offset is taken as UTC; a `datetime` without a UTC offset raises `MalformedTime`.
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
    """Format a time for a REST request, such as `2026-11-15T10:00:00.000Z`. Return None for None."""
    return None if time is None else format_time(normalize_time(time, field))


def check_timeout(timeout: float) -> float:
    """Return a timeout in seconds unchanged. Raise `MalformedInput` unless it is positive and finite."""
    if not 0 < timeout < math.inf:  # NaN fails both comparisons
        raise MalformedInput("timeout", "must be a positive number of seconds")
    return timeout


def parse_enum(kind: type[EnumT], value: object, field: str) -> EnumT:
    """Convert a value to a member of an enum.

    Raise `MalformedInput`, which lists the valid values, if no member has the value.
    """
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
    raise MalformedInput(field, f"{quote_input(value)} is not one of {known}")


def check_text(text: str, field: str) -> str:
    """Return a string unchanged. Raise `MalformedText` if the string cannot be encoded as UTF-8.

    The error does not contain the string, which may be a secret.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return text
    raise MalformedText(field, "is not Unicode text")


def check_argument_names(given: Mapping[str, object], known: type) -> None:
    """Raise `TypeError` if a keyword argument is not a key of the TypedDict `known`.

    Without this check, a misspelled filter would be ignored, and the whole fleet would be selected.
    """
    for name in given.keys() - known.__annotations__.keys():
        raise TypeError(f"got an unexpected keyword argument {name!r}")


def to_tuple(texts: str | Iterable[str]) -> tuple[str, ...]:
    """Convert strings to a tuple; a single string becomes a tuple of one element."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def normalize_identifier(text: str) -> str:
    """Return a hex id in lower case, or an identifier's name unchanged; else raise `MalformedInput`."""
    return text.lower() if is_identifier(text.lower()) else parse_identifier_name(text)


_DECODED_OPERATIONS: Mapping[Operation, Operation] = {
    Operation.READ: Operation.READ_DECODED,
    Operation.WRITE: Operation.WRITE_DECODED,
    Operation.ACK: Operation.ACK_DECODED,
}


def select_operation(identifier: str, operation: Operation) -> Operation:
    """Return `operation` for a hex identifier, or the decoded form of `operation` for a name (request-34)."""
    return operation if is_identifier(identifier) else _DECODED_OPERATIONS[operation]
