"""How far an update is: the values of 8120, 8125 and 8130, which begin alike (firmware-4)."""

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


class ImageKey(NamedTuple):
    """Which firmware: for whom, and which version (firmware-1)."""

    model: ModelNumber
    version: Version

    @classmethod
    def from_bytes(cls, raw: bytes, at: int = 0) -> ImageKey:
        """Read it from a value that has been checked to hold one."""
        number, major, minor, patch, beta = _IMAGE.unpack_from(raw, at)
        return cls(format_model_number(number), Version(major, minor, patch, beta))

    def to_bytes(self) -> bytes:
        """Write it into a value."""
        major, minor, patch, _ = self.version
        return _IMAGE.pack(int(self.model, 16), major, minor, patch, self.version.beta)


IMAGE_KEY_SIZE: Final = _IMAGE.size


class UpdateStateValue(Struct):
    """Where an update stands."""

    image: ImageKey
    state: State = State.FETCHING
    percent: int = 0
    error: Error = Error.NONE

    def to_bytes(self) -> bytes:
        """Write it as the value of 8120; those of 8125 and 8130 have more behind it."""
        return _PROGRESS.pack(self.state, self.percent, self.error) + self.image.to_bytes()

    @property
    def is_done(self) -> bool:
        """Whether nothing more will happen."""
        return self.state in (State.DONE, State.FAILED)
