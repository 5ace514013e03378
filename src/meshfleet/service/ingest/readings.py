"""Readings: heartbeats and other reports that change only device states and minute roll-ups.

Readings are kept in a journal in the database until the changed states and roll-ups are written.
"""

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
    """Added for the first samples of a device, so that a crash does not lose the new device."""
    FIRST_SAMPLE_IMPLAUSIBLE = 5
    """Added instead of FIRST_SAMPLE if no sample of the device has a plausible time."""


Reading: TypeAlias = tuple[int, int, int, int, Any, int, bool]
"""Kind, device, gateway and Unix time in milliseconds, followed by three values that depend on the kind:

    heartbeat             the status, 0, False
    link, dfu             RSSI, parent, and whether the device is unreachable through that parent
    fact                  the value of a property, its identifier, False
    first sample (both)   None, 0, False
"""

encode_readings = msgspec.msgpack.Encoder().encode
decode_readings = msgspec.msgpack.Decoder(list[tuple[int, int, int, int, Any, int, bool]]).decode
