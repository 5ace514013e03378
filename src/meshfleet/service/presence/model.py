"""Changes of what is connected: plain values."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Cause(StrEnum):
    """Why a device is connected from a moment on, or no longer."""

    HEARD = "heard"
    SILENT = "silent"
    """Nothing was heard for three of its usual intervals."""
    GATEWAY = "gateway"
    """Its gateway came or went."""
    CONNECTION = "connection"
    """It is a gateway, and its MQTT connection began or ended."""


class Change(NamedTuple):
    """A device is connected from now on, or no longer."""

    device: int
    connected: bool
    at: int
    cause: Cause
    gateway: int
    """Through which it was heard; of a gateway, itself."""

    @classmethod
    def came(cls, device: int, at: int, cause: Cause, gateway: int) -> Change:
        """It is."""
        return cls(device, connected=True, at=at, cause=cause, gateway=gateway)

    @classmethod
    def went(cls, device: int, at: int, cause: Cause, gateway: int) -> Change:
        """It is not."""
        return cls(device, connected=False, at=at, cause=cause, gateway=gateway)
