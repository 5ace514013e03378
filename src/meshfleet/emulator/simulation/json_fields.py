"""Reading of JSON objects field by field, so that all problems of a site file are reported at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from meshfleet.errors import quote_input, quote_name
from meshfleet.errors.emulator import MalformedSite
from meshfleet.errors.protocol import MalformedInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FieldProblems = list[tuple[str, str]]
"""Problems of a site file: pairs of field path and reason."""


class FieldSpec(NamedTuple):
    """Rule for one field of a site file.

    `read` returns the parsed value, or raises `ValueError` or `MalformedInput`.
    """

    read: Callable[[Any], Any]
    required: bool = False


def decode_json(data: bytes, source: str) -> Any:
    """Decode the JSON of a site file. Raise `MalformedSite`, which names `source`, if it is not JSON."""
    try:
        return msgspec.json.decode(str(data, "utf-8-sig"))  # editors on Windows write a byte order mark
    except UnicodeDecodeError:
        reason = "is not UTF-8"
    except msgspec.DecodeError as exc:
        reason = f"cannot be read as JSON: {exc}"
    except RecursionError:
        reason = "is nested too deeply"
    raise MalformedSite(source, [("file", reason)])


def read_fields(
    value: Any, fields: Mapping[str, FieldSpec], path: str, problems: FieldProblems
) -> dict[str, Any]:
    """Return the valid fields of a JSON object; append invalid, missing and unknown fields to `problems`."""
    if not isinstance(value, dict):
        problems.append((path or "file", f"{quote_input(value)} is not an object"))
        return {}
    path_prefix = f"{path}." if path else ""
    values = {}
    for name, field in fields.items():
        if name not in value:
            if field.required:
                problems.append((path_prefix + name, "is missing"))
            continue
        try:
            values[name] = field.read(value[name])
        except (MalformedInput, ValueError) as exc:
            problems.append((path_prefix + name, exc.reason if isinstance(exc, MalformedInput) else str(exc)))
    problems += (
        (path_prefix + quote_name(name), "is not a field here") for name in value if name not in fields
    )
    return values


def read_objects(
    values: Iterable[Any], fields: Mapping[str, FieldSpec], path: str, problems: FieldProblems
) -> list[dict[str, Any]]:
    """Return the valid fields of each JSON object of an array; append what is wrong to `problems`."""
    return [read_fields(value, fields, f"{path}[{i}]", problems) for i, value in enumerate(values)]


def read_text(value: Any) -> str:
    """Return a JSON value that is a string. Raise `ValueError` if it is not a string."""
    if not isinstance(value, str):
        raise ValueError(f"{quote_input(value)} is not a string")  # noqa: TRY004 # bad file content
    return value


def build_array_reader(max_length: int) -> Callable[[Any], list[Any]]:
    """Build a function that checks that a JSON value is an array of at most `max_length` entries."""

    def read_array(value: Any) -> list[Any]:
        if not isinstance(value, list):
            raise ValueError(f"{quote_input(value)} is not an array")  # noqa: TRY004 # bad file content
        if len(value) > max_length:
            raise ValueError(f"has {len(value)} entries; {max_length} are allowed")
        return value

    return read_array


def build_choice_reader(choices: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Build a function that checks that a JSON value is a key of `choices`, and returns the key's entry."""

    def read_choice(value: Any) -> Any:
        if read_text(value) not in choices:
            raise ValueError(f"{quote_input(value)} is not one of {', '.join(choices)}")
        return choices[value]

    return read_choice


def build_integer_reader(lowest: int, highest: int) -> Callable[[Any], int]:
    """Build a function that checks that a JSON value is an integer from `lowest` to `highest`."""

    def read_integer(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            raise ValueError(f"{quote_input(value)} is not a whole number from {lowest} to {highest}")
        return value

    return read_integer


def build_number_reader(lowest: float, highest: float) -> Callable[[Any], float]:
    """Build a function that checks that a JSON value is a number from `lowest` to `highest`."""

    def read_number(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not lowest <= value <= highest:
            raise ValueError(f"{quote_input(value)} is not a number from {lowest} to {highest}")
        return float(value)

    return read_number


def build_hex_reader(length: int) -> Callable[[Any], bytes]:
    """Build a function that decodes `length` bytes in hex. Its errors do not quote the value, maybe a key."""

    def read_hex(value: Any) -> bytes:
        try:
            octets = bytes.fromhex(value)
        except (TypeError, ValueError):
            octets = b""
        if len(octets) != length:
            raise ValueError(f"is not the hex of {length} bytes")
        return octets

    return read_hex
