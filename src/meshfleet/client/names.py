"""What callers name, as it is spelt on the way to a service."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Final, TypeVar

from meshfleet.errors import MalformedText, MalformedTime, WireError, shown
from meshfleet.wire.codes import Operation
from meshfleet.wire.ids import Mac, device_id, is_identifier, parse_identifier_name, parse_mac
from meshfleet.wire.times import parse_time, write_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.wire.ids import DeviceId

EnumT = TypeVar("EnumT", bound=Enum)

Moment = datetime | str
"""A time: with its offset from UTC, or as text of ISO 8601, such as answers have."""


_MOST_IDS: Final = 1000
"""All that go into a URL of 64 KiB, beside other filters."""


def mac_of(text: str, field: str = "gateway") -> Mac:
    """A gateway or device by its MAC or its device id, in either case (id-3, rest-76)."""
    return parse_mac(text.lower().removeprefix("bmac-"), field)


def id_of(text: str, field: str = "device") -> DeviceId:
    """The same as its device id."""
    return device_id(mac_of(text, field))


def ids_of(texts: str | Iterable[str], field: str) -> list[DeviceId]:
    """Several of them, as a question names them."""
    ids = [id_of(each, field) for each in several(texts)]
    if len(ids) > _MOST_IDS:
        raise WireError(field, f"has {len(ids)} values; at most {_MOST_IDS} go into one question")
    return ids


def time_of(time: Moment, field: str = "time") -> datetime:
    """A time, which says how far it is from UTC; text without an offset is UTC."""
    if not isinstance(time, datetime):
        return parse_time(time, field)
    if time.utcoffset() is None:  # Python would take it for the time of this machine
        raise MalformedTime(field, "has no offset from UTC")
    try:
        return time.astimezone(UTC)
    except OverflowError:
        raise MalformedTime(field, "lies outside of the calendar") from None


def moment(time: Moment | None, field: str = "time") -> str | None:
    """A time as it is written."""
    return None if time is None else write_time(time_of(time, field))


def seconds(timeout: float) -> float:
    """How long somebody waits."""
    if not 0 < timeout < math.inf:  # nor is what is no number
        raise WireError("timeout", "is not a number of seconds, more than nothing")
    return timeout


def one_of(kind: type[EnumT], value: object, field: str) -> EnumT:
    """One of the words or numbers that can stand there."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(str(each.value) for each in kind)
    raise WireError(field, f"{shown(value)} is none of {known}")


def text_of(text: str, field: str) -> str:
    """Text that can be sent. It is not repeated, as it may be a secret, nor kept as Python's error does."""
    try:
        text.encode()
    except UnicodeEncodeError:
        pass
    else:
        return text
    raise MalformedText(field, "is not Unicode text")


def check_names(given: Mapping[str, object], known: type) -> None:
    """Refuse arguments that a TypedDict does not have: a misspelt filter must not select the whole fleet."""
    for name in given.keys() - known.__annotations__.keys():
        raise TypeError(f"got an unexpected keyword argument {name!r}")


def several(texts: str | Iterable[str]) -> tuple[str, ...]:
    """Texts; one alone is not taken for its letters."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def identifier_of(text: str) -> str:
    """An identifier in hex in either case, or a name."""
    return text.lower() if is_identifier(text.lower()) else parse_identifier_name(text)


_BY_NAME: Mapping[Operation, Operation] = {
    Operation.READ: Operation.READ_DECODED,
    Operation.WRITE: Operation.WRITE_DECODED,
    Operation.ACK: Operation.ACK_DECODED,
}


def operation_on(identifier: str, operation: Operation) -> Operation:
    """The raw operation for an identifier in hex, the decoded one for a name (request-34)."""
    return operation if is_identifier(identifier) else _BY_NAME[operation]
