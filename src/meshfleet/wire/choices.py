"""The values that a field can have, where these are some words or numbers."""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

from msgspec import inspect

if TYPE_CHECKING:
    from collections.abc import Iterable

    from msgspec import Struct

_MOST: Final = 20
"""Values that fit into a sentence."""

_STEP: Final = re.compile(r"[^.\[\]]+|\[[^\]]*\]")
"""Of a place as msgspec writes it: the name of a field, or `[…]` into an array or object."""


def none_of(kind: type[Struct], place: str) -> str:
    """What to say of a value that cannot be there."""
    types: list[inspect.Type] = [_type(kind)]
    for step in _STEP.findall(place):
        types = [inner for each in types for inner in _inside(each, step)]
    known = [str(value) for each in types for choice in _plain(each) for value in _values(choice)]
    return f"is none of {', '.join(known)}" if 0 < len(known) <= _MOST else "is none of its values"


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
