"""Site of a simulation: a gateway and the devices installed around it.

The gateway is at x = 0, y = 0 on floor 0; x and y are in meters.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from hashlib import sha512
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import Struct

from meshfleet.emulator.simulation.products import DeviceMode, NodeRole, ProductProfile
from meshfleet.protocol.codes import AccessType
from meshfleet.protocol.ids import Mac

# Positions and the walls between them


class SitePosition(NamedTuple):
    """Position in a building: floor, and x and y in meters."""

    floor: int
    x: float
    y: float


class FloorArea(NamedTuple):
    """Rectangle of a floor in which devices are, with its corners in meters."""

    floor: int
    min_x: float
    min_y: float
    max_x: float
    max_y: float


class WallSegment(NamedTuple):
    """Straight wall on one floor between two points in meters, with its own signal loss in dB."""

    floor: int
    x1: float
    y1: float
    x2: float
    y2: float
    loss: float

    def find_crossing(self, start: SitePosition, end: SitePosition) -> float | None:
        """Return where the straight line between two positions crosses this wall, seen from above.

        The result is the fraction of the line from `start`; None if the line does not cross the wall.
        """
        line_x, line_y = end.x - start.x, end.y - start.y
        wall_x, wall_y = self.x2 - self.x1, self.y2 - self.y1
        cross = line_x * wall_y - line_y * wall_x
        if not cross:
            return None  # parallel
        to_x, to_y = self.x1 - start.x, self.y1 - start.y
        on_line, on_wall = (to_x * wall_y - to_y * wall_x) / cross, (to_x * line_y - to_y * line_x) / cross
        # The second end does not belong to the wall: a line through a joint of two walls crosses only one.
        return on_line if 0.0 <= on_line <= 1.0 and 0.0 <= on_wall < 1.0 else None


class Walls(NamedTuple):
    """Walls of a building: straight ones through all floors, and segments on single floors."""

    x: tuple[float, ...] = ()
    """Ascending x coordinates in meters of walls through the whole building."""
    y: tuple[float, ...] = ()
    """Ascending y coordinates in meters of walls through the whole building."""
    segments: tuple[WallSegment, ...] = ()

    def count_walls_between(self, start: SitePosition, end: SitePosition) -> int:
        """Return the number of walls that a straight line between two positions crosses."""
        return abs(bisect_left(self.x, start.x) - bisect_left(self.x, end.x)) + abs(
            bisect_left(self.y, start.y) - bisect_left(self.y, end.y)
        )

    def sum_segment_losses(self, start: SitePosition, end: SitePosition) -> float:
        """Return the signal loss in dB of all segments that a straight line between two positions crosses.

        A line between floors rises evenly, so that each floor has an equally long part of the line.
        """
        floors = abs(end.floor - start.floor) + 1
        loss = 0.0
        for segment in self.segments:
            part = abs(segment.floor - start.floor)
            if part + abs(end.floor - segment.floor) >= floors:
                continue  # the line does not touch this floor
            crossing = segment.find_crossing(start, end)
            if crossing is not None and min(int(crossing * floors), floors - 1) == part:
                loss += segment.loss
        return loss


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


# Devices that change their position


class Walk(Struct, frozen=True, kw_only=True):
    """Endless walk on one floor, from point to point, with a pause at each point."""

    speed: float = 0.8
    """Speed in meters per second."""
    pause: float = 20.0
    """Seconds for which the device stands at each point."""
    path: tuple[SitePosition, ...] = ()
    """Points of the walk, which continues at the first one; empty for random points on the device's floor."""


class Survey(Struct, frozen=True, kw_only=True):
    """Walk of a person who stands with a device at each of the points of a survey, once."""

    points: tuple[SitePosition, ...]
    seconds: float = 60.0
    """Seconds for which the person stands at each point."""


RECEIVER_LIMITS: Final = (6, 100)
"""Minimum and maximum of `Site.receivers`."""

DEFAULT_INTERVAL: Final = 3.0
"""Default of `Site.interval`."""


class Site(Struct, frozen=True, kw_only=True):
    """Gateway with the devices and walls around it.

    Gains, powers and movements are not fields of `SiteDevice`, because a process may hold 250,000 devices
    and few of them have any.
    """

    gateway: Mac
    seed: int
    devices: tuple[SiteDevice, ...]
    walls: Walls = Walls()
    network_key: bytes = DEFAULT_NETWORK_KEY
    """Network key that requests to devices may contain."""
    receivers: int | None = None
    """Maximum number of nodes that report the RSSI of a device; None for four besides its mesh links."""
    gains: Mapping[Mac, float] = MappingProxyType({})
    """Antenna gain in dB of devices, in both directions, by MAC; 0 for all others."""
    powers: Mapping[Mac, int] = MappingProxyType({})
    """Transmit power in dBm of devices at the start, by MAC; the default for all others."""
    movements: Mapping[Mac, Walk | Survey] = MappingProxyType({})
    """Movement of devices by MAC. Only leaves can move: extenders are installed at a fixed place."""
    interval: float = DEFAULT_INTERVAL
    """Seconds between two RSSI reports of a moving device."""
    areas: tuple[FloorArea, ...] = ()
    """Area of each floor; a floor without an entry extends as far as its devices."""

    def __post_init__(self) -> None:
        if self.movements:
            leaves = {each.mac for each in self.devices if each.product.role is NodeRole.LEAF}
            if not self.movements.keys() <= leaves:
                raise ValueError("only leaves of the site can move")

    @property
    def floors(self) -> tuple[int, ...]:
        """Floors with an area or a device, in ascending order; floor 0 has at least the gateway."""
        return tuple(
            sorted({0, *(area.floor for area in self.areas), *(each.position.floor for each in self.devices)})
        )

    def get_area(self, floor: int) -> FloorArea:
        """Return the area of a floor: the given one, or the smallest one that contains its devices."""
        for area in self.areas:
            if area.floor == floor:
                return area
        positions = [each.position for each in self.devices if each.position.floor == floor]
        xs, ys = [each.x for each in positions] or [0.0], [each.y for each in positions] or [0.0]
        return FloorArea(floor, min(xs), min(ys), max(xs), max(ys))


def derive_public_key(mac: Mac) -> bytes:
    """Return the public key of an unprovisioned device, derived from its MAC."""
    return b"\x04" + sha512(mac.encode()).digest()
