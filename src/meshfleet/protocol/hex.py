"""Bytes as hex text, the way payloads carry raw values and keys."""

from __future__ import annotations

from binascii import unhexlify
from typing import NewType, final

from meshfleet.errors.protocol import MalformedHex

Hex = NewType("Hex", str)
"""An even number of hex digits, in the case in which they came. Compare bytes, not texts."""


def parse_hex(text: str, field: str = "value") -> bytes:
    """Read hex in either case. The text is never repeated in the error: it may be a key."""
    try:
        return unhexlify(text)
    except ValueError as exc:
        raise MalformedHex(field, "is not an even number of hex digits") from exc


def format_hex(raw: bytes) -> Hex:
    """Write bytes as we always do: in lower case (id-26)."""
    return Hex(raw.hex())


@final
class Secret:
    """A key on its way through. It shows itself to nobody but the payload it is written to (request-32)."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def reveal(self) -> Hex:
        """Hand out the key as hex."""
        return format_hex(self._raw)

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self._raw)
