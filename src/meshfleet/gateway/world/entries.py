"""Objects of a JSON file that people write: read field by field, so that all mistakes are told at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from meshfleet.errors import MalformedSite, WireError, plain, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

Mistakes = list[tuple[str, str]]
"""Where they are, and what they are."""


class Field(NamedTuple):
    """How a field is read; a `ValueError` or `WireError` says why it cannot be."""

    read: Callable[[Any], Any]
    needed: bool = False


def decode(data: bytes, source: str) -> Any:
    """Read JSON, or raise a `MalformedSite`."""
    try:
        return msgspec.json.decode(str(data, "utf-8-sig"))  # editors on Windows like to sign their files
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    except msgspec.DecodeError as exc:
        reason = f"cannot be read as JSON: {exc}"
    except RecursionError:
        reason = "is nested too deeply"
    raise MalformedSite(source, [("file", reason)])


def read(given: Any, fields: Mapping[str, Field], where: str, mistakes: Mistakes) -> dict[str, Any]:
    """Read the fields of an object as far as they can be read; nothing may be there besides."""
    if not isinstance(given, dict):
        mistakes.append((where or "file", f"{shown(given)} is not an object"))
        return {}
    front = f"{where}." if where else ""
    found = {}
    for name, field in fields.items():
        if name not in given:
            if field.needed:
                mistakes.append((front + name, "is missing"))
            continue
        try:
            found[name] = field.read(given[name])
        except (WireError, ValueError) as exc:
            mistakes.append((front + name, exc.reason if isinstance(exc, WireError) else str(exc)))
    mistakes += ((front + plain(name), "is not a field here") for name in given if name not in fields)
    return found


def text(given: Any) -> str:
    """Any text."""
    if not isinstance(given, str):
        raise ValueError(f"{shown(given)} is not a text")  # noqa: TRY004 # a mistake of the file, not of the code
    return given


def array(most: int) -> Callable[[Any], list[Any]]:
    """An array that is not too long."""

    def read_array(given: Any) -> list[Any]:
        if not isinstance(given, list):
            raise ValueError(f"{shown(given)} is not an array")  # noqa: TRY004 # as above
        if len(given) > most:
            raise ValueError(f"has {len(given)} entries; {most} are allowed")
        return given

    return read_array


def word(meanings: Mapping[str, Any]) -> Callable[[Any], Any]:
    """One of some words, as what it means."""

    def read_word(given: Any) -> Any:
        if text(given) not in meanings:
            raise ValueError(f"{shown(given)} is not one of {', '.join(meanings)}")
        return meanings[given]

    return read_word


def whole(lowest: int, highest: int) -> Callable[[Any], int]:
    """A whole number in its limits."""

    def read_whole(given: Any) -> int:
        if isinstance(given, bool) or not isinstance(given, int) or not lowest <= given <= highest:
            raise ValueError(f"{shown(given)} is not a whole number from {lowest} to {highest}")
        return given

    return read_whole


def number(lowest: int, highest: int) -> Callable[[Any], float]:
    """A number in its limits."""

    def read_number(given: Any) -> float:
        if isinstance(given, bool) or not isinstance(given, int | float) or not lowest <= given <= highest:
            raise ValueError(f"{shown(given)} is not a number from {lowest} to {highest}")
        return float(given)

    return read_number


def octets(length: int) -> Callable[[Any], bytes]:
    """So many bytes in hex. They are not shown: they may be a secret."""

    def read_octets(given: Any) -> bytes:
        try:
            found = bytes.fromhex(given)
        except (TypeError, ValueError):
            found = b""
        if len(found) != length:
            raise ValueError(f"is not the hex of {length} bytes")
        return found

    return read_octets
