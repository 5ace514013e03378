"""Plain-language messages for values that msgspec rejects."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from msgspec import Struct


# Messages that list the allowed values of an enumeration.

_MAX_LISTED_VALUES: Final = 20
"""Maximum number of allowed values that an error message lists."""

_STEP: Final = re.compile(r"[^.\[\]]+|\[[^\]]*\]")
"""Step of a field path of msgspec: a field name, or `[…]` for an element of an array or object."""


def explain_invalid_choice(kind: type[Struct], place: str) -> str:
    """Return the error message for a value that is not in the enumeration of its field.

    `kind` is the type of the whole message, and `place` the path of the field in it, as msgspec writes it.
    """
    candidates: list[inspect.Type] = [_inspect_type(kind)]
    for step in _STEP.findall(place):
        candidates = [
            inner_type for candidate in candidates for inner_type in _find_inner_types(candidate, step)
        ]
    choices = [
        str(value)
        for candidate in candidates
        for choice in _list_union_members(candidate)
        for value in _list_choices(choice)
    ]
    return (
        f"must be one of {', '.join(choices)}"
        if 0 < len(choices) <= _MAX_LISTED_VALUES
        else "is not an allowed value"
    )


@cache
def _inspect_type(kind: type[Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _list_union_members(kind: inspect.Type) -> Iterable[inspect.Type]:
    """Return the member types of a union type, or any other type alone. Metadata is removed."""
    match kind:
        case inspect.UnionType():
            return (inner_type for member in kind.types for inner_type in _list_union_members(member))
        case inspect.Metadata():
            return _list_union_members(kind.type)
    return (kind,)


def _find_inner_types(kind: inspect.Type, step: str) -> Iterable[inspect.Type]:
    """Yield the types that a value has one step of a field path further inside a value of type `kind`."""
    for member in _list_union_members(kind):
        match member:
            case inspect.StructType():
                yield from (field.type for field in member.fields if field.encode_name == step)
            case inspect.ListType() | inspect.VarTupleType():
                yield member.item_type
            case inspect.DictType():
                yield member.value_type


def _list_choices(kind: inspect.Type) -> Iterable[object]:
    """Return the allowed values of an enumeration or literal type; nothing for any other type."""
    match kind:
        case inspect.EnumType():
            return (member.value for member in kind.cls)
        case inspect.LiteralType():
            return kind.values
    return ()


_TYPE: Final = re.compile(r"Expected `(?P<expected>[^`]*)`, got `(?P<given>[^`]*)`")
_BOUND: Final = re.compile(r"Expected `[^`]*` (?P<sign>[<>]=?) (?P<limit>[-+.0-9e]+)")
_LENGTH: Final = re.compile(r"Expected `(?P<type>[^`]*)` of length (?P<sign>[<>]=) (?P<limit>\d+)")
_PATTERN: Final = re.compile(r"Expected `[^`]*` matching regex .*", re.DOTALL)

_TYPE_NAMES: Final[Mapping[str, str]] = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "a boolean",
    "array": "an array",
    "object": "an object",
    "datetime": "a time",
}

_BOUNDS: Final = {
    "<=": "must be at most",
    ">=": "must be at least",
    "<": "must be less than",
    ">": "must be more than",
}

_LENGTH_UNITS: Final = {"str": "characters", "array": "items", "object": "fields"}


def explain_validation_error(reason: str) -> str:
    """Translate an error message of msgspec to plain words that can follow the name of a field.

    A message that is not recognized is returned unchanged.
    """
    if match := _TYPE.fullmatch(reason):
        expected = " or ".join(_TYPE_NAMES.get(name, name) for name in match["expected"].split(" | "))
        return f"must be {expected}, not {_TYPE_NAMES.get(match['given'], match['given'])}"
    if match := _BOUND.fullmatch(reason):
        return f"{_BOUNDS[match['sign']]} {match['limit'].removesuffix('.0')}"
    if match := _LENGTH.fullmatch(reason):
        if match["sign"] == ">=" and match["limit"] == "1":
            return "must not be empty"
        bound = "at most" if match["sign"] == "<=" else "at least"
        return f"must have {bound} {match['limit']} {_LENGTH_UNITS.get(match['type'], 'parts')}"
    return "does not match the required format" if _PATTERN.fullmatch(reason) else reason
