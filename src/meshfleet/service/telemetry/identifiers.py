"""Identifiers as clients say them and read them; samples have numbers."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db import bulk
from meshfleet.wire.identifiers import BUILTIN
from meshfleet.wire.identifiers.numbers import number_identifier
from meshfleet.wire.ids import Identifier, is_identifier, parse_identifier_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.wire.topics import AnyIdentifier

_KNOWN: Final = 4096
"""There are some dozens of identifiers; this many only if somebody makes them up."""

_NAMES: Final = "SELECT number, name FROM foreign_name WHERE number IN numbers"


class Title(NamedTuple):
    """What an identifier is called."""

    identifier: Identifier | None
    """None: it is known by a foreign name only."""
    name: str | None
    unit: str | None = None


def parse_asked(text: str, field: str = "Identifier") -> AnyIdentifier:
    """Read a hex identifier in either case, or a name (rest-83)."""
    lower = text.lower()
    return Identifier(lower) if is_identifier(lower) else parse_identifier_name(text, field)


async def foreign_names(database: Database, numbers: Iterable[int]) -> dict[int, str]:
    """The names among these identifiers that the catalogue does not know."""
    foreign = {number for number in numbers if number < 0}
    return await database.read(_read_names, sorted(foreign)) if foreign else {}


def title(number: int, foreign: Mapping[int, str]) -> Title:
    """What an identifier is called, if it is in the catalogue or among these names."""
    return Title(None, foreign.get(number)) if number < 0 else _known(number)


@lru_cache(_KNOWN)
def _known(number: int) -> Title:
    identifier = number_identifier(number)
    entry = BUILTIN.find(identifier)
    return Title(identifier, None) if entry is None else Title(identifier, entry.name, entry.unit or None)


def _read_names(connection: Connection, numbers: list[int]) -> dict[int, str]:
    return dict(tuple(row) for row in bulk.pick(connection, _NAMES, numbers))
