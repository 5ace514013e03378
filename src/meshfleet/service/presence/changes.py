"""Changes of the connection state of a device, each with its cause."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class PresenceCause(StrEnum):
    """Why a device or gateway changed to connected or disconnected."""

    HEARD = "heard"
    """A report of the device was received."""
    SILENT = "silent"
    """No report of the device was received for three of its usual heartbeat intervals."""
    GATEWAY = "gateway"
    """The device's gateway connected or disconnected."""
    CONNECTION = "connection"
    """The device is a gateway, and its MQTT connection started or ended."""


class PresenceChange(NamedTuple):
    """Connection or disconnection of a device."""

    device: int
    connected: bool
    at: int
    """Local Unix time of the change in milliseconds."""
    cause: PresenceCause
    gateway: int
    """Gateway through which reports of the device were received; for a gateway, the gateway itself."""

    @classmethod
    def to_connected(cls, device: int, at: int, cause: PresenceCause, gateway: int) -> PresenceChange:
        """Create a change to connected of a device at `at`, a Unix time in milliseconds."""
        return cls(device, connected=True, at=at, cause=cause, gateway=gateway)

    @classmethod
    def to_disconnected(cls, device: int, at: int, cause: PresenceCause, gateway: int) -> PresenceChange:
        """Create a change to disconnected of a device at `at`, a Unix time in milliseconds."""
        return cls(device, connected=False, at=at, cause=cause, gateway=gateway)
