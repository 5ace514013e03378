"""Site of a simulation: a gateway and the devices installed around it.

The gateway is at x = 0, y = 0 on floor 0; x and y are in meters.
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import sha512
from typing import Final, NamedTuple

from msgspec import Struct

from meshfleet.emulator.simulation.products import DeviceMode, ProductProfile
from meshfleet.protocol.codes import AccessType
from meshfleet.protocol.ids import Mac

# Positions and the walls between them


class SitePosition(NamedTuple):
    """Position in a building: floor, and x and y in meters."""

    floor: int
    x: float
    y: float


class Walls(NamedTuple):
    """Straight walls through the whole building, at ascending x and y coordinates in meters."""

    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()

    def count_walls_between(self, start: SitePosition, end: SitePosition) -> int:
        """Return the number of walls that a straight line between two positions crosses."""
        return abs(bisect_left(self.x, start.x) - bisect_left(self.x, end.x)) + abs(
            bisect_left(self.y, start.y) - bisect_left(self.y, end.y)
        )


MAX_DEVICES: Final = 10_000
DEFAULT_NETWORK_KEY: Final = bytes.fromhex("00112233445566778899aabbccddeeff")
"""Network key of sites that do not set a key of their own."""


class SiteDevice(Struct, frozen=True, kw_only=True, gc=False):
    """Device installed at a site: product, position and initial state."""

    mac: Mac
    product: ProductProfile
    position: SitePosition
    mode: DeviceMode
    access: AccessType | None = None
    """Access type that requests to the device must contain; None for a provisioned device."""
    battery: int
    """Initial battery level in percent."""
    parent: Mac | None = None
    """MAC of the preferred mesh parent; None for no preference."""


class Site(Struct, frozen=True, kw_only=True):
    """Gateway with the devices and walls around it."""

    gateway: Mac
    seed: int
    devices: tuple[SiteDevice, ...]
    walls: Walls = Walls()
    network_key: bytes = DEFAULT_NETWORK_KEY
    """Network key that requests to devices may contain."""


def derive_public_key(mac: Mac) -> bytes:
    """Return the public key of an unprovisioned device, derived from its MAC."""
    return b"\x04" + sha512(mac.encode()).digest()
