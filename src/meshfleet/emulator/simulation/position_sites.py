"""Generates sites for tests of positioning: floors of 40 m x 25 m with anchors at known places.

An anchor is an extender with mains power. Anchors stand on a grid with small deviations: at the edge of the
floor, and inside if there are enough of them. The gateway, in the middle of floor 0, is a further anchor.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import count
from math import ceil, cos, log, pi, sqrt
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.emulator.simulation.noise import derive_noise_key, uniform_noise
from meshfleet.emulator.simulation.products import PRODUCTS_BY_CODE, NodeRole, ProductProfile
from meshfleet.emulator.simulation.site import (
    MAX_DEVICES,
    RECEIVER_LIMITS,
    FloorArea,
    Site,
    SiteDevice,
    SitePosition,
    Survey,
    Walk,
    Walls,
)
from meshfleet.emulator.simulation.site_generator import PRODUCT_CYCLE, derive_first_mac
from meshfleet.protocol.ids import Mac

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class SiteKind(StrEnum):
    """Kind of a generated site for positioning."""

    HALL = "hall"
    """One floor without walls."""
    OFFICES = "offices"
    """One floor with five walls in one direction and three in the other."""
    BUILDING = "building"
    """Three floors of offices."""


_WIDTH: Final = 40.0
_DEPTH: Final = 25.0
_FLOORS: Final = {SiteKind.HALL: 1, SiteKind.OFFICES: 1, SiteKind.BUILDING: 3}
_WALL_COUNTS: Final = (5, 3)
_WALL_JITTER: Final = 1.0
"""Meters by which a wall is at most away from its regular place."""
_ANCHOR_MARGIN: Final = 1.0
"""Meters between the edge of a floor and the outer anchors."""
_ANCHOR_JITTER: Final = 0.9
"""Meters by which an anchor is at most away from its place on the grid, in both directions."""

_ANCHOR_POWER: Final = 8
"""Transmit power of anchors in dBm: the highest of their chip, so that their links pass several walls."""

MAX_ANCHORS: Final = 500

_ANCHOR: Final = PRODUCTS_BY_CODE["0040"]
_LEAVES: Final = tuple(product for product in PRODUCT_CYCLE if product.role is NodeRole.LEAF)
_WALKERS: Final = (PRODUCTS_BY_CODE["0005"], PRODUCTS_BY_CODE["000F"])
"""Products that people carry or that are moved, in both device modes."""


def generate_position_site(  # noqa: PLR0913 # keyword-only, all optional
    gateway: Mac, kind: SiteKind, *, anchors: int = 12, devices: int = 10, gain_sd: float = 3.0, seed: int = 1
) -> Site:
    """Generate a site with `anchors` anchors on each floor, and `devices` other devices in all.

    The gains of the anchors have the standard deviation `gain_sd` dB. Equal arguments give equal sites.
    """
    floors = _FLOORS[kind]
    if anchors < 1 or devices < 0 or anchors * floors + devices > MAX_DEVICES:
        raise ValueError(
            f"a site has at least one anchor per floor, and at most {MAX_DEVICES} devices in all"
        )
    key = derive_noise_key("position site", kind, seed, gateway)
    next_random = (uniform_noise(key, n) for n in count()).__next__
    areas = tuple(
        FloorArea(floor, -_WIDTH / 2, -_DEPTH / 2, _WIDTH / 2, _DEPTH / 2) for floor in range(floors)
    )
    walls = Walls() if kind is SiteKind.HALL else _generate_walls(next_random)
    places = [
        (_ANCHOR, _shift(place, next_random)) for area in areas for place in spread_positions(area, anchors)
    ]
    places += (
        (_LEAVES[i % len(_LEAVES)], _draw_position(areas[i % floors], next_random)) for i in range(devices)
    )
    first_mac = derive_first_mac(gateway, seed)
    site_devices = tuple(_build_device(first_mac, i, *place) for i, place in enumerate(places))
    anchor_macs = [each.mac for each in site_devices[: anchors * floors]]
    return Site(
        gateway=gateway,
        seed=seed,
        devices=site_devices,
        walls=walls,
        areas=areas,
        receivers=RECEIVER_LIMITS[1],
        powers=dict.fromkeys(anchor_macs, _ANCHOR_POWER),
        gains={mac: gain for mac in anchor_macs if (gain := round(gain_sd * _draw_normal(next_random), 1))},
    )


def add_walkers(site: Site, walkers: int) -> Site:
    """Return a generated site with this number of further devices, which walk between random points."""
    if len(site.devices) + walkers > MAX_DEVICES:
        raise ValueError(f"a site has at most {MAX_DEVICES} devices in all")
    key = derive_noise_key("walkers", site.seed, site.gateway)
    next_random = (uniform_noise(key, n) for n in count()).__next__
    first_mac, floors = derive_first_mac(site.gateway, site.seed), site.floors
    devices = tuple(
        _build_device(
            first_mac,
            len(site.devices) + i,
            _WALKERS[i % len(_WALKERS)],
            _draw_position(site.get_area(floors[i % len(floors)]), next_random),
        )
        for i in range(walkers)
    )
    return replace(
        site,
        devices=site.devices + devices,
        movements={**site.movements, **{each.mac: Walk() for each in devices}},
    )


def plan_survey(site: Site, points: int) -> Site:
    """Return a site in which a person carries its first leaf that does not move to `points` points.

    The points are spread over all floors. Raise `ValueError` if all leaves move.
    """
    carried = next(
        (
            each.mac
            for each in site.devices
            if each.product.role is NodeRole.LEAF and each.mac not in site.movements
        ),
        None,
    )
    if carried is None:
        raise ValueError("the site has no device that can be carried: all are extenders or move")
    floors = site.floors
    shares = [points * (i + 1) // len(floors) - points * i // len(floors) for i in range(len(floors))]
    positions = [
        position
        for floor, share in zip(floors, shares, strict=True)
        for position in spread_positions(site.get_area(floor), share)
    ]
    return replace(site, movements={**site.movements, carried: Survey(points=tuple(positions))})


def spread_positions(area: FloorArea, number: int) -> Iterator[SitePosition]:
    """Yield positions that are spread evenly over a floor, in rows that begin and end near its edge.

    Neighbors follow each other: every other row runs backwards.
    """
    width, depth = area.max_x - area.min_x, area.max_y - area.min_y
    rows = min(number, ceil(sqrt(number * depth / width))) if width > 0 else number
    for row in range(rows):
        in_row = number * (row + 1) // rows - number * row // rows
        columns = range(in_row) if row % 2 == 0 else reversed(range(in_row))
        for column in columns:
            yield SitePosition(
                area.floor,
                round(area.min_x + _space_evenly(width, column, in_row), 2),
                round(area.min_y + _space_evenly(depth, row, rows), 2),
            )


def _space_evenly(length: float, index: int, number: int) -> float:
    """Return the place of one of `number` points on a line of `length` meters, with a margin at both ends.

    A single point is in the middle.
    """
    if number == 1:
        return length / 2
    margin = min(_ANCHOR_MARGIN, length / 4)
    return margin + (length - 2 * margin) * index / (number - 1)


def _generate_walls(next_random: Callable[[], float]) -> Walls:
    """Generate walls through the whole building, with rooms of nearly equal size."""
    x, y = (
        tuple(
            round(length * (n + 1) / (number + 1) - length / 2 + _WALL_JITTER * (2 * next_random() - 1), 2)
            for n in range(number)
        )
        for length, number in zip((_WIDTH, _DEPTH), _WALL_COUNTS, strict=True)
    )
    return Walls(x, y)


def _shift(position: SitePosition, next_random: Callable[[], float]) -> SitePosition:
    """Return a position a little away from another one."""
    x, y = (round(value + _ANCHOR_JITTER * (2 * next_random() - 1), 2) for value in (position.x, position.y))
    return SitePosition(position.floor, x, y)


def _draw_position(area: FloorArea, next_random: Callable[[], float]) -> SitePosition:
    """Return a random position on a floor."""
    return SitePosition(
        area.floor,
        round(area.min_x + (area.max_x - area.min_x) * next_random(), 2),
        round(area.min_y + (area.max_y - area.min_y) * next_random(), 2),
    )


def _draw_normal(next_random: Callable[[], float]) -> float:
    """Return a random number with normal distribution, by the method of Box and Muller."""
    return sqrt(-2.0 * log(1.0 - next_random())) * cos(2.0 * pi * next_random())


def _build_device(first_mac: int, index: int, product: ProductProfile, position: SitePosition) -> SiteDevice:
    return SiteDevice(
        mac=Mac(f"{first_mac + 2 * index:012x}"),  # even MACs only: see `generate_site`
        product=product,
        position=position,
        mode=product.default_mode,
        battery=90 if product.has_battery else 100,
    )
