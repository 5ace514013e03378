"""Fields of site files that matter for positions: areas of floors, wall segments, gains and movements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.emulator.simulation.json_fields import (
    FieldProblems,
    FieldSpec,
    build_array_reader,
    build_integer_reader,
    build_number_reader,
    read_fields,
    read_objects,
)
from meshfleet.emulator.simulation.products import NodeRole
from meshfleet.emulator.simulation.site import FloorArea, SitePosition, Survey, Walk, WallSegment

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

MAX_METERS: Final = 10_000
_MAX_FLOORS: Final = 221
_MAX_SEGMENTS: Final = 1_000
_MAX_POINTS: Final = 1_000
_MAX_GAIN_DB: Final = 40
_DAY_SECONDS: Final = 86_400

read_floor: Final = build_integer_reader(-20, 200)
read_meters: Final = build_number_reader(-MAX_METERS, MAX_METERS)
read_gain: Final = build_number_reader(-_MAX_GAIN_DB, _MAX_GAIN_DB)
read_interval: Final = build_number_reader(0.1, 3600)
read_areas: Final = build_array_reader(_MAX_FLOORS)
read_segments: Final = build_array_reader(_MAX_SEGMENTS)

AREA_FIELDS: Final = {
    "floor": FieldSpec(read_floor, required=True),
    **{name: FieldSpec(read_meters, required=True) for name in ("minX", "minY", "maxX", "maxY")},
}
SEGMENT_FIELDS: Final = {
    "floor": FieldSpec(read_floor, required=True),
    **{name: FieldSpec(read_meters, required=True) for name in ("x1", "y1", "x2", "y2")},
    "loss": FieldSpec(build_number_reader(0, 100), required=True),
}


def build_areas(areas: Sequence[dict[str, Any]], problems: FieldProblems) -> tuple[FloorArea, ...]:
    """Build the areas of floors from their fields; append contradictions to `problems`."""
    floors = set()
    for i, area in enumerate(areas):
        floor = area.get("floor")
        if floor in floors:
            problems.append((f"floors[{i}].floor", f"{floor} is in another entry too"))
        floors.add(floor)
        for axis in "XY":
            lowest, highest = area.get(f"min{axis}"), area.get(f"max{axis}")
            if lowest is not None and highest is not None and lowest >= highest:
                problems.append((f"floors[{i}].max{axis}", f"{highest:g} is not more than min{axis}"))
    return () if problems else tuple(FloorArea(*(area[name] for name in AREA_FIELDS)) for area in areas)


def describe_area(area: FloorArea) -> dict[str, Any]:
    """Convert the area of a floor to the JSON object of a site file."""
    return dict(zip(AREA_FIELDS, area, strict=True))


def build_segments(segments: Iterable[dict[str, Any]]) -> tuple[WallSegment, ...]:
    """Build wall segments from their fields, which have been checked."""
    return tuple(WallSegment(**fields) for fields in segments)


# Movements of devices


def _read_path(value: Any) -> list[tuple[float, float]]:
    """Return the corners of a path, given as an array of arrays `[x, y]`."""
    points = build_array_reader(_MAX_POINTS)(value)
    if not points:
        raise ValueError("has no points")
    return [_read_point(point, f"[{i}]") for i, point in enumerate(points)]


def _read_point(value: Any, name: str) -> tuple[float, float]:
    if not isinstance(value, list) or len(value) != len("xy"):
        raise ValueError(f"{name} is not [x, y]")
    try:
        return read_meters(value[0]), read_meters(value[1])
    except ValueError as exc:
        raise ValueError(f"{name}: {exc}") from None


def _read_points(value: Any) -> list[Any]:
    points = build_array_reader(_MAX_POINTS)(value)
    if not points:
        raise ValueError("has no points")
    return points


WALK_FIELDS: Final = {
    "speed": FieldSpec(build_number_reader(0.01, 50)),
    "pause": FieldSpec(build_number_reader(0, _DAY_SECONDS)),
    "path": FieldSpec(_read_path),
}
SURVEY_FIELDS: Final = {
    "points": FieldSpec(_read_points, required=True),
    "seconds": FieldSpec(build_number_reader(1, _DAY_SECONDS)),
}
_POINT_FIELDS: Final = {
    "floor": FieldSpec(read_floor),
    "x": FieldSpec(read_meters, required=True),
    "y": FieldSpec(read_meters, required=True),
}


def read_movement(device: dict[str, Any], path: str, problems: FieldProblems) -> Walk | Survey | None:
    """Read the fields `walk` and `survey` of a device, of which it has at most one."""
    if "walk" not in device and "survey" not in device:
        return None
    name = "walk" if "walk" in device else "survey"
    if "walk" in device and "survey" in device:
        problems.append((f"{path}.survey", "cannot be combined with walk"))
    if "product" in device and device["product"].role is not NodeRole.LEAF:
        problems.append((f"{path}.{name}", "is not possible: extenders do not move"))
    read = _read_walk if name == "walk" else _read_survey
    return read(device[name], f"{path}.{name}", device.get("floor", 0), problems)


def _read_walk(value: Any, path: str, floor: int, problems: FieldProblems) -> Walk:
    fields = read_fields(value, WALK_FIELDS, path, problems)
    corners = fields.pop("path", ())
    return Walk(**fields, path=tuple(SitePosition(floor, x, y) for x, y in corners))


def _read_survey(value: Any, path: str, floor: int, problems: FieldProblems) -> Survey:
    fields = read_fields(value, SURVEY_FIELDS, path, problems)
    points = read_objects(fields.pop("points", ()), _POINT_FIELDS, f"{path}.points", problems)
    if problems:
        return Survey(points=())  # the file is refused
    return Survey(
        **fields,
        points=tuple(SitePosition(each.get("floor", floor), each["x"], each["y"]) for each in points),
    )


def describe_movement(movement: Walk | Survey) -> dict[str, Any]:
    """Convert the movement of a device to fields of a device in a site file."""
    if isinstance(movement, Survey):
        points = [position._asdict() for position in movement.points]
        return {"survey": {"points": points, "seconds": movement.seconds}}
    walk: dict[str, Any] = {"speed": movement.speed, "pause": movement.pause}
    return {"walk": walk | ({"path": [[x, y] for _, x, y in movement.path]} if movement.path else {})}
