"""Changes of what is connected: plain values."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class PresenceCause(StrEnum):
    """Why a device is connected from a moment on, or no longer."""

    HEARD = "heard"
    SILENT = "silent"
    """Nothing was heard for three of its usual intervals."""
    GATEWAY = "gateway"
    """Its gateway came or went."""
    CONNECTION = "connection"
    """It is a gateway, and its MQTT connection began or ended."""


class PresenceChange(NamedTuple):
    """A device is connected from now on, or no longer."""

    device: int
    connected: bool
    at: int
    cause: PresenceCause
    gateway: int
    """Through which it was heard; of a gateway, itself."""

    @classmethod
    def to_connected(cls, device: int, at: int, cause: PresenceCause, gateway: int) -> PresenceChange:
        """It is."""
        return cls(device, connected=True, at=at, cause=cause, gateway=gateway)

    @classmethod
    def to_disconnected(cls, device: int, at: int, cause: PresenceCause, gateway: int) -> PresenceChange:
        """It is not."""
        return cls(device, connected=False, at=at, cause=cause, gateway=gateway)
