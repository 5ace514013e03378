"""Generates sites (a gateway and the devices around it) from a seed.

The parameter `next_random` of these functions returns the next pseudo-random number, from 0 to below 1.
"""

from __future__ import annotations

from itertools import count
from math import ceil, cos, hypot, pi, sin, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.emulator.simulation import radio
from meshfleet.emulator.simulation.noise import derive_noise_key, uniform_noise
from meshfleet.emulator.simulation.products import PRODUCTS_BY_CODE, NodeRole, ProductProfile
from meshfleet.emulator.simulation.site import MAX_DEVICES, Site, SiteDevice, SitePosition, Walls
from meshfleet.protocol.codes import AccessType
from meshfleet.protocol.ids import Mac

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_FIRST_TEN_CODES: Final = "0043 0018 0005 000F 0050 0018 0011-01 0040 0011-04 0060"
_NEXT_TEN_CODES: Final = "0043 0018 0005 000F 0050 0063 0011-01 0040 0011-04 0060"
PRODUCT_CYCLE: Final = tuple(
    PRODUCTS_BY_CODE[code] for code in f"{_FIRST_TEN_CODES} {_NEXT_TEN_CODES}".split()
)

_UNSECURED_DEVICES: Final = {
    8: (PRODUCTS_BY_CODE["000F"], AccessType.LEGACY),
    9: (PRODUCTS_BY_CODE["0063"], AccessType.UNPROVISIONED),
}
"""Product and access type of devices outside the secure network, by device index (sites of 10 or more)."""

_DEVICES_ON_A_FLOOR: Final = 60
_FLOORS: Final = (0, 1, -1, 2, -2, 3, -3, 4, -4)
_PLACEMENT_ATTEMPTS: Final = 8
_MAX_EXTENDER_HOPS: Final = 7
"""Maximum number of hops from the gateway to a generated extender, to stay below the tree's maximum depth."""
_SAFE_LINK_DBM: Final = -84.0
"""Minimum mean RSSI in dBm with which links between extenders do not break by fading (inclusive)."""
_GOOD_SPACING_METERS: Final = 9.0
"""Distance in meters from other relays above which a position for an extender is accepted at once."""
_VERTICAL_FRACTION: Final = 0.15
"""Fraction of extenders above or below an extender of the adjacent floor nearer to the gateway.

It applies to all floors except floor 0, the floor of the gateway.
"""


class _RelayPosition(NamedTuple):
    """Position of the gateway or of an extender, with its minimum number of hops to the gateway."""

    position: SitePosition
    hops: int


def generate_site(gateway: Mac, *, devices: int, seed: int) -> Site:
    """Generate a site with `devices` devices. Equal arguments give equal sites."""
    if not 0 <= devices <= MAX_DEVICES:
        raise ValueError(f"devices must be from 0 to {MAX_DEVICES}, not {devices}")
    key = derive_noise_key("site", seed, gateway)
    next_random = (uniform_noise(key, n) for n in count()).__next__
    walls = Walls(_generate_walls(devices, next_random), _generate_walls(devices, next_random))
    products = [_select_product(index, devices) for index in range(devices)]
    floors = _FLOORS[: ceil((devices / _DEVICES_ON_A_FLOOR) ** 0.6)]  # large buildings also grow in width
    floors_by_device = [floors[index * len(floors) // devices] for index in range(devices)]
    positions = _place_devices(products, floors_by_device, walls=walls, next_random=next_random)
    first_mac = derive_first_mac(gateway, seed)
    return Site(
        gateway=gateway,
        seed=seed,
        walls=walls,
        devices=tuple(
            SiteDevice(
                # Even MACs only: the next MAC is the address in DFU mode and must be unused.
                mac=Mac(f"{first_mac + 2 * index:012x}"),
                product=product,
                position=position,
                mode=product.default_mode,
                access=_UNSECURED_DEVICES[index][1]
                if index in _UNSECURED_DEVICES and devices > max(_UNSECURED_DEVICES)
                else None,
                battery=55 + int(46 * next_random()) if product.has_battery else 100,
            )
            for index, (product, position) in enumerate(zip(products, positions, strict=True))
        ),
    )


def _select_product(index: int, device_count: int) -> ProductProfile:
    """Return the product of the device with this index, in a site of `device_count` devices."""
    if index in _UNSECURED_DEVICES and device_count > max(_UNSECURED_DEVICES):
        return _UNSECURED_DEVICES[index][0]
    return PRODUCT_CYCLE[index % len(PRODUCT_CYCLE)]


def derive_first_mac(gateway: Mac, seed: int) -> int:
    """Return the MAC of a gateway's first device as an integer; MACs of different gateways do not overlap."""
    top = 0xD if gateway.startswith("c") else 0xC
    return top << 44 | ((int(gateway, 16) ^ derive_noise_key(seed)) & 0xFFFFFFF) << 16 | 2


def _generate_walls(device_count: int, next_random: Callable[[], float]) -> tuple[float, ...]:
    """Generate the walls along one axis, about 8 m apart, with the gateway in the middle of a room.

    Return their coordinates in meters. A site with more devices has more rooms.
    """
    rooms = 3 + int(sqrt(device_count / 4))
    return tuple(round(8 * room + 4 + 2 * next_random() - 1, 2) for room in range(-rooms, rooms))


def _place_devices(
    products: list[ProductProfile], floors: list[int], *, walls: Walls, next_random: Callable[[], float]
) -> list[SitePosition]:
    """Return the positions of all devices: first of the extenders, then of the leaves around them.

    An extender is placed near the gateway or another extender. `floors` has the floor of each product.
    """
    relays = {floor: list[_RelayPosition]() for floor in floors} | {
        0: [_RelayPosition(SitePosition(0, 0.0, 0.0), 0)]
    }
    positions: dict[int, SitePosition] = {}
    for index, (product, floor) in enumerate(zip(products, floors, strict=True)):
        if product.role is NodeRole.EXTENDER:
            relay = _place_extender(relays, floor, walls=walls, next_random=next_random)
            relays[floor].append(relay)
            positions[index] = relay.position
    for index, floor in enumerate(floors):
        if index not in positions:
            candidates = relays[floor] or relays[0]
            relay = candidates[int(len(candidates) * next_random())]
            positions[index] = _offset_position(
                relay.position, floor, 1.0 + 8.0 * next_random(), next_random=next_random
            )
    return [positions[index] for index in range(len(floors))]


def _place_extender(
    relays: Mapping[int, list[_RelayPosition]], floor: int, *, walls: Walls, next_random: Callable[[], float]
) -> _RelayPosition:
    """Return a position for the next extender: 9.5 to 12.5 m from one relay, not close to other relays.

    A relay is the gateway or an extender; `relays` has the relays of each floor.
    """
    floor_relays = relays[floor]
    if not floor_relays or (floor and next_random() < _VERTICAL_FRACTION):
        return _place_on_next_floor(relays, floor, next_random=next_random)
    best, best_spacing = None, -1.0
    for _ in range(_PLACEMENT_ATTEMPTS):
        anchor = floor_relays[int(len(floor_relays) * next_random())]
        position = _offset_position(
            anchor.position, floor, 9.5 + 3.0 * next_random(), next_random=next_random
        )
        if (
            anchor.hops >= _MAX_EXTENDER_HOPS
            or radio.estimate_mean_rssi(anchor.position, position, walls) < _SAFE_LINK_DBM
        ):
            continue
        spacing = min(
            hypot(position.x - other.position.x, position.y - other.position.y) for other in floor_relays
        )
        if spacing > best_spacing:
            best, best_spacing = _RelayPosition(position, anchor.hops + 1), spacing
        if spacing > _GOOD_SPACING_METERS:
            break
    if best is None:
        anchor = floor_relays[int(len(floor_relays) * next_random() / 2)]  # earlier ones have fewer hops
        best = _RelayPosition(
            _offset_position(anchor.position, floor, 6.0, next_random=next_random), anchor.hops + 1
        )
    return best


def _place_on_next_floor(
    relays: Mapping[int, list[_RelayPosition]], floor: int, *, next_random: Callable[[], float]
) -> _RelayPosition:
    """Return a position above or below an extender of the adjacent floor nearer to the gateway."""
    nearer_relays = relays[floor - 1 if floor > 0 else floor + 1]
    anchor = nearer_relays[int(len(nearer_relays) * next_random() / 2)]
    return _RelayPosition(
        _offset_position(anchor.position, floor, next_random(), next_random=next_random), anchor.hops + 1
    )


def _offset_position(
    position: SitePosition, floor: int, distance: float, *, next_random: Callable[[], float]
) -> SitePosition:
    """Return the position on `floor` at a distance in meters from `position`, in a random direction."""
    angle = 2.0 * pi * next_random()
    return SitePosition(
        floor, round(position.x + distance * cos(angle), 2), round(position.y + distance * sin(angle), 2)
    )
