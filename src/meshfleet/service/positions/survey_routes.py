"""REST routes of survey points: add, list, withdraw, export and import."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

import msgspec
from litestar import Response, Router, delete, get, post
from litestar.di import NamedDependency as Given
from litestar.params import FromPath, JSONBody, SkipValidation
from litestar.response import Stream

from meshfleet.db import Database
from meshfleet.errors import Fault, InvalidRequest
from meshfleet.rest.paths import SITES_PATH
from meshfleet.rest.survey import (
    MAX_SURVEY_BYTES,
    NewSurveyPoint,
    SurveyBatch,
    SurveyCount,
    SurveyExport,
    SurveyPoint,
    SurveyPointPage,
    SurveyRecord,
)
from meshfleet.service.actor import Actor
from meshfleet.service.clock import Now
from meshfleet.service.http.csv_response import JsonOrCsv, prefers_csv, stream_csv
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.http.request import ApiRequest
from meshfleet.service.positions import survey_csv, survey_import, survey_store
from meshfleet.service.positions.positions import PositionFinder
from meshfleet.service.positions.survey_parameters import (
    NOT_RECEIVED,
    parse_survey_batch,
    parse_survey_point,
    raise_faults,
)
from meshfleet.service.sites.changes import SiteChanges
from meshfleet.service.sites.parameters import parse_path_site, parse_survey_id
from meshfleet.service.sites.places import load_site_geometry
from meshfleet.service.sites.store import check_site_exists

_EXPORT_POINTS: Final = 100
"""Number of survey points that an export reads and sends at a time."""

_encode: Final = msgspec.json.Encoder().encode


@post("/{site_id:str}/survey", problems=(409,))
async def create_survey_point(
    site_id: FromPath[str],
    data: JSONBody[NewSurveyPoint],
    actor: Given[Actor],
    database: Given[Database],
    positions: Given[SkipValidation[PositionFinder]],
    site_changes: Given[SkipValidation[SiteChanges]],
    now: Given[Now],
) -> SurveyPoint:
    """Add a survey point: the device was at this place from `from` to `to`, by default for the last 60 s.

    What anchors read of the device in this time improves positions near the place.
    """
    number = parse_path_site(site_id)
    geometry = await database.read(load_site_geometry, number)
    device, since, until = parse_survey_point(data, now())
    boxes = {each.floor: each.box for each in geometry.floors}
    survey_store.check_point_on_floor(boxes, data.floor, data.x, data.y)
    window = await positions.windows.load_window(device, since, until)
    if window is None or window.site != number:
        raise InvalidRequest([Fault("device", NOT_RECEIVED)])
    point = survey_store.NewPoint(device, data.floor, data.x, data.y, since, until, dict(window.levels))
    created = await database.write(survey_store.insert_point, number, point, by=actor, now=now())
    await site_changes.check()
    return created


@get("/{site_id:str}/survey")
async def list_survey_points(
    site_id: FromPath[str],
    database: Given[Database],
    pages: Given[PageTokens],
    limit: Given[int],
    next_token: NextToken = None,
) -> SurveyPointPage:
    """List the survey points of a site, the oldest first."""
    number = parse_path_site(site_id)
    scope = f"survey/{number}"
    after = None if next_token is None else survey_store.SurveyPosition(*pages.decode(scope, next_token))
    found = await database.read(survey_store.list_points, number, after=after, limit=limit + 1)
    return SurveyPointPage(
        items=[point for _, point in found[:limit]],
        next_token=pages.encode(scope, found[limit - 1][0]) if len(found) > limit else None,
    )


@get("/{site_id:str}/survey/export", operation_class=JsonOrCsv)
async def export_survey(
    request: ApiRequest, site_id: FromPath[str], database: Given[Database]
) -> Response[SurveyExport]:
    """Export all survey points of a site with their readings, the oldest first, without pages.

    The response is also the body of an import. With `Accept: text/csv` it is CSV.
    """
    number = parse_path_site(site_id)
    await database.read(check_site_exists, number)
    if prefers_csv(request):
        return await stream_csv(  # type: ignore[return-value] # documented by JsonOrCsv
            request,
            survey_csv.encode_survey_header(),
            _read_records(database, number, survey_csv.encode_survey_rows),
            file_name="survey.csv",
        )
    await request.body()  # empty, but a disconnect before its end would count as an error
    return Stream(  # type: ignore[return-value] # a SurveyExport, in pieces
        _stream_json(database, number), media_type="application/json"
    )


@post(
    "/{site_id:str}/survey/import", status_code=200, problems=(409,), request_max_body_size=MAX_SURVEY_BYTES
)
async def import_survey(
    site_id: FromPath[str],
    data: JSONBody[SurveyBatch],
    actor: Given[Actor],
    database: Given[Database],
    positions: Given[SkipValidation[PositionFinder]],
    site_changes: Given[SkipValidation[SiteChanges]],
    now: Given[Now],
) -> SurveyCount:
    """Add up to 2,000 survey points to a site: all of them, or none.

    A point that the site has already, with the same device, place and time, is left as it is.
    """
    number, faults = parse_path_site(site_id), list[Fault]()
    site = await database.read(survey_import.load_surveyed_site, number)
    points = await asyncio.to_thread(parse_survey_batch, data.points, now(), faults)
    new = survey_import.select_new_points(points, site, faults)
    complete = await survey_import.add_kept_readings(new, number, positions, faults)
    raise_faults(faults)
    added = 0
    if complete:
        added = await database.write(survey_import.insert_points, number, complete, by=actor, now=now())
        await site_changes.check()
    return SurveyCount(added=added, unchanged=len(points) - added)


@get("/{site_id:str}/survey/{point_id:str}")
async def show_survey_point(
    site_id: FromPath[str], point_id: FromPath[str], database: Given[Database]
) -> SurveyPoint:
    """Get a survey point of a site."""
    number, point = parse_path_site(site_id), parse_survey_id(point_id)
    return await database.read(survey_store.load_point, number, point)


@delete("/{site_id:str}/survey/{point_id:str}")
async def remove_survey_point(
    site_id: FromPath[str],
    point_id: FromPath[str],
    actor: Given[Actor],
    database: Given[Database],
    site_changes: Given[SkipValidation[SiteChanges]],
    now: Given[Now],
) -> None:
    """Withdraw a survey point, for example because the shelves next to it were moved."""
    number, point = parse_path_site(site_id), parse_survey_id(point_id)
    await database.write(survey_store.delete_point, number, point, by=actor, now=now())
    await site_changes.check()


async def _stream_json(database: Database, number: int) -> AsyncIterator[bytes]:
    """Yield a `SurveyExport` in pieces: with all readings of a large site it has many megabytes."""
    start = b'{"points":['
    async for chunk in _read_records(database, number, _encode_records):
        yield start + chunk
        start = b","
    yield b"]}" if start == b"," else start + b"]}"


async def _read_records(
    database: Database, number: int, encode: Callable[[Sequence[SurveyRecord]], bytes]
) -> AsyncIterator[bytes]:
    """Yield the survey points of a site in encoded chunks, the oldest first."""
    after = None
    while found := await database.read(survey_store.list_records, number, after=after, limit=_EXPORT_POINTS):
        after = found[-1][0]
        yield await asyncio.to_thread(encode, [record for _, record in found])


def _encode_records(records: Sequence[SurveyRecord]) -> bytes:
    return b",".join(map(_encode, records))


router = Router(
    SITES_PATH,
    route_handlers=[
        create_survey_point,
        list_survey_points,
        export_survey,
        import_survey,
        show_survey_point,
        remove_survey_point,
    ],
    tags=["Positions"],
)
