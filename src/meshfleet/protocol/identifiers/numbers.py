"""Numbers under which identifiers are stored.

A hex identifier is its own number. If it has leading zero bytes (`00ef`), its length is also in the number,
above the four bytes of the value, so that it differs from the identifier `ef` (id-32). A name that is not in
the catalogue gets a negative number, a hash of the name: every process computes the same one, without a
shared list.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from meshfleet.protocol.identifiers.catalogue import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Identifier, is_identifier

if TYPE_CHECKING:
    from meshfleet.protocol.topics import AnyIdentifier


_VALUE_BITS: Final = 32
"""Bits of the value; the length is stored above them unless it follows from the value."""


def identifier_to_int(text: AnyIdentifier) -> int:
    """Return the number of an identifier: the same for its hex and its name (report-37)."""
    if is_identifier(text):
        return _hex_to_int(text)
    if (entry := BUILTIN_CATALOGUE.find(text)) is not None:
        return int(entry.id, 16)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return -1 - (int.from_bytes(digest) >> 1)


def identifier_from_int(number: int) -> Identifier:
    """Return the hex identifier of a number that is not negative."""
    length, value = divmod(number, 1 << _VALUE_BITS)
    return Identifier(value.to_bytes(length or _min_length(value)).hex())


def _hex_to_int(text: str) -> int:
    value, length = int(text, 16), len(text) // 2
    return value if length == _min_length(value) else length << _VALUE_BITS | value


def _min_length(value: int) -> int:
    """Return the number of bytes of a value without leading zeros."""
    return max(1, (value.bit_length() + 7) // 8)
