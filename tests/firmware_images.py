"""Bare firmware images for tests, with everything that the service checks."""

from __future__ import annotations

import struct
from typing import Final

_BASE: Final = 0x26000
"""Start of the application in the flash of an nRF52 with a SoftDevice."""

_STACK: Final = 0x20010000
_VECTORS: Final = 16
_CORE: Final = (1, 2, 3, 4, 5, 6, 11, 12, 14, 15)
"""Reset and the exceptions of the core; the others are reserved and zero."""


def bare_image(content: bytes = b"", *, size: int = 1024) -> bytes:
    """Build a bare image of at least `size` bytes: a valid vector table, then `content`."""
    vectors = [0] * _VECTORS
    vectors[0] = _STACK
    for number in _CORE:
        vectors[number] = _BASE + 0x40 + 2 * number | 1
    return (struct.pack(f"<{_VECTORS}I", *vectors) + content).ljust(size, b"\xff")
