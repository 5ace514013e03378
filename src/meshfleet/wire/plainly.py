"""What msgspec says of a value that it does not take, in words for people."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def plainly(reason: str) -> str:
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
