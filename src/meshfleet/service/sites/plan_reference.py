"""Parses the two reference points of a plan, and computes how its picture lies on the floor (rest-251)."""

from __future__ import annotations

import cmath
import math
from typing import TYPE_CHECKING, Final

import msgspec

from meshfleet.errors import Fault, InvalidRequest
from meshfleet.errors.protocol import MalformedPayload
from meshfleet.rest.bodies import RequestBody, decode_body
from meshfleet.rest.sites import PlanTransform, ReferencePoint
from meshfleet.service.sites.parameters import MAX_COORDINATE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from meshfleet.service.sites.plan_image import PictureSize

REFERENCE: Final = "reference"
"""Form field with the reference points."""

_POINTS: Final = 2
_MIN_PIXELS: Final = 1.0
_MIN_METERS: Final = 0.1
"""Minimum distance of the reference points: closer ones do not determine scale and rotation."""


class _ReferenceForm(RequestBody, frozen=True, kw_only=True):
    """Form field `reference` as if it were a JSON body, so that errors name its parts."""

    reference: tuple[ReferencePoint, ...]


def parse_reference(text: str) -> tuple[ReferencePoint, ...]:
    """Parse the JSON list of reference points. Raise `InvalidRequest` that names a malformed point."""
    try:
        points = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError):
        raise InvalidRequest(
            [Fault(REFERENCE, "is not valid JSON, or has a number that is too large")]
        ) from None
    try:
        return decode_body(_ReferenceForm, msgspec.json.encode({REFERENCE: points})).reference
    except MalformedPayload as exc:
        raise InvalidRequest([Fault(exc.field, exc.reason)]) from None


def check_reference(points: Sequence[ReferencePoint], picture: PictureSize) -> None:
    """Raise `InvalidRequest` with all faults unless the points are two different ones in the picture."""
    if len(points) != _POINTS:
        raise InvalidRequest([Fault(REFERENCE, f"must have {_POINTS} points, not {len(points)}")])
    faults = [
        *_find_range_faults(points[0], f"{REFERENCE}[0]", picture),
        *_find_range_faults(points[1], f"{REFERENCE}[1]", picture),
    ] or [*_find_distance_faults(*points)]
    if faults:
        raise InvalidRequest(faults)


def _find_range_faults(point: ReferencePoint, field: str, picture: PictureSize) -> Iterator[Fault]:
    """Yield a fault for each coordinate that is not a number in its range; NaN is in no range."""
    for name, value, low, high in (
        ("px", point.px, 0.0, picture.width),
        ("py", point.py, 0.0, picture.height),
        ("x", point.x, -MAX_COORDINATE, MAX_COORDINATE),
        ("y", point.y, -MAX_COORDINATE, MAX_COORDINATE),
    ):
        if not low <= value <= high:
            yield Fault(f"{field}.{name}", f"must be a number from {low:g} to {high:g}")


def _find_distance_faults(first: ReferencePoint, second: ReferencePoint) -> Iterator[Fault]:
    if math.hypot(second.px - first.px, second.py - first.py) < _MIN_PIXELS:
        yield Fault(REFERENCE, f"has points less than {_MIN_PIXELS:g} pixel apart")
    if math.hypot(second.x - first.x, second.y - first.y) < _MIN_METERS:
        yield Fault(REFERENCE, f"has points less than {_MIN_METERS:g} m apart")


def build_transform(points: Sequence[ReferencePoint]) -> PlanTransform:
    """Compute scale, rotation and origin of a picture from two points whose pixels and meters are known.

    As complex numbers, the point of a pixel is origin + factor · (px - i·py): y grows upwards, py downwards.
    """
    pixels = [complex(each.px, -each.py) for each in points]
    meters = [complex(each.x, each.y) for each in points]
    factor = (meters[1] - meters[0]) / (pixels[1] - pixels[0])
    origin = meters[0] - factor * pixels[0]
    return PlanTransform(
        scale=abs(factor),
        rotation=math.degrees(cmath.phase(factor)),
        origin_x=origin.real,
        origin_y=origin.imag,
    )
