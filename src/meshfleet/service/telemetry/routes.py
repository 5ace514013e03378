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

from meshfleet.db import Database
from meshfleet.db.samples.sample import Sample, SampleStore
from meshfleet.errors import Fault, InvalidRequest
from meshfleet.service.acks import store as ledger
from meshfleet.service.acks.series import complete_up_to
from meshfleet.service.clock import Now
from meshfleet.service.devices import listing
from meshfleet.service.devices.paths import device_in_path, parse_gateway
from meshfleet.service.http.asked import Asked
from meshfleet.service.http.pages import Pages
from meshfleet.service.http.parameters import NextToken
from meshfleet.service.telemetry import rejects, sheet
from meshfleet.service.telemetry.choosing import SampleChoice, SeriesChoice, choose_samples, choose_series
from meshfleet.service.telemetry.identifiers import foreign_names, title
from meshfleet.service.telemetry.media import wants_csv
from meshfleet.service.telemetry.reading import Blocks, in_blocks
from meshfleet.service.telemetry.rows import shown
from meshfleet.service.telemetry.series import Tally
from meshfleet.wire import rest
from meshfleet.wire.identifiers.numbers import identifier_number
from meshfleet.wire.ids import Mac, mac_number
from meshfleet.wire.rest import RejectPage, SamplePage, Series
from meshfleet.wire.times import write_millis


@dataclass
class _JsonOrCsv(Operation):
    """Tells that there is a second form of the answer."""

    def __post_init__(self) -> None:
        answer = (self.responses or {})["200"]
        assert isinstance(answer, OpenAPIResponse)  # noqa: S101 # Litestar has just made it
        content = answer.content or {}
        content[sheet.MEDIA_TYPE] = OpenAPIMediaType(schema=Schema(type=OpenAPIType.STRING))


class SampleListing(Struct, frozen=True, kw_only=True):
    """What the pages of a list of samples belong to."""

    device: Mac
    chosen: SampleChoice


@get("/{device_id:str}/samples", operation_class=_JsonOrCsv)
async def list_samples(
    request: Asked,
    device_id: FromPath[str],
    chosen: Given[SampleChoice],
    limit: Given[int],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    blocks: Given[SkipValidation[Blocks]],
    pages: Given[Pages],
    next_token: NextToken = None,
) -> Response[SamplePage]:
    """List the samples of a device that meet all filters, the newest first.

    With `Accept: text/csv` all of them come as CSV, the oldest first, and without pages.
    """
    device = device_in_path(device_id)
    if wants_csv(request.headers.getall("accept", [])):
        _refuse_pages(request)
        await request.body()  # there is none; but who goes away before its end counts as a mistake
        return await _sheet(database, samples, device, chosen, blocks.lines)  # type: ignore[return-value] # told by _JsonOrCsv
    asked = SampleListing(device=device, chosen=chosen)
    after = None if next_token is None else pages.read(asked, next_token)
    wanted = chosen.of(device, newest_first=True, after=after)
    found = await samples.read(wanted, lambda each: list(islice(each, limit + 1)))
    if not found:
        await _check_known(database, device)
    cut = pages.cut(asked, found, limit, lambda last: last.identity)
    items = await _shown(database, cut["items"])
    return Response(SamplePage(items=items, next_token=cut["next_token"]))


@get("/{device_id:str}/series")
async def show_series(
    device_id: FromPath[str],
    asked: Given[SeriesChoice],
    database: Given[Database],
    samples: Given[SkipValidation[SampleStore]],
    blocks: Given[SkipValidation[Blocks]],
    now: Given[Now],
) -> Series:
    """Show the numbers of one identifier over time, summed up in buckets of equal length."""
    device = device_in_path(device_id)
    tally = Tally(asked.grid)
    async for _ in in_blocks(samples, asked.of(device), tally.add, size=blocks.numbers):
        pass
    buckets = await asyncio.to_thread(tally.buckets)
    if not buckets:
        await _check_known(database, device)
    number = identifier_number(asked.identifier)
    called = title(number, {number: asked.identifier})
    acked = await database.read(ledger.of_identifier, mac_number(device), number)
    complete = complete_up_to(acked, now())
    return Series(
        identifier=called.identifier,
        name=called.name,
        unit=called.unit,
        complete_up_to=None if complete is None else write_millis(complete),
        gap_checked=all(each.is_checked for each in acked) if acked else None,
        items=buckets,
    )


@get()
async def list_rejects(
    limit: Given[int],
    database: Given[Database],
    pages: Given[Pages],
    next_token: NextToken = None,
    gateway: Annotated[
        str | None,
        QueryParameter(name="Gateway", description="The MAC or device id of the gateway that sent it."),
    ] = None,
) -> RejectPage:
    """List reports that could not be taken, the newest first."""
    sender = None if gateway is None else mac_number(parse_gateway(gateway, "Gateway"))
    choice = rejects.RejectChoice(gateway=sender)
    before = pages.after(choice, next_token, start=None)
    found = await database.read(rejects.page, choice, before=before, limit=limit + 1)
    cut = pages.cut(choice, found, limit, lambda last: (last.number,))
    return RejectPage(items=[each.shown for each in cut["items"]], next_token=cut["next_token"])


async def _check_known(database: Database, device: Mac) -> None:
    """Refuse what is asked of a device of which nothing was ever heard.

    One that was just heard for the first time, or was forgotten, has samples and may not be in the registry.
    """
    await database.read(listing.device, device)


async def _shown(database: Database, samples: list[Sample]) -> list[rest.Sample]:
    foreign = await foreign_names(database, (each.identifier for each in samples))
    return [shown(each, foreign) for each in samples]


async def _sheet(
    database: Database, store: SampleStore, device: Mac, chosen: SampleChoice, size: int
) -> Stream:
    """A stream of CSV. Its beginning is there before it is promised: until then it can still be refused."""
    lines = _lines(database, store, device, chosen, size)
    if not (some := await anext(lines)):
        await _check_known(database, device)
    beginning = sheet.first_line() + some
    return Stream(_from(beginning, lines), media_type=sheet.CONTENT_TYPE, headers=sheet.headers(device))


async def _lines(
    database: Database, store: SampleStore, device: Mac, chosen: SampleChoice, size: int
) -> AsyncIterator[bytes]:
    blocks = in_blocks(store, chosen.of(device, newest_first=False), list, size=size)
    async for block in blocks:
        foreign = await foreign_names(database, (each.identifier for each in block))
        yield await asyncio.to_thread(_written, block, foreign)


def _written(block: list[Sample], foreign: dict[int, str]) -> bytes:
    return sheet.lines(shown(each, foreign) for each in block)


async def _from(beginning: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for each in others:
        yield each


def _refuse_pages(request: Asked) -> None:
    """A sheet has none (rest-188)."""
    given = [name for name in ("MaxResults", "NextToken") if name in request.query_params]
    if given:
        raise InvalidRequest([Fault(name, "does not go with CSV, which has no pages") for name in given])


device_router = Router(
    "/api/v1/devices",
    route_handlers=[list_samples, show_series],
    dependencies={
        "chosen": Provide(choose_samples, sync_to_thread=False),
        "asked": Provide(choose_series, sync_to_thread=False),
    },
    tags=["Samples"],
)
router = Router("/api/v1/rejects", route_handlers=[list_rejects], tags=["Samples"])
