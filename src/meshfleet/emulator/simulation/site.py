"""A site: a gateway, and all that is put up around it.

The gateway stands at 0, 0 on floor 0; x and y are metres.
"""

from __future__ import annotations

from bisect import bisect_left
from hashlib import sha512
from typing import Final, NamedTuple

from msgspec import Struct

from meshfleet.emulator.simulation.products import DeviceMode, ProductProfile
from meshfleet.protocol.codes import AccessType
from meshfleet.protocol.ids import Mac

# Where something stands, and what stands between.


class SitePosition(NamedTuple):
    """Where something stands."""

    floor: int
    x: float
    y: float


class Walls(NamedTuple):
    """Walls run along whole floors, at these x and at these y; both ascend."""

    x: tuple[float, ...] = ()
    y: tuple[float, ...] = ()

    def count_between(self, a: SitePosition, b: SitePosition) -> int:
        """How many stand between two places."""
        return abs(bisect_left(self.x, a.x) - bisect_left(self.x, b.x)) + abs(
            bisect_left(self.y, a.y) - bisect_left(self.y, b.y)
        )


MAX_DEVICES: Final = 10_000
DEFAULT_NETWORK_KEY: Final = bytes.fromhex("00112233445566778899aabbccddeeff")
"""The network key, unless a site has another one."""


class SiteDevice(Struct, frozen=True, kw_only=True, gc=False):
    """One device as it is put up."""

    mac: Mac
    product: ProductProfile
    position: SitePosition
    mode: DeviceMode
    access: AccessType | None = None
    """None: it is provisioned."""
    battery: int
    """Percent on day one."""
    parent: Mac | None = None
    """The parent that it should have if it can."""


class Site(Struct, frozen=True, kw_only=True):
    """A gateway and all that stands around it."""

    gateway: Mac
    seed: int
    devices: tuple[SiteDevice, ...]
    walls: Walls = Walls()
    network_key: bytes = DEFAULT_NETWORK_KEY
    """The network key."""


def derive_public_key(mac: Mac) -> bytes:
    """The key with which an unprovisioned device introduces itself."""
    return b"\x04" + sha512(mac.encode()).digest()
