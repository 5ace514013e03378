"""`fleet.samples`: what devices reported, and what could not be taken."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypedDict

from meshfleet.client.names import Moment, check_names, id_of, mac_of, moment, several
from meshfleet.client.rest.calls import Call, query
from meshfleet.client.rest.lines import Lines
from meshfleet.client.rest.pages import walk
from meshfleet.wire import rest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Unpack

    from meshfleet.client.rest.calls import Query
    from meshfleet.client.rest.desk import Desk
    from meshfleet.wire.rest import Links, Reject, Sample, Series

_SILENCE: Final = 60.0
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

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def list(self, device: str, **filters: Unpack[SampleFilters]) -> AsyncGenerator[Sample, None]:
        """The samples of a device that meet all filters, the newest first."""
        return walk(self._desk, rest.SamplePage, rest.samples_path(id_of(device)), _chosen(filters))

    async def csv(self, device: str, **filters: Unpack[SampleFilters]) -> AsyncGenerator[str, None]:
        """The same as lines of CSV, the oldest first, behind a line with the names of the columns."""
        path = rest.samples_path(id_of(device))
        call = Call(method="GET", path=path, query=_chosen(filters), accept="text/csv", is_repeatable=True)
        stream = await self._desk.open(call, silence=_SILENCE)
        lines = Lines(b"\r\n")
        try:
            while (piece := await stream.next()) is not None:
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
        asked = query({"Identifier": identifier, **_divided(since, until, points)})
        return await self._desk.get(rest.Series, rest.series_path(id_of(device)), asked)

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
        asked = query(_divided(since, until, points))
        return await self._desk.get(rest.Links, rest.links_path(id_of(device)), asked)

    def rejects(self, gateway: str | None = None) -> AsyncGenerator[Reject, None]:
        """Reports that could not be taken, the newest first: of one gateway, or of all."""
        chosen = query({"Gateway": None if gateway is None else mac_of(gateway)})
        return walk(self._desk, rest.RejectPage, rest.REJECTS, chosen)


def _divided(since: Moment | None, until: Moment | None, points: int | None) -> dict[str, str | int | None]:
    """Of which time something is asked for, and in how many buckets."""
    return {"From": moment(since, "since"), "To": moment(until, "until"), "Points": points}


def _chosen(filters: SampleFilters) -> Query:
    check_names(filters, SampleFilters)
    single = {
        "Identifier": filters.get("identifier"),
        "From": moment(filters.get("since"), "since"),
        "To": moment(filters.get("until"), "until"),
    }
    return query(single, {"Kind": several(filters.get("kinds", ()))})
