"""What callers name, as it is spelt on the way to a service."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from meshfleet.wire.ids import Mac, device_id, is_identifier, parse_identifier_name, parse_mac
from meshfleet.wire.times import parse_time, write_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from meshfleet.wire.ids import DeviceId

Moment = datetime | str
"""A time: with its offset from UTC, or as text of ISO 8601, such as answers have."""


def mac_of(text: str, field: str = "gateway") -> Mac:
    """A gateway or device by its MAC or its device id, in either case (id-3, rest-76)."""
    return parse_mac(text.lower().removeprefix("bmac-"), field)


def id_of(text: str, field: str = "device") -> DeviceId:
    """The same as its device id."""
    return device_id(mac_of(text, field))


def moment(time: Moment | None) -> str | None:
    """A time as it is written."""
    if time is None:
        return None
    return write_time(time if isinstance(time, datetime) else parse_time(time))


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
