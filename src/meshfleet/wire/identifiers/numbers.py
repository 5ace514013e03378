"""Identifiers as numbers, as they are stored.

A hex identifier is its own number. A name that the catalogue does not know gets a negative one, which is a
hash of it: every process gives the same, and nobody has to keep a list in order to know it.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from meshfleet.wire.identifiers.catalogue import BUILTIN
from meshfleet.wire.ids import Identifier, is_identifier

if TYPE_CHECKING:
    from meshfleet.wire.topics import AnyIdentifier


def identifier_number(text: AnyIdentifier) -> int:
    """The number of a hex identifier or a name; both ways to say the same give the same (report-37)."""
    if is_identifier(text):
        return int(text, 16)
    if (entry := BUILTIN.find(text)) is not None:
        return int(entry.id, 16)
    digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
    return -1 - (int.from_bytes(digest) >> 1)


def number_identifier(number: int) -> Identifier:
    """The hex identifier with this number, which is not negative."""
    digits = f"{number:x}"
    return Identifier(digits if len(digits) % 2 == 0 else f"0{digits}")
