"""Small sites for tests."""

from __future__ import annotations

from meshfleet.gateway.world.mesh import Mesh
from meshfleet.gateway.world.places import Place
from meshfleet.gateway.world.products import BY_CODE
from meshfleet.gateway.world.site import Fixture, Site
from meshfleet.wire.ids import Mac

GATEWAY = Mac("d0cf5e000001")


def put(number: int, x: float, y: float = 0.0, *, code: str = "0018", parent: Mac | None = None) -> Fixture:
    """One device, with a number for a MAC."""
    product = BY_CODE[code]
    return Fixture(
        mac=mac(number), product=product, place=Place(0, x, y), mode=product.usual, battery=90, parent=parent
    )


def mac(number: int) -> Mac:
    return Mac(f"c000000000{2 * number:02x}")


def mesh_of(*devices: Fixture, seed: int = 1) -> Mesh:
    return Mesh(Site(gateway=GATEWAY, seed=seed, devices=devices))
