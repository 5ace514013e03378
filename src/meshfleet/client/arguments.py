"""What callers name, as it is spelt on the way to a service."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedText, MalformedTime, UnencodableValue, WireError
from meshfleet.protocol.codes import Operation
from meshfleet.protocol.hex import parse_hex
from meshfleet.protocol.ids import Mac, is_identifier, parse_identifier_name, parse_mac, to_device_id
from meshfleet.protocol.times import format_time, parse_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.protocol.ids import DeviceId


# Values to write, as callers have them and as they are sent: checked before anything leaves.


def to_wire_value(operation: Operation, value: Any) -> Any:
    """What is written: hex for a raw operation, any JSON for a decoded one. None is NULL."""
    return to_hex_value(value) if operation is Operation.WRITE else to_json_value(value, "value")


def to_hex_value(value: Any) -> str | None:
    """A raw value, of bytes or of hex."""
    match value:
        case None:
            return None
        case bytes() | bytearray() | memoryview():
            return value.hex()
        case str():
            parse_hex(value)
            return value
    raise UnencodableValue("value", "is neither hex nor bytes, as raw identifiers have it")


def to_json_value(value: Any, field: str) -> Any:
    """A value as JSON has it. What JSON does not have is refused."""
    try:
        return msgspec.json.decode(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError):
        pass
    raise UnencodableValue(field, "is nothing that JSON can say")


EnumT = TypeVar("EnumT", bound=Enum)

Moment = datetime | str
"""A time: with its offset from UTC, or as text of ISO 8601, such as answers have."""


_MAX_IDS: Final = 1000
"""All that go into a URL of 64 KiB, beside other filters."""


def normalize_mac(text: str, field: str = "gateway") -> Mac:
    """A gateway or device by its MAC or its device id, in either case (id-3, rest-76)."""
    return parse_mac(text.lower().removeprefix("bmac-"), field)


def normalize_device_id(text: str, field: str = "device") -> DeviceId:
    """The same as its device id."""
    return to_device_id(normalize_mac(text, field))


def normalize_device_ids(texts: str | Iterable[str], field: str) -> list[DeviceId]:
    """Several of them, as a question names them."""
    ids = [normalize_device_id(each, field) for each in to_tuple(texts)]
    if len(ids) > _MAX_IDS:
        raise WireError(field, f"has {len(ids)} values; at most {_MAX_IDS} go into one question")
    return ids


def normalize_time(time: Moment, field: str = "time") -> datetime:
    """A time, which says how far it is from UTC; text without an offset is UTC."""
    if not isinstance(time, datetime):
        return parse_time(time, field)
    if time.utcoffset() is None:  # Python would take it for the time of this machine
        raise MalformedTime(field, "has no offset from UTC")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise MalformedTime(field, "lies outside of the calendar") from None


def format_optional_time(time: Moment | None, field: str = "time") -> str | None:
    """A time as it is written."""
    return None if time is None else format_time(normalize_time(time, field))


def check_timeout(timeout: float) -> float:
    """How long somebody waits."""
    if not 0 < timeout < math.inf:  # nor is what is no number
        raise WireError("timeout", "is not a number of seconds, more than nothing")
    return timeout


def parse_enum(kind: type[EnumT], value: object, field: str) -> EnumT:
    """One of the words or numbers that can stand there."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
    raise WireError(field, f"{quote_input(value)} is none of {known}")


def check_text(text: str, field: str) -> str:
    """Text that can be sent. It is not repeated, as it may be a secret, nor kept as Python's error does."""
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return text
    raise MalformedText(field, "is not Unicode text")


def check_argument_names(given: Mapping[str, object], known: type) -> None:
    """Refuse arguments that a TypedDict does not have: a misspelt filter must not select the whole fleet."""
    for name in given.keys() - known.__annotations__.keys():
        raise TypeError(f"got an unexpected keyword argument {name!r}")


def to_tuple(texts: str | Iterable[str]) -> tuple[str, ...]:
    """Texts; one alone is not taken for its letters."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def normalize_identifier(text: str) -> str:
    """An identifier in hex in either case, or a name."""
    return text.lower() if is_identifier(text.lower()) else parse_identifier_name(text)


_DECODED_OPERATIONS: Mapping[Operation, Operation] = {
    Operation.READ: Operation.READ_DECODED,
    Operation.WRITE: Operation.WRITE_DECODED,
    Operation.ACK: Operation.ACK_DECODED,
}


def select_operation(identifier: str, operation: Operation) -> Operation:
    """The raw operation for an identifier in hex, the decoded one for a name (request-34)."""
    return operation if is_identifier(identifier) else _DECODED_OPERATIONS[operation]
