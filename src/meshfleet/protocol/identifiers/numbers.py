"""Identifiers as numbers, as they are stored.

A hex identifier is its own number. One that begins with zero bytes (`00ef`) also has its length in the
number, above the four bytes of the value, so that it is not the identifier `ef` (id-32). A name that the
catalogue does not hold gets a negative number, a hash of the name: every process computes the same one,
without a shared list.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from meshfleet.protocol.identifiers.catalogue import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Identifier, is_identifier

if TYPE_CHECKING:
    from meshfleet.protocol.topics import AnyIdentifier


_VALUE_BITS: Final = 32
"""Bits of an identifier's value; its length is above them where the value alone does not tell it."""


def identifier_to_int(text: AnyIdentifier) -> int:
    """Return the number of an identifier: the same for its hex and for its name (report-37)."""
    if is_identifier(text):
        return _hex_number(text)
    if (entry := BUILTIN_CATALOGUE.find(text)) is not None:
        return int(entry.id, 16)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return -1 - (int.from_bytes(digest) >> 1)


def identifier_from_int(number: int) -> Identifier:
    """Return the hex identifier with this number, which is not negative."""
    length, value = divmod(number, 1 << _VALUE_BITS)
    return Identifier(value.to_bytes(length or _shortest(value)).hex())


def _hex_number(text: str) -> int:
    value, length = int(text, 16), len(text) // 2
    return value if length == _shortest(value) else length << _VALUE_BITS | value


def _shortest(value: int) -> int:
    """Count the bytes of a value without zeros in front."""
    return max(1, (value.bit_length() + 7) // 8)
