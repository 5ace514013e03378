"""State of a firmware update, with which the properties 8120, 8125 and 8130 begin (firmware-4)."""

from __future__ import annotations

from struct import Struct as Layout
from typing import Final, NamedTuple

from msgspec import Struct

from meshfleet.protocol.codes import UpdateErrorCode as Error
from meshfleet.protocol.codes import UpdateState as State
from meshfleet.protocol.ids import ModelNumber, Version, format_model_number

__all__ = ["IMAGE_KEY_SIZE", "Error", "ImageKey", "State", "UpdateStateValue"]

_IMAGE: Final = Layout(">H4B")
_PROGRESS: Final = Layout(">3B")

_REPORT_STEP_PERCENT: Final = 5
"""Percentage points of progress between two reports of an update."""


class ImageKey(NamedTuple):
    """Model number and version of a firmware image (firmware-1)."""

    model: ModelNumber
    version: Version

    @classmethod
    def from_bytes(cls, raw: bytes, offset: int = 0) -> ImageKey:
        """Decode model number and version from a raw value whose length has been checked."""
        number, major, minor, patch, beta = _IMAGE.unpack_from(raw, offset)
        return cls(format_model_number(number), Version(major, minor, patch, beta))

    def to_bytes(self) -> bytes:
        """Encode model number and version as a raw value."""
        major, minor, patch, _ = self.version
        return _IMAGE.pack(int(self.model, 16), major, minor, patch, self.version.beta)


IMAGE_KEY_SIZE: Final = _IMAGE.size


class UpdateStateValue(Struct):
    """State, progress and error of a firmware update."""

    image: ImageKey
    state: State = State.FETCHING
    percent: int = 0
    error: Error = Error.NONE
    reported_percent: int = 0
    """Percentage in the last report of the update."""

    def record_report_if_due(self) -> bool:
        """Return whether the progress must be reported now. If so, record the percentage as reported."""
        if 0 < self.percent < self.reported_percent + _REPORT_STEP_PERCENT:
            return False
        self.reported_percent = self.percent
        return True

    def to_bytes(self) -> bytes:
        """Encode as the raw value of property 8120. The values of 8125 and 8130 begin in the same way."""
        return _PROGRESS.pack(self.state, self.percent, self.error) + self.image.to_bytes()

    @property
    def is_done(self) -> bool:
        """Whether the update has ended, successfully or not."""
        return self.state in (State.DONE, State.FAILED)
