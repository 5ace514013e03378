"""Parses paths and bodies that name or describe sites, floors, places and zones.

Bodies are checked completely: the errors name all faults, not only the first one.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import Fault, InvalidRequest, NotFound, UnknownSite, quote_input
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.ids import mac_from_int, mac_to_int, parse_device_id, to_mac
from meshfleet.rest.inputs import parse_friendly_name
from meshfleet.rest.sites import MAX_BATCH_PLACES
from meshfleet.service.devices.model import normalize_name
from meshfleet.service.http.request import decode_segment
from meshfleet.service.sites.geometry import Anchor, Box, FloorGeometry, FloorKey

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from meshfleet.rest.sites import BatchPlace, NewFloor, NewPlace, NewSite, NewZone, Polygon

MIN_FLOOR: Final = -20
MAX_FLOOR: Final = 200
"""Lowest and highest number of a floor."""
MAX_FLOORS: Final = 50
MAX_COORDINATE: Final = 10_000.0
"""Largest absolute coordinate in meters."""
MIN_EXTENT: Final = 1.0
MAX_EXTENT: Final = 2000.0
"""Smallest and largest width and depth of a floor in meters."""
MAX_WALKABLE: Final = 50
"""Maximum number of walkable areas of a floor."""
MAX_WALKABLE_CORNERS: Final = 200
MAX_ZONE_CORNERS: Final = 100
MIN_CORNERS: Final = 3

_SITE_ID: Final = re.compile("site-([0-9a-f]{16})")
_ZONE_ID: Final = re.compile("zone-([0-9a-f]{16})")
_SURVEY_ID: Final = re.compile("survey-([0-9a-f]{16})")
_FLOOR: Final = re.compile("-?[0-9]{1,3}")
_LARGEST_NUMBER: Final = (1 << 63) - 1
"""Largest number that both databases can store in a column of integers."""


class NamedFloor(NamedTuple):
    """Floor of a site as a user describes it."""

    name: str | None
    geometry: FloorGeometry


class SiteDescription(NamedTuple):
    """Name and floors of a site as a user describes them; the floors are in ascending order."""

    name: str
    floors: tuple[NamedFloor, ...]


class ZoneDescription(NamedTuple):
    """Name and area of a zone as a user describes them."""

    name: str
    floor: int
    polygon: Polygon

    @property
    def name_key(self) -> str:
        """Name in the form in which the names of zones are compared."""
        return normalize_name(self.name)


# Ids in paths and bodies.


def parse_site_id(text: str) -> int:
    """Return the number of a site id. Raise `UnknownSite` if there cannot be a site with this id."""
    number = _parse_number(_SITE_ID, text)
    if number is None:
        raise UnknownSite("site not found")
    return number


def parse_path_site(text: str) -> int:
    """Parse the site id in a URL path. Raise `UnknownSite` if it is malformed (rest-15)."""
    return parse_site_id(decode_segment(text))


def parse_path_zone(text: str) -> int:
    """Parse the zone id in a URL path. Raise `NotFound` if it is malformed (rest-15)."""
    number = _parse_number(_ZONE_ID, decode_segment(text))
    if number is None:
        raise NotFound("zone not found")
    return number


def parse_survey_id(text: str) -> int:
    """Parse the id of a survey point in a URL path. Raise `NotFound` if it is malformed (rest-15)."""
    number = parse_survey_number(decode_segment(text))
    if number is None:
        raise NotFound("survey point not found")
    return number


def parse_survey_number(text: str) -> int | None:
    """Return the number in the id of a survey point; None if there cannot be a point with this id."""
    return _parse_number(_SURVEY_ID, text)


def parse_path_floor(site_id: str, floor: str) -> FloorKey:
    """Parse the site id and the floor number in a URL path. Raise `NotFound` if one is malformed."""
    number = parse_path_site(site_id)
    text = decode_segment(floor)
    if not _FLOOR.fullmatch(text):
        raise NotFound("floor not found")
    return FloorKey(number, int(text))


def _parse_number(pattern: re.Pattern[str], text: str) -> int | None:
    match = pattern.fullmatch(text)
    number = -1 if match is None else int(match[1], 16)
    return number if 0 <= number <= _LARGEST_NUMBER else None


# Bodies.


class _FaultCollector:
    """Checks parts of a body, and collects their faults."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []

    def add(self, field: str, message: str) -> None:
        self.faults.append(Fault(field, message))

    def parse_name(self, text: str, field: str) -> str:
        """Return a valid name. Add a fault for an invalid one, and return it unchanged."""
        try:
            return parse_friendly_name(text, field)
        except MalformedInput as exc:
            self.add(exc.field, exc.reason)
            return text

    def check_floor(self, floor: int, field: str) -> None:
        if not MIN_FLOOR <= floor <= MAX_FLOOR:
            self.add(field, f"must be from {MIN_FLOOR} to {MAX_FLOOR}")

    def check_coordinate(self, value: float, field: str) -> bool:
        """Return whether a coordinate is finite and within the limits; add a fault if it is not."""
        is_valid = abs(value) <= MAX_COORDINATE  # False for NaN
        if not is_valid:
            self.add(field, f"must be a number from {-MAX_COORDINATE:.0f} to {MAX_COORDINATE:.0f}")
        return is_valid

    def raise_faults(self) -> None:
        """Raise `InvalidRequest` with all faults, if there are any."""
        if self.faults:
            raise InvalidRequest(self.faults)


def parse_site(body: NewSite) -> SiteDescription:
    """Parse the description of a site. Raise `InvalidRequest` with all faults (rest-249)."""
    collector = _FaultCollector()
    name = collector.parse_name(body.name, "name")
    if not 1 <= len(body.floors) <= MAX_FLOORS:
        collector.add("floors", f"must have 1 to {MAX_FLOORS} floors")
        collector.raise_faults()
    floors = [_parse_floor(each, f"floors[{index}]", collector) for index, each in enumerate(body.floors)]
    first_index: dict[int, int] = {}
    for index, each in enumerate(body.floors):
        first = first_index.setdefault(each.floor, index)
        if first != index:
            collector.add(f"floors[{index}].floor", f"floor {each.floor} is also in floors[{first}]")
    collector.raise_faults()
    return SiteDescription(name, tuple(sorted(floors, key=lambda each: each.geometry.floor)))


def _parse_floor(body: NewFloor, field: str, collector: _FaultCollector) -> NamedFloor:
    collector.check_floor(body.floor, f"{field}.floor")
    name = None if body.name is None else collector.parse_name(body.name, f"{field}.name")
    box = Box(body.min_x, body.min_y, body.max_x, body.max_y)
    known_faults = len(collector.faults)
    for value, edge in zip(box, ("minX", "minY", "maxX", "maxY"), strict=True):
        collector.check_coordinate(value, f"{field}.{edge}")
    if len(collector.faults) == known_faults:
        for axis, extent in (("X", box.max_x - box.min_x), ("Y", box.max_y - box.min_y)):
            if not MIN_EXTENT <= extent <= MAX_EXTENT:
                message = f"must be {MIN_EXTENT:g} to {MAX_EXTENT:g} m more than min{axis}"
                collector.add(f"{field}.max{axis}", message)
    walkable = body.walkable or None  # without any area, devices could be nowhere
    if walkable is not None:
        _check_walkable(walkable, box, f"{field}.walkable", collector)
    return NamedFloor(name, FloorGeometry(body.floor, box, walkable))


def _check_walkable(areas: Sequence[Polygon], box: Box, field: str, collector: _FaultCollector) -> None:
    if len(areas) > MAX_WALKABLE:
        collector.add(field, f"must have at most {MAX_WALKABLE} polygons")
        return
    for index, each in enumerate(areas):
        if _check_polygon(each, f"{field}[{index}]", MAX_WALKABLE_CORNERS, collector):
            check_inside(each, box, f"{field}[{index}]", collector.faults)


def _check_polygon(polygon: Polygon, field: str, max_corners: int, collector: _FaultCollector) -> bool:
    """Return whether a polygon has a possible number of corners and valid coordinates; else add a fault.

    Only the first invalid corner is named. Edges may cross: the even-odd rule says what is inside.
    """
    if not MIN_CORNERS <= len(polygon) <= max_corners:
        collector.add(field, f"must have {MIN_CORNERS} to {max_corners} corners")
        return False
    return all(
        collector.check_coordinate(value, f"{field}[{index}]")
        for index, corner in enumerate(polygon)
        for value in corner
    )


def check_inside(polygon: Polygon, box: Box, field: str, faults: list[Fault]) -> None:
    """Add a fault if a corner of a polygon is outside the rectangle of its floor."""
    outside = next((index for index, corner in enumerate(polygon) if not box.contains(*corner)), None)
    if outside is not None:
        faults.append(Fault(f"{field}[{outside}]", f"is outside the floor, which has {box}"))


def check_on_floor(
    boxes: Mapping[int, Box], floor: int, x: float, y: float, *, field: str, faults: list[Fault]
) -> None:
    """Add faults if a place is not on one of the floors of a site; `field` precedes the names of fields."""
    box = boxes.get(floor)
    if box is None:
        known = ", ".join(map(str, sorted(boxes)))
        faults.append(Fault(f"{field}floor", f"the site has no floor {quote_input(floor)}, but {known}"))
        return
    for axis, is_inside in (("x", box.contains_x(x)), ("y", box.contains_y(y))):
        if not is_inside:
            faults.append(Fault(f"{field}{axis}", f"is outside the floor, which has {box}"))


def parse_zone(body: NewZone) -> ZoneDescription:
    """Parse the description of a zone. Raise `InvalidRequest` with all faults (rest-255)."""
    collector = _FaultCollector()
    name = collector.parse_name(body.name, "name")
    collector.check_floor(body.floor, "floor")
    _check_polygon(body.polygon, "polygon", MAX_ZONE_CORNERS, collector)
    collector.raise_faults()
    return ZoneDescription(name, body.floor, body.polygon)


def parse_place(body: NewPlace, device: int) -> Anchor:
    """Parse the place of a device, without its site. Raise `InvalidRequest` with all faults (rest-90)."""
    collector = _FaultCollector()
    collector.check_floor(body.floor, "floor")
    collector.check_coordinate(body.x, "x")
    collector.check_coordinate(body.y, "y")
    collector.raise_faults()
    return Anchor(device, body.floor, body.x, body.y)


def parse_places(places: Sequence[BatchPlace]) -> list[Anchor]:
    """Parse the places of a batch. Raise `InvalidRequest` with the faults of all places (rest-254)."""
    if not 1 <= len(places) <= MAX_BATCH_PLACES:
        raise InvalidRequest([Fault("places", f"must have 1 to {MAX_BATCH_PLACES} places")])
    collector = _FaultCollector()
    parsed = [_parse_batch_place(each, f"places[{index}]", collector) for index, each in enumerate(places)]
    first_index: dict[int, int] = {}
    for index, each in enumerate(parsed):
        if each is None:
            continue
        first = first_index.setdefault(each.device, index)
        if first != index:
            name = mac_from_int(each.device)
            collector.add(f"places[{index}].device", f"{name} is also in places[{first}]")
    collector.raise_faults()
    return [each for each in parsed if each is not None]


def _parse_batch_place(body: BatchPlace, field: str, collector: _FaultCollector) -> Anchor | None:
    """Parse a place of a batch; None if the id of its device is malformed."""
    collector.check_floor(body.floor, f"{field}.floor")
    collector.check_coordinate(body.x, f"{field}.x")
    collector.check_coordinate(body.y, f"{field}.y")
    try:
        device = mac_to_int(to_mac(parse_device_id(body.device, f"{field}.device")))
    except MalformedInput as exc:
        collector.add(exc.field, exc.reason)
        return None
    return Anchor(device, body.floor, body.x, body.y)
