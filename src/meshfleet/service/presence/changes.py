"""Changes of the connection state, as plain values."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class PresenceCause(StrEnum):
    """Cause of a connection or disconnection."""

    HEARD = "heard"
    SILENT = "silent"
    """No report for three of its usual intervals."""
    GATEWAY = "gateway"
    """Its gateway connected or disconnected."""
    CONNECTION = "connection"
    """The device is a gateway, and its MQTT connection started or ended."""


class PresenceChange(NamedTuple):
    """Connection or disconnection of a device."""

    device: int
    connected: bool
    at: int
    cause: PresenceCause
    gateway: int
    """Gateway through which it was seen; for a gateway, itself."""

    @classmethod
    def to_connected(cls, device: int, at: int, cause: PresenceCause, gateway: int) -> PresenceChange:
        """Create the change of a device that is connected from now on."""
        return cls(device, connected=True, at=at, cause=cause, gateway=gateway)

    @classmethod
    def to_disconnected(cls, device: int, at: int, cause: PresenceCause, gateway: int) -> PresenceChange:
        """Create the change of a device that is no longer connected."""
        return cls(device, connected=False, at=at, cause=cause, gateway=gateway)
