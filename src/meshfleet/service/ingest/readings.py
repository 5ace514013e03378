"""Readings: reports that are not samples, journaled until they are in device states and roll-ups."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeAlias

import msgspec


class ReadingKind(IntEnum):
    """Kind of a reading."""

    HEARTBEAT = 0
    LINK = 1
    DFU = 2
    FACT = 3
    FIRST_SAMPLE = 4
    """Sample of a device that is not in the journal yet."""
    FIRST_SAMPLE_IMPLAUSIBLE = 5
    """Sample with an implausible time of a device that is not in the journal yet."""


Reading: TypeAlias = tuple[int, int, int, int, Any, int, bool]
"""Kind, device, gateway and time, followed by three values that depend on the kind:

    heartbeat    the status
    link, dfu    RSSI, parent, and whether the device is unreachable through that parent
    fact         the value of a property, and its identifier
"""

encode_readings = msgspec.msgpack.Encoder().encode
decode_readings = msgspec.msgpack.Decoder(list[tuple[int, int, int, int, Any, int, bool]]).decode
