"""`fleet.samples`: samples and signal strengths of devices, and rejected reports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, TypedDict

import msgspec

from meshfleet.client.arguments import (
    Moment,
    check_argument_names,
    format_optional_time,
    normalize_device_id,
    normalize_mac,
    to_tuple,
)
from meshfleet.client.rest.devices import build_device_query
from meshfleet.client.rest.http_caller import RestResource
from meshfleet.client.rest.http_messages import HttpRequest, build_query
from meshfleet.client.rest.transport import LineSplitter
from meshfleet.errors import ServiceUnreachable
from meshfleet.rest.paths import EXPORT_PATH, REJECTS_PATH, links_path, samples_path, series_path
from meshfleet.rest.telemetry import (
    JSON_LINES_TYPE,
    ExportedSample,
    ExportEnd,
    Links,
    RejectPage,
    SamplePage,
    Series,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Unpack

    from meshfleet.client.rest.devices import DeviceFilters
    from meshfleet.client.rest.http_messages import QueryParams
    from meshfleet.rest.telemetry import Reject, Sample

_IDLE_TIMEOUT: Final = 60.0
"""Maximum seconds to wait for the next chunk of a CSV export of samples."""

_EXPORT_IDLE_TIMEOUT: Final = 600.0
"""Maximum seconds to wait for the next chunk of an export: many devices may have no matching samples."""

_decode_sample = msgspec.json.Decoder(ExportedSample).decode
_decode_end = msgspec.json.Decoder(ExportEnd).decode

SampleKind = Literal["property", "measurement", "measurement-error", "event"]


class SampleFilters(TypedDict, total=False):
    """Filters of the samples of a device. A sample must match all given filters.

    None and empty values match all samples (rest-80 to rest-83).
    """

    kinds: SampleKind | Iterable[SampleKind]
    """Kinds of samples; an empty tuple means all kinds."""
    identifier: str | None
    """Hex id or name of the identifier."""
    since: Moment | None
    """Earliest time of a sample, inclusive."""
    until: Moment | None
    """Latest time of a sample, exclusive."""


class Samples(RestResource):
    """Samples and signal strengths of the devices of a fleet. Methods accept a MAC or device id."""

    def list(self, device: str, **filters: Unpack[SampleFilters]) -> AsyncGenerator[Sample, None]:
        """List the samples of a device that match all filters, the newest first."""
        return self._caller.iterate_items(
            SamplePage,
            samples_path(normalize_device_id(device)),
            _build_filter_query(filters),
        )

    async def csv(self, device: str, **filters: Unpack[SampleFilters]) -> AsyncGenerator[str, None]:
        """Yield the samples of a device as CSV: a header line, then a line per sample, the oldest first."""
        path = samples_path(normalize_device_id(device))
        request = HttpRequest(
            method="GET", path=path, query=_build_filter_query(filters), accept="text/csv", is_repeatable=True
        )
        stream = await self._caller.open_stream(request, idle_timeout=_IDLE_TIMEOUT)
        lines = LineSplitter(b"\r\n")
        try:
            while (chunk := await stream.read()) is not None:
                for line in lines.feed(chunk):
                    yield line.decode("utf-8", "replace")
        finally:
            await stream.close()

    async def export(
        self, devices: DeviceFilters | None = None, **filters: Unpack[SampleFilters]
    ) -> AsyncGenerator[ExportedSample, None]:
        """Yield the samples of all devices that match, ordered by device, and those of a device by time.

        `devices` has the filters of `devices.list`; None means all devices. Only admins may do this. Raise
        `ServiceUnreachable` if the export ends before it is complete.
        """
        request = HttpRequest(
            method="GET",
            path=EXPORT_PATH,
            query=build_device_query(devices or {}) + _build_filter_query(filters),
            accept=JSON_LINES_TYPE,
            is_repeatable=True,
        )
        stream = await self._caller.open_stream(request, idle_timeout=_EXPORT_IDLE_TIMEOUT)
        lines = LineSplitter(b"\n")
        count = 0
        try:
            while (chunk := await stream.read()) is not None:
                for line in lines.feed(chunk):
                    sample = self._decode_export_line(line)
                    if isinstance(sample, ExportEnd):
                        self._check_export_count(sample, count)
                        return
                    count += 1
                    yield sample
        finally:
            await stream.close()
        raise ServiceUnreachable("the export ended before it was complete", was_sent=True)

    def _decode_export_line(self, line: bytes) -> ExportedSample | ExportEnd:
        # The end is rare, so it is tried only for a line that is no sample.
        try:
            return _decode_sample(line)
        except msgspec.MsgspecError:
            pass
        try:
            return _decode_end(line)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass
        raise self._caller.build_refusal("a line of its export is neither a sample nor the end")

    def _check_export_count(self, end: ExportEnd, count: int) -> None:
        if end.samples != count:
            raise self._caller.build_refusal(f"its export has {count} samples instead of {end.samples}")

    async def series(
        self,
        device: str,
        identifier: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        points: int | None = None,
    ) -> Series:
        """Get the values of one identifier over time, aggregated in at most `points` time intervals.

        Without `since` and `until`, the values are those of the last day.
        """
        query = build_query({"Identifier": identifier, **_build_bucket_query(since, until, points)})
        return await self._caller.get(Series, series_path(normalize_device_id(device)), query)

    async def links(
        self,
        device: str,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        points: int | None = None,
    ) -> Links:
        """Get the mesh nodes (parents) that received a device, with the latest RSSI and the RSSI over time.

        The RSSI over time has at most `points` intervals. Without `since`, it covers the last day.
        """
        query = build_query(_build_bucket_query(since, until, points))
        return await self._caller.get(Links, links_path(normalize_device_id(device)), query)

    def rejects(self, gateway: str | None = None) -> AsyncGenerator[Reject, None]:
        """List the rejected reports of one gateway, or of all gateways if None, the newest first."""
        query = build_query({"Gateway": None if gateway is None else normalize_mac(gateway)})
        return self._caller.iterate_items(RejectPage, REJECTS_PATH, query)


def _build_bucket_query(
    since: Moment | None, until: Moment | None, points: int | None
) -> dict[str, str | int | None]:
    """Build the query parameters for a time range and a maximum number of time intervals."""
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
