"""REST routes of samples and series: `/api/v1/devices/{id}/samples` and `/api/v1/devices/{id}/series`."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import islice

from litestar import Response, Router, get
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.params import FromPath, SkipValidation
from litestar.response import Stream
from msgspec import Struct

from meshfleet.db import Database
from meshfleet.db.samples.sample import SampleStore, StoredSample
from meshfleet.errors import Fault, InvalidRequest
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.protocol.times import format_optional_millis
from meshfleet.rest.telemetry import Sample, SamplePage, Series
from meshfleet.service.backfill import store as series_store
from meshfleet.service.backfill.series import complete_up_to
from meshfleet.service.clock import Now
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.http.request import ApiRequest
from meshfleet.service.telemetry import csv_export
from meshfleet.service.telemetry.aggregation import SeriesAggregator
from meshfleet.service.telemetry.chunked_read import ChunkSizes, read_in_chunks
from meshfleet.service.telemetry.csv_export import wants_csv
from meshfleet.service.telemetry.identifiers import describe_identifier, load_foreign_names
from meshfleet.service.telemetry.query_params import (
    SampleSelection,
    SeriesSelection,
    parse_sample_selection,
    parse_series_selection,
)
from meshfleet.service.telemetry.rest_sample import to_rest_sample


@dataclass
class _JsonOrCsv(Operation):
    """OpenAPI operation whose response is available as JSON and as CSV."""

    def __post_init__(self) -> None:
        response = (self.responses or {})["200"]
        assert isinstance(response, OpenAPIResponse)  # noqa: S101 # Litestar has just created it
        content = response.content or {}
        content[csv_export.MEDIA_TYPE] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))


class SampleListing(Struct, frozen=True, kw_only=True):
    """Query of a sample list; a page token is valid only for an equal query."""

    device: Mac
    selection: SampleSelection


@get("/{device_id:str}/samples", operation_class=_JsonOrCsv)
async def list_samples(
    request: ApiRequest,
    device_id: FromPath[str],
    sample_selection: Given[SampleSelection],
    limit: Given[int],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    chunk_sizes: Given[SkipValidation[ChunkSizes]],
    pages: Given[PageTokens],
    next_token: NextToken = None,
) -> Response[SamplePage]:
    """List the samples of a device that match all filters, the newest first.

    With `Accept: text/csv` all samples are returned as CSV, the oldest first, without pages.
    """
    device = parse_path_device(device_id)
    if wants_csv(request.headers.getall("accept", [])):
        _reject_paging(request)
        await request.body()  # empty, but a disconnect before its end would count as an error
        return await _stream_csv(database, samples, device, sample_selection, chunk_sizes.csv_lines)  # type: ignore[return-value] # documented by _JsonOrCsv
    request_key = SampleListing(device=device, selection=sample_selection)
    after = None if next_token is None else pages.decode(request_key, next_token)
    query = sample_selection.to_query(device, newest_first=True, after=after)
    stored = await samples.read(query, lambda matches: list(islice(matches, limit + 1)))
    if not stored:
        await _check_device_exists(database, device)
    page = pages.build_page(request_key, stored, limit, lambda last: last.identity)
    items = await _to_rest_samples(database, page["items"])
    return Response(SamplePage(items=items, next_token=page["next_token"]))


@get("/{device_id:str}/series")
async def show_series(
    device_id: FromPath[str],
    series_selection: Given[SeriesSelection],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    chunk_sizes: Given[SkipValidation[ChunkSizes]],
    now: Given[Now],
) -> Series:
    """Show the numeric values of one identifier over time, aggregated in buckets of equal length."""
    device = parse_path_device(device_id)
    aggregator = SeriesAggregator(series_selection.grid)
    async for _ in read_in_chunks(
        samples, series_selection.to_query(device), aggregator.add, size=chunk_sizes.series_samples
    ):
        pass
    buckets = await asyncio.to_thread(aggregator.build_buckets)
    if not buckets:
        await _check_device_exists(database, device)
    number = identifier_to_int(series_selection.identifier)
    title = describe_identifier(number, {number: series_selection.identifier})
    acked_series = await database.read(series_store.list_series, mac_to_int(device), number)
    complete_until = complete_up_to(acked_series, now())
    return Series(
        identifier=title.identifier,
        name=title.name,
        unit=title.unit,
        complete_up_to=format_optional_millis(complete_until),
        gap_checked=all(series.is_gap_checked for series in acked_series) if acked_series else None,
        items=buckets,
    )


async def _check_device_exists(database: Database, device: Mac) -> None:
    """Raise `NotFound` if a device is not in the device registry.

    Call this only if there are no samples: a device that is new or was deleted may have samples although the
    device is not in the registry.
    """
    await database.read(listing.load_device, device)


async def _to_rest_samples(database: Database, samples: list[StoredSample]) -> list[Sample]:
    foreign_names = await load_foreign_names(database, (sample.identifier for sample in samples))
    return [to_rest_sample(sample, foreign_names) for sample in samples]


async def _stream_csv(
    database: Database, store: SampleStore, device: Mac, selection: SampleSelection, size: int
) -> Stream:
    """Return an HTTP response that streams samples as CSV.

    The first chunk is read before the response starts, so that a failed read still gets an error response.
    """
    chunks = _encode_csv_chunks(database, store, device, selection, size)
    if not (first_chunk := await anext(chunks)):
        await _check_device_exists(database, device)
    start = csv_export.encode_csv_header() + first_chunk
    return Stream(
        _prepend(start, chunks),
        media_type=csv_export.CONTENT_TYPE,
        headers=csv_export.build_csv_headers(device),
    )


async def _encode_csv_chunks(
    database: Database, store: SampleStore, device: Mac, selection: SampleSelection, size: int
) -> AsyncIterator[bytes]:
    chunks = read_in_chunks(store, selection.to_query(device, newest_first=False), list, size=size)
    async for chunk in chunks:
        foreign_names = await load_foreign_names(database, (sample.identifier for sample in chunk))
        yield await asyncio.to_thread(_encode_chunk, chunk, foreign_names)


def _encode_chunk(samples: list[StoredSample], foreign_names: dict[int, str]) -> bytes:
    return csv_export.encode_csv_rows(to_rest_sample(sample, foreign_names) for sample in samples)


async def _prepend(start: bytes, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield start
    async for chunk in chunks:
        yield chunk


def _reject_paging(request: ApiRequest) -> None:
    """Raise `InvalidRequest` if a CSV request has paging parameters (rest-188)."""
    names = [name for name in ("MaxResults", "NextToken") if name in request.query_params]
    if names:
        raise InvalidRequest(
            [Fault(name, "cannot be combined with CSV, which has no pages") for name in names]
        )


router = Router(
    "/api/v1/devices",
    route_handlers=[list_samples, show_series],
    dependencies={
        "sample_selection": Provide(parse_sample_selection, sync_to_thread=False),
        "series_selection": Provide(parse_series_selection, sync_to_thread=False),
    },
    tags=["Samples"],
)
