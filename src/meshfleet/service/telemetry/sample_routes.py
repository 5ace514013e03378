"""REST routes of samples and series: `/api/v1/devices/{id}/samples` and `/api/v1/devices/{id}/series`."""

import asyncio
from collections.abc import AsyncIterator
from itertools import islice

from litestar import Response, Router, get
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.params import FromPath, SkipValidation
from msgspec import Struct

from meshfleet.db import Database
from meshfleet.db.samples.sample import SampleStore, StoredSample
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.protocol.times import format_optional_millis
from meshfleet.rest.telemetry import Sample, SamplePage, Series
from meshfleet.service.backfill import store as series_store
from meshfleet.service.backfill.series import complete_up_to
from meshfleet.service.clock import Now
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_path_device
from meshfleet.service.http.csv_response import JsonOrCsv, prefers_csv, stream_csv
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.http.request import ApiRequest
from meshfleet.service.telemetry import csv_export
from meshfleet.service.telemetry.aggregation import SeriesAggregator
from meshfleet.service.telemetry.chunked_read import ChunkSizes, read_in_chunks
from meshfleet.service.telemetry.identifiers import describe_identifier, load_foreign_names
from meshfleet.service.telemetry.query_params import (
    SampleSelection,
    SeriesSelection,
    parse_sample_selection,
    parse_series_selection,
)
from meshfleet.service.telemetry.rest_sample import to_rest_sample


class SampleListing(Struct, frozen=True, kw_only=True):
    """Query of a sample list; a page token is valid only for an equal query."""

    device: Mac
    selection: SampleSelection


@get("/{device_id:str}/samples", operation_class=JsonOrCsv)
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
    if prefers_csv(request):
        chunks = _encode_csv_chunks(database, samples, device, sample_selection, chunk_sizes.csv_lines)
        return await stream_csv(  # type: ignore[return-value] # documented by JsonOrCsv
            request, csv_export.encode_csv_header(), chunks, file_name=f"samples-{device}.csv"
        )
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


async def _encode_csv_chunks(
    database: Database, store: SampleStore, device: Mac, selection: SampleSelection, size: int
) -> AsyncIterator[bytes]:
    """Yield samples as CSV, the oldest first. Raise `NotFound` for an unknown device without samples."""
    chunks = read_in_chunks(store, selection.to_query(device, newest_first=False), list, size=size)
    is_first = True
    async for chunk in chunks:
        if is_first and not chunk:
            await _check_device_exists(database, device)
        is_first = False
        foreign_names = await load_foreign_names(database, (sample.identifier for sample in chunk))
        yield await asyncio.to_thread(_encode_chunk, chunk, foreign_names)


def _encode_chunk(samples: list[StoredSample], foreign_names: dict[int, str]) -> bytes:
    return csv_export.encode_csv_rows(to_rest_sample(sample, foreign_names) for sample in samples)


router = Router(
    "/api/v1/devices",
    route_handlers=[list_samples, show_series],
    dependencies={
        "sample_selection": Provide(parse_sample_selection, sync_to_thread=False),
        "series_selection": Provide(parse_series_selection, sync_to_thread=False),
    },
    tags=["Samples"],
)
