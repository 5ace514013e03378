"""Conversion of identifiers to the numbers that the database stores.

The number of a hex identifier is its value. If the identifier has leading zero bytes, its length in bytes is
added above the lowest 32 bits, so that `00ef` and `ef` have different numbers (id-32). The number of a name
that is not in the catalogue is negative, computed from a hash of the name. So every process computes the same
number, without a shared list.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final

from meshfleet.protocol.identifiers.catalogue import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import Identifier, is_identifier

if TYPE_CHECKING:
    from meshfleet.protocol.topics import AnyIdentifier


_VALUE_BITS: Final = 32
"""Number of low bits for the value of a hex identifier. The bits above hold its length in bytes, or 0 if it
has no leading zero bytes."""


def identifier_to_int(text: AnyIdentifier) -> int:
    """Return the number that the database stores for an identifier.

    The hex form and the name of an identifier in the catalogue have the same number (report-37).
    """
    if is_identifier(text):
        return _convert_hex(text)
    if (entry := BUILTIN_CATALOGUE.find(text)) is not None:
        return int(entry.id, 16)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return -1 - (int.from_bytes(digest) >> 1)


def identifier_from_int(number: int) -> Identifier:
    """Return the hex identifier for a stored number. The number must not be negative: it would be a name."""
    length, value = divmod(number, 1 << _VALUE_BITS)
    return Identifier(value.to_bytes(length or _count_required_bytes(value)).hex())


def _convert_hex(text: str) -> int:
    """Return the stored number of a hex identifier."""
    value, length = int(text, 16), len(text) // 2
    return value if length == _count_required_bytes(value) else length << _VALUE_BITS | value


def _count_required_bytes(value: int) -> int:
    """Return the minimum number of bytes that can hold `value`, at least 1."""
    return max(1, (value.bit_length() + 7) // 8)
