"""Sites that are made up from a seed."""

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
_PRODUCT_CYCLE: Final = tuple(
    PRODUCTS_BY_CODE[code] for code in f"{_FIRST_TEN_CODES} {_NEXT_TEN_CODES}".split()
)

_UNSECURED_DEVICES: Final = {
    8: (PRODUCTS_BY_CODE["000F"], AccessType.LEGACY),
    9: (PRODUCTS_BY_CODE["0063"], AccessType.UNPROVISIONED),
}
"""In every site with room for them: one device of each kind that is not in the secure network."""

_DEVICES_ON_A_FLOOR: Final = 60
_FLOORS: Final = (0, 1, -1, 2, -2, 3, -3, 4, -4)
_TRIES: Final = 8
_MAX_EXTENDER_HOPS: Final = 7
"""Extenders are put up so that leaves still have room below them in the tree."""
_SAFE_LINK_DBM: Final = -84.0
"""dBm. Stronger links between extenders do not break when they fade."""
_GOOD_SPACING_METERS: Final = 9.0
_VERTICAL_FRACTION: Final = 0.15
"""So many extenders of other floors stand above or below one of the floor before."""


class _RelayPosition(NamedTuple):
    """A place where the gateway or an extender stands, and how many hops away it is at best."""

    position: SitePosition
    hops: int


def generate_site(gateway: Mac, *, devices: int, seed: int) -> Site:
    """Make up a site; the same gateway, number and seed give the same one."""
    if not 0 <= devices <= MAX_DEVICES:
        raise ValueError(f"a gateway has up to {MAX_DEVICES} devices, not {devices}")
    key = derive_noise_key("site", seed, gateway)
    chance = (uniform_noise(key, n) for n in count()).__next__
    walls = Walls(*(_walls(devices, chance) for _ in "xy"))
    products = [_product(index, devices) for index in range(devices)]
    floors = _FLOORS[: ceil((devices / _DEVICES_ON_A_FLOOR) ** 0.6)]  # large houses are wide as well as high
    stands = [floors[index * len(floors) // devices] for index in range(devices)]
    places = _place_devices(products, stands, walls=walls, chance=chance)
    first = _first_mac(gateway, seed)
    return Site(
        gateway=gateway,
        seed=seed,
        walls=walls,
        devices=tuple(
            SiteDevice(
                # Even: one more is its address in DFU mode, which must be nobody else's.
                mac=Mac(f"{first + 2 * index:012x}"),
                product=product,
                position=place,
                mode=product.default_mode,
                access=_UNSECURED_DEVICES[index][1]
                if index in _UNSECURED_DEVICES and devices > max(_UNSECURED_DEVICES)
                else None,
                battery=55 + int(46 * chance()) if product.has_battery else 100,
            )
            for index, (product, place) in enumerate(zip(products, places, strict=True))
        ),
    )


def _product(index: int, devices: int) -> ProductProfile:
    if index in _UNSECURED_DEVICES and devices > max(_UNSECURED_DEVICES):
        return _UNSECURED_DEVICES[index][0]
    return _PRODUCT_CYCLE[index % len(_PRODUCT_CYCLE)]


def _first_mac(gateway: Mac, seed: int) -> int:
    """Gateways that count up share no MAC of a device, and have none themselves that a device has."""
    top = 0xD if gateway.startswith("c") else 0xC
    return top << 44 | ((int(gateway, 16) ^ derive_noise_key(seed)) & 0xFFFFFFF) << 16 | 2


def _walls(devices: int, chance: Callable[[], float]) -> tuple[float, ...]:
    """Rooms are about 8 m wide; the gateway stands in the middle of one."""
    rooms = 3 + int(sqrt(devices / 4))
    return tuple(round(8 * room + 4 + 2 * chance() - 1, 2) for room in range(-rooms, rooms))


def _place_devices(
    products: list[ProductProfile], floors: list[int], *, walls: Walls, chance: Callable[[], float]
) -> list[SitePosition]:
    """Extenders first, since the leaves stand around them."""
    posts = {floor: list[_RelayPosition]() for floor in floors} | {
        0: [_RelayPosition(SitePosition(0, 0.0, 0.0), 0)]
    }
    places: dict[int, SitePosition] = {}
    for index, (product, floor) in enumerate(zip(products, floors, strict=True)):
        if product.role is NodeRole.EXTENDER:
            post = _place_extender(posts, floor, walls=walls, chance=chance)
            posts[floor].append(post)
            places[index] = post.position
    for index, floor in enumerate(floors):
        if index not in places:
            near = posts[floor] or posts[0]
            post = near[int(len(near) * chance())]
            places[index] = _offset_position(post.position, floor, 1.0 + 8.0 * chance(), chance=chance)
    return [places[index] for index in range(len(floors))]


def _place_extender(
    posts: Mapping[int, list[_RelayPosition]], floor: int, *, walls: Walls, chance: Callable[[], float]
) -> _RelayPosition:
    """Where the next extender goes: about 12 m from another one, and not near a third."""
    here = posts[floor]
    if not here or (floor and chance() < _VERTICAL_FRACTION):
        return _place_on_next_floor(posts, floor, chance=chance)
    best, widest = None, -1.0
    for _ in range(_TRIES):
        anchor = here[int(len(here) * chance())]
        place = _offset_position(anchor.position, floor, 9.5 + 3.0 * chance(), chance=chance)
        if (
            anchor.hops >= _MAX_EXTENDER_HOPS
            or radio.estimate_mean_rssi(anchor.position, place, walls) < _SAFE_LINK_DBM
        ):
            continue
        room = min(hypot(place.x - other.position.x, place.y - other.position.y) for other in here)
        if room > widest:
            best, widest = _RelayPosition(place, anchor.hops + 1), room
        if room > _GOOD_SPACING_METERS:
            break
    if best is None:
        anchor = here[int(len(here) * chance() / 2)]  # the earlier ones have fewer hops
        best = _RelayPosition(_offset_position(anchor.position, floor, 6.0, chance=chance), anchor.hops + 1)
    return best


def _place_on_next_floor(
    posts: Mapping[int, list[_RelayPosition]], floor: int, *, chance: Callable[[], float]
) -> _RelayPosition:
    """Put an extender above or below one of the next floor towards the gateway."""
    nearer = posts[floor - 1 if floor > 0 else floor + 1]
    anchor = nearer[int(len(nearer) * chance() / 2)]
    return _RelayPosition(_offset_position(anchor.position, floor, chance(), chance=chance), anchor.hops + 1)


def _offset_position(
    place: SitePosition, floor: int, distance: float, *, chance: Callable[[], float]
) -> SitePosition:
    angle = 2.0 * pi * chance()
    return SitePosition(
        floor, round(place.x + distance * cos(angle), 2), round(place.y + distance * sin(angle), 2)
    )
