"""Small sites for tests."""

from __future__ import annotations

from meshfleet.emulator.simulation.mesh import SimulatedMesh
from meshfleet.emulator.simulation.products import PRODUCTS_BY_CODE
from meshfleet.emulator.simulation.site import Site, SiteDevice, SitePosition
from meshfleet.protocol.ids import Mac

GATEWAY = Mac("d0cf5e000001")


def place_device(
    number: int, x: float, y: float = 0.0, *, code: str = "0018", parent: Mac | None = None
) -> SiteDevice:
    """Return a device whose MAC is derived from a number."""
    product = PRODUCTS_BY_CODE[code]
    return SiteDevice(
        mac=device_mac(number),
        product=product,
        position=SitePosition(0, x, y),
        mode=product.default_mode,
        battery=90,
        parent=parent,
    )


def device_mac(number: int) -> Mac:
    return Mac(f"c000000000{2 * number:02x}")


def build_mesh(*devices: SiteDevice, seed: int = 1) -> SimulatedMesh:
    return SimulatedMesh(Site(gateway=GATEWAY, seed=seed, devices=devices))
