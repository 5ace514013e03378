"""What msgspec says of a value that it does not take, in words for people."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from msgspec import Struct


# The values that a field can have, where these are some words or numbers.

_MAX_LISTED_VALUES: Final = 20
"""Values that fit into a sentence."""

_STEP: Final = re.compile(r"[^.\[\]]+|\[[^\]]*\]")
"""Of a place as msgspec writes it: the name of a field, or `[…]` into an array or object."""


def explain_invalid_choice(kind: type[Struct], place: str) -> str:
    """What to say of a value that cannot be there."""
    types: list[inspect.Type] = [_type(kind)]
    for step in _STEP.findall(place):
        types = [inner for each in types for inner in _inside(each, step)]
    known = [str(value) for each in types for choice in _plain(each) for value in _values(choice)]
    return (
        f"is none of {', '.join(known)}" if 0 < len(known) <= _MAX_LISTED_VALUES else "is none of its values"
    )


@cache
def _type(kind: type[Struct]) -> inspect.Type:
    return inspect.type_info(kind)


def _plain(kind: inspect.Type) -> Iterable[inspect.Type]:
    """The types that a type can be."""
    match kind:
        case inspect.UnionType():
            return (inner for each in kind.types for inner in _plain(each))
        case inspect.Metadata():
            return _plain(kind.type)
    return (kind,)


def _inside(kind: inspect.Type, step: str) -> Iterable[inspect.Type]:
    for each in _plain(kind):
        match each:
            case inspect.StructType():
                yield from (field.type for field in each.fields if field.encode_name == step)
            case inspect.ListType() | inspect.VarTupleType():
                yield each.item_type
            case inspect.DictType():
                yield each.value_type


def _values(kind: inspect.Type) -> Iterable[object]:
    match kind:
        case inspect.EnumType():
            return (each.value for each in kind.cls)
        case inspect.LiteralType():
            return kind.values
    return ()


_TYPE: Final = re.compile(r"Expected `(?P<wanted>[^`]*)`, got `(?P<given>[^`]*)`")
_BOUND: Final = re.compile(r"Expected `[^`]*` (?P<sign>[<>]=?) (?P<limit>[-+.0-9e]+)")
_LENGTH: Final = re.compile(r"Expected `(?P<kind>[^`]*)` of length (?P<sign>[<>]=) (?P<limit>\d+)")
_PATTERN: Final = re.compile(r"Expected `[^`]*` matching regex .*", re.DOTALL)

_TYPES: Final[Mapping[str, str]] = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
    "datetime": "a time",
}

_SIGNS: Final = {"<=": "is more than", ">=": "is less than", "<": "is not less than", ">": "is not more than"}
"""What is wrong with a number that should be so."""

_PARTS: Final = {"str": "characters", "array": "items", "object": "fields"}


def explain_validation_error(reason: str) -> str:
    """The same, to be read behind the name of a field; what we do not know is left as it is."""
    if found := _TYPE.fullmatch(reason):
        wanted = " or ".join(_TYPES.get(each, each) for each in found["wanted"].split(" | "))
        return f"is {_TYPES.get(found['given'], found['given'])}, not {wanted}"
    if found := _BOUND.fullmatch(reason):
        return f"{_SIGNS[found['sign']]} {found['limit'].removesuffix('.0')}"
    if found := _LENGTH.fullmatch(reason):
        if found["sign"] == ">=" and found["limit"] == "1":
            return "is empty"
        many = "more" if found["sign"] == "<=" else "fewer"
        return f"has {many} than {found['limit']} {_PARTS.get(found['kind'], 'parts')}"
    return "is not spelt as it must be" if _PATTERN.fullmatch(reason) else reason
