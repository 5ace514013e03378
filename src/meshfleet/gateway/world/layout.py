"""Sites that are made up from a seed."""

from __future__ import annotations

from itertools import count
from math import ceil, cos, hypot, pi, sin, sqrt
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.gateway.world import radio
from meshfleet.gateway.world.noise import key_of, noise
from meshfleet.gateway.world.places import Place, Walls
from meshfleet.gateway.world.products import BY_CODE, Product, Role
from meshfleet.gateway.world.site import MAX_DEVICES, Fixture, Site
from meshfleet.wire.codes import AccessType
from meshfleet.wire.ids import Mac

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_TEN: Final = "0043 0018 0005 000F 0050 0018 0011-01 0040 0011-04 0060"
_TEN_MORE: Final = "0043 0018 0005 000F 0050 0063 0011-01 0040 0011-04 0060"
_ORDER: Final = tuple(BY_CODE[code] for code in f"{_TEN} {_TEN_MORE}".split())

_OUTSIDERS: Final = {
    8: (BY_CODE["000F"], AccessType.LEGACY),
    9: (BY_CODE["0063"], AccessType.UNPROVISIONED),
}
"""In every site with room for them: one device of each kind that is not in the secure network."""

_DEVICES_ON_A_FLOOR: Final = 60
_FLOORS: Final = (0, 1, -1, 2, -2, 3, -3, 4, -4)
_TRIES: Final = 8
_DEEPEST: Final = 7
"""Extenders are put up so that leaves still have room below them in the tree."""
_SAFE: Final = -84.0
"""dBm. Stronger links between extenders do not break when they fade."""
_ROOMY: Final = 9.0
_RISERS: Final = 0.15
"""So many extenders of other floors stand above or below one of the floor before."""


class _Post(NamedTuple):
    """A place where the gateway or an extender stands, and how many hops away it is at best."""

    place: Place
    hops: int


def generate(gateway: Mac, *, devices: int, seed: int) -> Site:
    """Make up a site; the same gateway, number and seed give the same one."""
    if not 0 <= devices <= MAX_DEVICES:
        raise ValueError(f"a gateway has up to {MAX_DEVICES} devices, not {devices}")
    key = key_of("site", seed, gateway)
    chance = (noise(key, n) for n in count()).__next__
    walls = Walls(*(_walls(devices, chance) for _ in "xy"))
    products = [_product(index, devices) for index in range(devices)]
    floors = _FLOORS[: ceil((devices / _DEVICES_ON_A_FLOOR) ** 0.6)]  # large houses are wide as well as high
    stands = [floors[index * len(floors) // devices] for index in range(devices)]
    places = _places(products, stands, walls=walls, chance=chance)
    first = _first_mac(gateway, seed)
    return Site(
        gateway=gateway,
        seed=seed,
        walls=walls,
        devices=tuple(
            Fixture(
                # Even: one more is its address in DFU mode, which must be nobody else's.
                mac=Mac(f"{first + 2 * index:012x}"),
                product=product,
                place=place,
                mode=product.usual,
                access=_OUTSIDERS[index][1] if index in _OUTSIDERS and devices > max(_OUTSIDERS) else None,
                battery=55 + int(46 * chance()) if product.battery else 100,
            )
            for index, (product, place) in enumerate(zip(products, places, strict=True))
        ),
    )


def _product(index: int, devices: int) -> Product:
    if index in _OUTSIDERS and devices > max(_OUTSIDERS):
        return _OUTSIDERS[index][0]
    return _ORDER[index % len(_ORDER)]


def _first_mac(gateway: Mac, seed: int) -> int:
    """Gateways that count up share no MAC of a device, and have none themselves that a device has."""
    top = 0xD if gateway.startswith("c") else 0xC
    return top << 44 | ((int(gateway, 16) ^ key_of(seed)) & 0xFFFFFFF) << 16 | 2


def _walls(devices: int, chance: Callable[[], float]) -> tuple[float, ...]:
    """Rooms are about 8 m wide; the gateway stands in the middle of one."""
    rooms = 3 + int(sqrt(devices / 4))
    return tuple(round(8 * room + 4 + 2 * chance() - 1, 2) for room in range(-rooms, rooms))


def _places(
    products: list[Product], floors: list[int], *, walls: Walls, chance: Callable[[], float]
) -> list[Place]:
    """Extenders first, since the leaves stand around them."""
    posts = {floor: list[_Post]() for floor in floors} | {0: [_Post(Place(0, 0.0, 0.0), 0)]}
    places: dict[int, Place] = {}
    for index, (product, floor) in enumerate(zip(products, floors, strict=True)):
        if product.role is Role.EXTENDER:
            post = _extend(posts, floor, walls=walls, chance=chance)
            posts[floor].append(post)
            places[index] = post.place
    for index, floor in enumerate(floors):
        if index not in places:
            near = posts[floor] or posts[0]
            post = near[int(len(near) * chance())]
            places[index] = _away(post.place, floor, 1.0 + 8.0 * chance(), chance=chance)
    return [places[index] for index in range(len(floors))]


def _extend(
    posts: Mapping[int, list[_Post]], floor: int, *, walls: Walls, chance: Callable[[], float]
) -> _Post:
    """Where the next extender goes: about 12 m from another one, and not near a third."""
    here = posts[floor]
    if not here or (floor and chance() < _RISERS):
        return _rise(posts, floor, chance=chance)
    best, widest = None, -1.0
    for _ in range(_TRIES):
        anchor = here[int(len(here) * chance())]
        place = _away(anchor.place, floor, 9.5 + 3.0 * chance(), chance=chance)
        if anchor.hops >= _DEEPEST or radio.mean(anchor.place, place, walls) < _SAFE:
            continue
        room = min(hypot(place.x - other.place.x, place.y - other.place.y) for other in here)
        if room > widest:
            best, widest = _Post(place, anchor.hops + 1), room
        if room > _ROOMY:
            break
    if best is None:
        anchor = here[int(len(here) * chance() / 2)]  # the earlier ones have fewer hops
        best = _Post(_away(anchor.place, floor, 6.0, chance=chance), anchor.hops + 1)
    return best


def _rise(posts: Mapping[int, list[_Post]], floor: int, *, chance: Callable[[], float]) -> _Post:
    """Put an extender above or below one of the next floor towards the gateway."""
    nearer = posts[floor - 1 if floor > 0 else floor + 1]
    anchor = nearer[int(len(nearer) * chance() / 2)]
    return _Post(_away(anchor.place, floor, chance(), chance=chance), anchor.hops + 1)


def _away(place: Place, floor: int, distance: float, *, chance: Callable[[], float]) -> Place:
    angle = 2.0 * pi * chance()
    return Place(floor, round(place.x + distance * cos(angle), 2), round(place.y + distance * sin(angle), 2))
