"""`/api/v1/devices/{id}/samples`, `…/series`, and `/api/v1/rejects`."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated

from litestar import Response, Router, get
from litestar.di import NamedDependency as Given
from litestar.di import Provide
from litestar.openapi.spec import OpenAPIMediaType, OpenAPIResponse, OpenAPIType, Operation, Schema
from litestar.params import FromPath, QueryParameter, SkipValidation
from litestar.response import Stream
from msgspec import Struct

from meshfleet import rest
from meshfleet.db import Database
from meshfleet.db.samples.sample import SampleStore, StoredSample
from meshfleet.errors import Fault, InvalidRequest
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest import RejectPage, SamplePage, Series
from meshfleet.service.backfill import store as ledger
from meshfleet.service.backfill.series import complete_up_to
from meshfleet.service.clock import Now
from meshfleet.service.devices import listing
from meshfleet.service.devices.parameters import parse_gateway_mac, parse_path_device
from meshfleet.service.http.pagination import PageTokens
from meshfleet.service.http.query import NextToken
from meshfleet.service.http.request import ApiRequest
from meshfleet.service.telemetry import csv_export, reject_routes
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
    """Tells that there is a second form of the answer."""

    def __post_init__(self) -> None:
        answer = (self.responses or {})["200"]
        assert isinstance(answer, OpenAPIResponse)  # noqa: S101 # Litestar has just made it
        content = answer.content or {}
        content[csv_export.MEDIA_TYPE] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))


class SampleListing(Struct, frozen=True, kw_only=True):
    """What the pages of a list of samples belong to."""

    device: Mac
    selection: SampleSelection


@get("/{device_id:str}/samples", operation_class=_JsonOrCsv)
async def list_samples(
    request: ApiRequest,
    device_id: FromPath[str],
    chosen: Given[SampleSelection],
    limit: Given[int],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    blocks: Given[SkipValidation[ChunkSizes]],
    pages: Given[PageTokens],
    next_token: NextToken = None,
) -> Response[SamplePage]:
    """List the samples of a device that meet all filters, the newest first.

    With `Accept: text/csv` all of them come as CSV, the oldest first, and without pages.
    """
    device = parse_path_device(device_id)
    if wants_csv(request.headers.getall("accept", [])):
        _refuse_pages(request)
        await request.body()  # there is none; but who goes away before its end counts as a mistake
        return await _stream_csv(database, samples, device, chosen, blocks.csv_lines)  # type: ignore[return-value] # told by _JsonOrCsv
    asked = SampleListing(device=device, selection=chosen)
    after = None if next_token is None else pages.decode(asked, next_token)
    wanted = chosen.to_query(device, newest_first=True, after=after)
    found = await samples.read(wanted, lambda each: list(islice(each, limit + 1)))
    if not found:
        await _check_device_exists(database, device)
    cut = pages.build_page(asked, found, limit, lambda last: last.identity)
    items = await _build_items(database, cut["items"])
    return Response(SamplePage(items=items, next_token=cut["next_token"]))


@get("/{device_id:str}/series")
async def show_series(
    device_id: FromPath[str],
    asked: Given[SeriesSelection],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    blocks: Given[SkipValidation[ChunkSizes]],
    now: Given[Now],
) -> Series:
    """Show the numbers of one identifier over time, summed up in buckets of equal length."""
    device = parse_path_device(device_id)
    tally = SeriesAggregator(asked.grid)
    async for _ in read_in_chunks(samples, asked.to_query(device), tally.add, size=blocks.series_samples):
        pass
    buckets = await asyncio.to_thread(tally.build_buckets)
    if not buckets:
        await _check_device_exists(database, device)
    number = identifier_to_int(asked.identifier)
    called = describe_identifier(number, {number: asked.identifier})
    acked = await database.read(ledger.list_series, mac_to_int(device), number)
    complete = complete_up_to(acked, now())
    return Series(
        identifier=called.identifier,
        name=called.name,
        unit=called.unit,
        complete_up_to=None if complete is None else format_millis(complete),
        gap_checked=all(each.is_gap_checked for each in acked) if acked else None,
        items=buckets,
    )


@get()
async def list_rejects(
    limit: Given[int],
    database: Given[Database],
    pages: Given[PageTokens],
    next_token: NextToken = None,
    gateway: Annotated[
        str | None,
        QueryParameter(name="Gateway", description="The MAC or device id of the gateway that sent it."),
    ] = None,
) -> RejectPage:
    """List reports that could not be taken, the newest first."""
    sender = None if gateway is None else mac_to_int(parse_gateway_mac(gateway, "Gateway"))
    choice = reject_routes.RejectSelection(gateway=sender)
    before = pages.decode_start(choice, next_token, start=None)
    found = await database.read(reject_routes.list_reject_entries, choice, before=before, limit=limit + 1)
    cut = pages.build_page(choice, found, limit, lambda last: (last.number,))
    return RejectPage(items=[each.body for each in cut["items"]], next_token=cut["next_token"])


async def _check_device_exists(database: Database, device: Mac) -> None:
    """Refuse what is asked of a device of which nothing was ever heard.

    One that was just heard for the first time, or was forgotten, has samples and may not be in the registry.
    """
    await database.read(listing.load_device, device)


async def _build_items(database: Database, samples: list[StoredSample]) -> list[rest.Sample]:
    foreign = await load_foreign_names(database, (each.identifier for each in samples))
    return [to_rest_sample(each, foreign) for each in samples]


async def _stream_csv(
    database: Database, store: SampleStore, device: Mac, selection: SampleSelection, size: int
) -> Stream:
    """A stream of CSV. Its beginning is there before it is promised: until then it can still be refused."""
    lines = _csv_chunks(database, store, device, selection, size)
    if not (some := await anext(lines)):
        await _check_device_exists(database, device)
    beginning = csv_export.encode_csv_header() + some
    return Stream(
        _prepend(beginning, lines),
        media_type=csv_export.CONTENT_TYPE,
        headers=csv_export.build_csv_headers(device),
    )


async def _csv_chunks(
    database: Database, store: SampleStore, device: Mac, selection: SampleSelection, size: int
) -> AsyncIterator[bytes]:
    blocks = read_in_chunks(store, selection.to_query(device, newest_first=False), list, size=size)
    async for block in blocks:
        foreign = await load_foreign_names(database, (each.identifier for each in block))
        yield await asyncio.to_thread(_encode_chunk, block, foreign)


def _encode_chunk(block: list[StoredSample], foreign: dict[int, str]) -> bytes:
    return csv_export.encode_csv_rows(to_rest_sample(each, foreign) for each in block)


async def _prepend(beginning: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for each in others:
        yield each


def _refuse_pages(request: ApiRequest) -> None:
    """A sheet has none (rest-188)."""
    given = [name for name in ("MaxResults", "NextToken") if name in request.query_params]
    if given:
        raise InvalidRequest([Fault(name, "does not go with CSV, which has no pages") for name in given])


device_router = Router(
    "/api/v1/devices",
    route_handlers=[list_samples, show_series],
    dependencies={
        "chosen": Provide(parse_sample_selection, sync_to_thread=False),
        "asked": Provide(parse_series_selection, sync_to_thread=False),
    },
    tags=["Samples"],
)
router = Router("/api/v1/rejects", route_handlers=[list_rejects], tags=["Samples"])
