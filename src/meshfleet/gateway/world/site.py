"""A site: a gateway, and all that is put up around it.

The gateway stands at 0, 0 on floor 0; x and y are metres.
"""

from __future__ import annotations

from hashlib import sha512
from typing import Final

from msgspec import Struct

from meshfleet.gateway.world.places import Place, Walls
from meshfleet.gateway.world.products import Mode, Product
from meshfleet.wire.codes import AccessType
from meshfleet.wire.ids import Mac

MAX_DEVICES: Final = 10_000
KEY: Final = bytes.fromhex("00112233445566778899aabbccddeeff")
"""The network key, unless a site has another one."""


class Fixture(Struct, frozen=True, kw_only=True, gc=False):
    """One device as it is put up."""

    mac: Mac
    product: Product
    place: Place
    mode: Mode
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
    devices: tuple[Fixture, ...]
    walls: Walls = Walls()
    key: bytes = KEY
    """The network key."""


def public_key(mac: Mac) -> bytes:
    """The key with which an unprovisioned device introduces itself."""
    return b"\x04" + sha512(mac.encode()).digest()
