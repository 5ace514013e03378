"""Converts sample identifiers between hex ids or names in REST and the integers stored in samples."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.db import Database, bulk
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.identifiers.numbers import identifier_from_int, identifier_to_int
from meshfleet.protocol.ids import Identifier, is_identifier, parse_identifier_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection

    from meshfleet.protocol.topics import AnyIdentifier

_CACHE_SIZE: Final = 4096
"""Maximum number of cached identifiers. A few dozen exist; only a hostile REST client uses more."""

_SELECT_NAMES: Final = "SELECT number, name FROM foreign_name WHERE number IN numbers"


class IdentifierTitle(NamedTuple):
    """Hex id, name and unit of an identifier."""

    identifier: Identifier | None
    """Hex id; None for an identifier that is known only by a name outside the catalogue."""
    name: str | None
    unit: str | None = None


def parse_any_identifier(text: str, field: str = "Identifier") -> AnyIdentifier:
    """Parse a hex identifier in upper or lower case, or an identifier name (rest-83)."""
    lower = text.lower()
    return Identifier(lower) if is_identifier(lower) else parse_identifier_name(text, field)


def list_identifier_names() -> dict[int, str]:
    """Return the names of all identifiers of the catalogue, by stored integer."""
    return {identifier_to_int(entry.id): entry.name for entry in BUILTIN_CATALOGUE}


async def load_foreign_names(database: Database, numbers: Iterable[int]) -> dict[int, str]:
    """Load the names of identifiers that are not in the catalogue, by stored integer.

    Negative integers stand for such names; other integers in `numbers` are ignored.
    """
    foreign_numbers = {number for number in numbers if number < 0}
    return await database.read(_select_names, sorted(foreign_numbers)) if foreign_numbers else {}


def describe_identifier(number: int, foreign: Mapping[int, str]) -> IdentifierTitle:
    """Return the hex id, name and unit of an identifier that is stored as an integer.

    `foreign` has the names that are not in the catalogue, by stored integer.
    """
    return IdentifierTitle(None, foreign.get(number)) if number < 0 else _describe_hex_identifier(number)


@lru_cache(_CACHE_SIZE)
def _describe_hex_identifier(number: int) -> IdentifierTitle:
    identifier = identifier_from_int(number)
    entry = BUILTIN_CATALOGUE.find(identifier)
    if entry is None:
        return IdentifierTitle(identifier, None)
    return IdentifierTitle(identifier, entry.name, entry.unit or None)


def _select_names(connection: Connection, numbers: list[int]) -> dict[int, str]:
    return dict(tuple(row) for row in bulk.query_in(connection, _SELECT_NAMES, numbers))
