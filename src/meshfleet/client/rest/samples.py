"""`fleet.samples`: what devices reported, and what could not be taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypedDict

from meshfleet import rest
from meshfleet.client.arguments import (
    Moment,
    check_argument_names,
    format_optional_time,
    normalize_device_id,
    normalize_mac,
    to_tuple,
)
from meshfleet.client.rest.http_caller import iterate_items
from meshfleet.client.rest.http_messages import HttpRequest, build_query
from meshfleet.client.rest.transport import LineSplitter

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Unpack

    from meshfleet.client.rest.http_caller import HttpCaller
    from meshfleet.client.rest.http_messages import QueryParams
    from meshfleet.rest import Links, Reject, Sample, Series

_IDLE_TIMEOUT: Final = 60.0
"""Seconds that the service may take for the next part of a sheet."""

SampleKind = Literal["property", "measurement", "measurement-error", "event"]


class SampleFilters(TypedDict, total=False):
    """What samples must be, all of it at once; None, and no values, ask for nothing (rest-80 to rest-83)."""

    kinds: SampleKind | Iterable[SampleKind]
    """Is of one of these kinds."""
    identifier: str | None
    """In hex, or the name."""
    since: Moment | None
    """Not before this time."""
    until: Moment | None
    """Before this time."""


class Samples:
    """What the devices of a fleet reported. Each is named by MAC or device id, in either case."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    def list(self, device: str, **filters: Unpack[SampleFilters]) -> AsyncGenerator[Sample, None]:
        """The samples of a device that meet all filters, the newest first."""
        return iterate_items(
            self._caller,
            rest.SamplePage,
            rest.samples_path(normalize_device_id(device)),
            _build_filter_query(filters),
        )

    async def csv(self, device: str, **filters: Unpack[SampleFilters]) -> AsyncGenerator[str, None]:
        """The same as lines of CSV, the oldest first, behind a line with the names of the columns."""
        path = rest.samples_path(normalize_device_id(device))
        call = HttpRequest(
            method="GET", path=path, query=_build_filter_query(filters), accept="text/csv", is_repeatable=True
        )
        stream = await self._caller.open_stream(call, idle_timeout=_IDLE_TIMEOUT)
        lines = LineSplitter(b"\r\n")
        try:
            while (piece := await stream.read()) is not None:
                for line in lines.feed(piece):
                    yield line.decode("utf-8", "replace")
        finally:
            await stream.close()

    async def series(
        self,
        device: str,
        identifier: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        points: int | None = None,
    ) -> Series:
        """The numbers of one identifier over time, in `points` buckets at most; without times of one day."""
        asked = build_query({"Identifier": identifier, **_build_bucket_query(since, until, points)})
        return await self._caller.get(rest.Series, rest.series_path(normalize_device_id(device)), asked)

    async def links(
        self,
        device: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        points: int | None = None,
    ) -> Links:
        """Which parents heard a device, how well at last, and over time in `points` buckets at most.

        Without times it is the last day.
        """
        asked = build_query(_build_bucket_query(since, until, points))
        return await self._caller.get(rest.Links, rest.links_path(normalize_device_id(device)), asked)

    def rejects(self, gateway: str | None = None) -> AsyncGenerator[Reject, None]:
        """Reports that could not be taken, the newest first: of one gateway, or of all."""
        chosen = build_query({"Gateway": None if gateway is None else normalize_mac(gateway)})
        return iterate_items(self._caller, rest.RejectPage, rest.REJECTS_PATH, chosen)


def _build_bucket_query(
    since: Moment | None, until: Moment | None, points: int | None
) -> dict[str, str | int | None]:
    """Of which time something is asked for, and in how many buckets."""
    return {
        "From": format_optional_time(since, "since"),
        "To": format_optional_time(until, "until"),
        "Points": points,
    }


def _build_filter_query(filters: SampleFilters) -> QueryParams:
    check_argument_names(filters, SampleFilters)
    single = {
        "Identifier": filters.get("identifier"),
        "From": format_optional_time(filters.get("since"), "since"),
        "To": format_optional_time(filters.get("until"), "until"),
    }
    return build_query(single, {"Kind": to_tuple(filters.get("kinds", ()))})
