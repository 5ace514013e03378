"""Readings: heartbeats and other reports that change only device states and minute roll-ups.

Readings are kept in a journal in the database until the changed states and roll-ups are written.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final, TypeAlias

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


# The last field of a reading is a number, so that ingest creates no object for the rarely used details.

UNREACHABLE: Final = 1
"""Flag of a link: the device cannot be reached through the parent."""
CHANNEL_SHIFT: Final = 1
"""Position of the two bits with the advertising channel: 1 to 3 for channel 37 to 39, 0 without a channel."""
CHANNEL_MASK: Final = 3 << CHANNEL_SHIFT
CHANNEL_BASE: Final = 36
"""Number that is subtracted from an advertising channel to store it in two bits."""
SEQ_SHIFT: Final = 3
"""Position of the nine bits with `seq` + 1; 0 if the report has no `seq`."""
SEQ_MASK: Final = 0x1FF << SEQ_SHIFT
COPIES_SHIFT: Final = 12
"""Position of `lastCount` + 1 of a heartbeat; 0 if the heartbeat has none."""

Reading: TypeAlias = tuple[int, int, int, int, Any, int, int]
"""Kind, device, gateway and Unix time in milliseconds, followed by three values that depend on the kind:

    heartbeat             the status, 0, and flags with `seq` and `lastCount`
    link                  RSSI, parent, and flags with `unreachable`, the channel and `seq`
    dfu                   RSSI, parent, 0
    fact                  the value of a property, its identifier, 0
    first sample (both)   None, 0, 0
"""

encode_readings = msgspec.msgpack.Encoder().encode
decode_readings = msgspec.msgpack.Decoder(list[tuple[int, int, int, int, Any, int, int | bool]]).decode
"""Decode the readings of a journal entry. Version 0.1.0 wrote `unreachable` instead of the flags."""
