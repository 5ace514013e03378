"""How far an update of firmware is, as 8120, 8125 and 8130 tell it (firmware-4 to firmware-6)."""

from __future__ import annotations

from enum import IntEnum


class UpdateState(IntEnum):
    """What is being done; decoded, its name in lower case (firmware-5)."""

    IDLE = 0
    FETCHING = 1
    TRANSFERRING = 2
    VERIFYING = 3
    STAGED = 4
    APPLYING = 5
    DONE = 6
    FAILED = 7


class UpdateError(IntEnum):
    """Why an update failed (firmware-6)."""

    NONE = 0
    NO_IMAGE = 1
    WRONG_MODEL = 2
    BAD_HASH = 3
    DOWNGRADE = 4
    BATTERY = 5
    ABORTED = 6
    TRANSFER_LOST = 7
    ROLLED_BACK = 8
