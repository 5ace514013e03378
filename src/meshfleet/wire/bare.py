"""Bare firmware images: the bytes that a Cortex-M chip runs, without a package around them.

A bare image says neither its model nor its version. What can be checked is its beginning, the vector table
(Armv7-M, B1.5.3): the initial stack pointer, then the addresses of the reset and exception handlers, each odd
because the code is Thumb code. The ranges are those of the nRF51 and nRF52 and of the nRF5340.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_SIZE: Final = 256
"""Bytes: 16 words of the core, the interrupts of the smallest chip (32 words), and some code."""

MAX_SIZE: Final = 1024 * 1024
"""Bytes: the flash of the largest chip."""

_RAM: Final = 0x20000000
_RAM_END: Final = _RAM + 512 * 1024
_TABLE: Final = struct.Struct("<16I")

_HANDLERS: Final = {
    2: "NMI",
    3: "HardFault",
    4: "MemManage",
    5: "BusFault",
    6: "UsageFault",
    11: "SVCall",
    12: "DebugMonitor",
    14: "PendSV",
    15: "SysTick",
}
"""The exceptions of the core besides reset. The words between them are reserved and may hold anything."""


def check_bare(image: bytes) -> list[str]:
    """Return what keeps a file from being a bare image, in plain words; an empty list: nothing."""
    if len(image) < MIN_SIZE:
        return [f"it has {len(image)} bytes; a bare image has at least {MIN_SIZE}"]
    if len(image) > MAX_SIZE:
        return [f"it has {len(image)} bytes; no chip holds more than {MAX_SIZE}"]
    return list(_check_vectors(_TABLE.unpack_from(image), len(image)))


def _check_vectors(words: tuple[int, ...], size: int) -> Iterator[str]:
    stack, reset = words[:2]
    if not _RAM < stack <= _RAM_END or stack % 4:
        yield f"its initial stack pointer {stack:#010x} is no address in RAM"
    if not _is_code(reset):
        yield f"its reset vector {reset:#010x} is no address of code in flash"
    handlers = {number: words[number] for number in _HANDLERS if words[number]}
    for number, address in handlers.items():
        if not _is_code(address):
            name = f"exception {number} ({_HANDLERS[number]})"
            yield f"its vector {address:#010x} of {name} is no address of code in flash"
    # The application may begin anywhere in flash, but all its handlers are inside it.
    code = [address for address in (reset, *handlers.values()) if _is_code(address)]
    if code and max(code) - min(code) >= size:
        yield f"its vectors are farther apart than its {size} bytes"


def _is_code(address: int) -> bool:
    """Tell whether a vector points to Thumb code in flash, behind the vector table."""
    return address % 2 == 1 and _TABLE.size < address < MAX_SIZE
