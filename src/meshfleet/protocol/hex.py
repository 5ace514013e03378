"""Bytes as hex strings: the form of raw values and keys in payloads."""

from __future__ import annotations

from binascii import unhexlify
from typing import NewType, final

from meshfleet.errors.protocol import MalformedHex

Hex = NewType("Hex", str)
"""String of hex digits, two per byte, in upper or lower case. Compare the bytes, not the strings."""


def parse_hex(text: str, field: str = "value") -> bytes:
    """Parse hex digits in upper or lower case. The error never contains the digits, which may be a key."""
    try:
        return unhexlify(text)
    except ValueError as exc:
        raise MalformedHex(field, "is not an even number of hex digits") from exc


def format_hex(raw: bytes) -> Hex:
    """Format bytes as lower-case hex (id-26)."""
    return Hex(raw.hex())


@final
class Secret:
    """Cryptographic key that never appears in logs and errors; only `reveal` returns the key (request-32)."""

    __slots__ = ("_raw",)

    def __init__(self, raw: bytes) -> None:
        self._raw = raw

    def reveal(self) -> Hex:
        """Return the key as hex, for a payload."""
        return format_hex(self._raw)

    def __repr__(self) -> str:
        return "Secret(…)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._raw == other._raw

    def __hash__(self) -> int:
        return hash(self._raw)
