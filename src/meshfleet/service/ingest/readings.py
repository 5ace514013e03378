"""Readings: reports that are no samples, but must not be lost before they are counted."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import msgspec


class ReadingKind(IntEnum):
    """What was read."""

    HEARTBEAT = 0
    LINK = 1
    DFU = 2
    FACT = 3
    FIRST_SAMPLE = 4
    """A device that was not heard before sent a sample."""
    FIRST_SAMPLE_IMPLAUSIBLE = 5
    """The same, but nobody believes when."""


Reading: TypeAlias = tuple[int, int, int, int, Any, int, bool]
"""Kind, device, gateway and time; then

heartbeat    its status
link, dfu    RSSI, the parent, and whether the device cannot be reached through it
fact         the value of a property, and its identifier
"""

encode_readings = msgspec.msgpack.Encoder().encode
decode_readings = msgspec.msgpack.Decoder(list[tuple[int, int, int, int, Any, int, bool]]).decode
