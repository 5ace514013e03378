"""REST route of the expected coverage of a floor."""

import math
import re
from typing import TYPE_CHECKING, Annotated, Final

from litestar import Router, get
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, QueryParameter, SkipValidation

from meshfleet.db import Database
from meshfleet.errors import NotFound
from meshfleet.errors.protocol import MalformedText
from meshfleet.rest.paths import SITES_PATH
from meshfleet.rest.positions import CoverageAnswer, FloorCoverage
from meshfleet.service.http.query import QueryReader
from meshfleet.service.positions.current_positions import MIN_ANCHORS
from meshfleet.service.positions.positions import PositionFinder
from meshfleet.service.sites.parameters import parse_path_floor
from meshfleet.service.sites.places import load_site_geometry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from meshfleet.positioning.coverage import CoverageMap
    from meshfleet.service.positions.site_model import SiteModel

_MIN_RSSI: Final = -127
_MAX_RSSI: Final = 20
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,3}")

MinRssiText = Annotated[
    str | None,
    QueryParameter(
        name="MinRssi",
        description=f"RSSI in dBm from which a reading counts: {_MIN_RSSI} to {_MAX_RSSI}. Default:"
        " what anchors of the site receive.",
        schema_extra={"type": "integer", "minimum": _MIN_RSSI, "maximum": _MAX_RSSI},
    ),
]


@get("/{site_id:str}/floors/{floor:str}/coverage")
async def show_coverage(
    site_id: FromPath[str],
    floor: FromPath[str],
    database: Given[Database],
    positions: Given[SkipValidation[PositionFinder]],
    min_rssi: MinRssiText = None,
) -> CoverageAnswer:
    """Show how the anchors of a site are expected to receive a device on a floor.

    The model that positions are computed with says how many anchors receive a device of usual transmit power
    in each cell of the floor, and how exact its position is there. It needs no measurement in these cells.
    """
    key = parse_path_floor(site_id, floor)
    reader = QueryReader()
    level = reader.read(_parse_rssi, min_rssi, "MinRssi", default=None)
    reader.raise_faults()
    geometry = await database.read(load_site_geometry, key.site)
    if all(each.floor != key.floor for each in geometry.floors):
        raise NotFound("floor not found")
    model = await positions.get_model(key.site)
    if model is None:
        return CoverageAnswer(
            coverage=None, reason=f"The site has fewer than {MIN_ANCHORS} devices with a place."
        )
    min_level = model.sensitivity if level is None else level
    found = await positions.slow_work.share(model.predict_coverage, key.floor, min_level=min_level)
    if found is None:  # the floor was added a moment ago, after the model was built
        raise NotFound("floor not found")
    return CoverageAnswer(coverage=_build_coverage(model, key.floor, found, min_level=min_level), reason=None)


def _build_coverage(
    model: "SiteModel", floor: int, found: "CoverageMap", *, min_level: float
) -> FloorCoverage:
    box = next(each.box for each in model.geometry.floors if each.floor == floor)
    is_walkable = found.is_walkable.tolist()
    counts = found.counts.tolist()
    return FloorCoverage(
        floor=floor,
        min_rssi=round(min_level, 1),
        level=model.level,
        located_share=round(found.located_share, 4),
        min_x=box.min_x,
        min_y=box.min_y,
        columns=found.columns,
        rows=found.rows,
        column_meters=round(found.column_meters, 4),
        row_meters=round(found.row_meters, 4),
        anchors=[count if is_free else None for count, is_free in zip(counts, is_walkable, strict=True)],
        rssi=_list_values(found.levels.tolist(), is_walkable, digits=1),
        radius=_list_values(found.radii.tolist(), is_walkable, digits=2),
    )


def _list_values(
    values: "Iterable[float]", is_walkable: "Iterable[bool]", *, digits: int
) -> list[float | None]:
    """Round the values of cells; None for those without a value, and where devices cannot be."""
    return [
        None if not is_free or math.isnan(value) else round(value, digits)
        for value, is_free in zip(values, is_walkable, strict=True)
    ]


def _parse_rssi(text: str, field: str) -> int:
    if not _WHOLE_NUMBER.fullmatch(text) or not _MIN_RSSI <= int(text) <= _MAX_RSSI:
        raise MalformedText(field, f"must be a whole number from {_MIN_RSSI} to {_MAX_RSSI}")
    return int(text)


router = Router(SITES_PATH, route_handlers=[show_coverage], tags=["Positions"])
