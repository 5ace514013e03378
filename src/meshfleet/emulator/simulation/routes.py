"""Routes of moving devices: their position as a pure function of seed and simulated time."""

from __future__ import annotations

from bisect import bisect_right
from math import hypot
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.emulator.simulation.noise import derive_noise_key, uniform_noise
from meshfleet.emulator.simulation.radio import FLOOR_HEIGHT_METERS
from meshfleet.emulator.simulation.site import SitePosition, Survey, Walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.emulator.simulation.site import Site
    from meshfleet.protocol.ids import Mac

_RANDOM_POINTS: Final = 100
"""Number of points of a random walk, which then repeats: after more than an hour at the speed of a person."""

_SURVEY_SPEED: Final = 1.0
"""Speed in meters per second between the points of a survey."""


class Stay(NamedTuple):
    """Stop of a route at a position, with its begin and end in simulated seconds."""

    position: SitePosition
    begin: float
    end: float


class Route:
    """Way of a moving device, which stops at each position and walks straight to the next one.

    If the route `repeats`, the device walks from the last position to the first one and starts again;
    otherwise it stays at the last position.
    """

    __slots__ = ("_begins", "_duration", "_repeats", "stays")

    def __init__(
        self, positions: Sequence[SitePosition], pauses: Sequence[float], *, speed: float, repeats: bool
    ) -> None:
        self.stays: list[Stay] = []
        begin = 0.0
        for i, (position, pause) in enumerate(zip(positions, pauses, strict=True)):
            self.stays.append(Stay(position, begin, begin + pause))
            begin += pause + _compute_distance(position, positions[(i + 1) % len(positions)]) / speed
        self._begins = [stay.begin for stay in self.stays]
        self._duration = begin
        """Simulated seconds until the device is back at the first position."""
        self._repeats = repeats and begin > 0.0  # else all positions are one, without a pause

    def find_position(self, sim_time: float) -> SitePosition:
        """Return the position at a simulated time in seconds."""
        if self._repeats:
            sim_time %= self._duration
        index = bisect_right(self._begins, sim_time) - 1
        stay = self.stays[index]
        if sim_time <= stay.end:
            return stay.position
        if index + 1 < len(self.stays):
            following = self.stays[index + 1]
            position, arrival = following.position, following.begin
        elif self._repeats:
            position, arrival = self.stays[0].position, self._duration
        else:
            return stay.position
        return _interpolate(stay.position, position, (sim_time - stay.end) / (arrival - stay.end))


def build_routes(site: Site) -> dict[Mac, Route]:
    """Return the routes of all moving devices of a site, by MAC."""
    homes = {each.mac: each.position for each in site.devices} if site.movements else {}
    return {
        mac: _build_survey_route(movement, homes[mac])
        if isinstance(movement, Survey)
        else _build_walk_route(movement, mac, homes[mac], site)
        for mac, movement in site.movements.items()
    }


def list_survey_stays(route: Route) -> list[Stay]:
    """Return the stops of a survey's route: all but the first one, where the device is at the start."""
    return route.stays[1:]


def _build_survey_route(survey: Survey, home: SitePosition) -> Route:
    pauses = [0.0, *[survey.seconds] * len(survey.points)]
    return Route([home, *survey.points], pauses, speed=_SURVEY_SPEED, repeats=False)


def _build_walk_route(walk: Walk, mac: Mac, home: SitePosition, site: Site) -> Route:
    positions = walk.path or (home, *_generate_positions(site, mac, home.floor))
    return Route(positions, [walk.pause] * len(positions), speed=walk.speed, repeats=True)


def _generate_positions(site: Site, mac: Mac, floor: int) -> list[SitePosition]:
    """Return the random positions of a device's walk on a floor; they depend on seed and MAC."""
    key, area = derive_noise_key("walk", site.seed, mac), site.get_area(floor)
    return [
        SitePosition(
            floor,
            area.min_x + (area.max_x - area.min_x) * uniform_noise(key, 2 * n),
            area.min_y + (area.max_y - area.min_y) * uniform_noise(key, 2 * n + 1),
        )
        for n in range(_RANDOM_POINTS)
    ]


def _compute_distance(one: SitePosition, other: SitePosition) -> float:
    """Return the meters to walk between two positions, with the height of the stairs between floors."""
    return hypot(other.x - one.x, other.y - one.y) + FLOOR_HEIGHT_METERS * abs(other.floor - one.floor)


def _interpolate(start: SitePosition, end: SitePosition, fraction: float) -> SitePosition:
    """Return the position after a fraction of the way. The floor changes at half the way."""
    return SitePosition(
        end.floor if fraction > 0.5 else start.floor,  # noqa: PLR2004 # half
        start.x + (end.x - start.x) * fraction,
        start.y + (end.y - start.y) * fraction,
    )
