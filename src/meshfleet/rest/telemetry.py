"""JSON bodies of the REST API: samples, gaps, signal strength at parents, and rejected reports."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.errors.protocol import MalformedPayload
from meshfleet.rest.bodies import IdentifierText, MacText, ResponseBody, TimeText

# Gaps in series.


class SampleGap(ResponseBody, frozen=True, kw_only=True):
    """Gap in the samples of an identifier: samples are missing between two received samples (rest-190)."""

    kind: Literal["measurement", "event"]
    identifier: IdentifierText | None
    name: str | None
    since: TimeText
    """Time of the last sample before the gap."""
    until: TimeText
    """Time of the first sample after the gap."""
    found_at: TimeText
    lost_at: TimeText | None
    """Time when the missing samples were given up; None while they are still being requested."""


class SampleGapPage(ResponseBody, frozen=True, kw_only=True):
    """Page of gaps in the samples of a device, sorted by kind, identifier and time."""

    items: list[SampleGap]
    next_token: str | None


MIN_POINTS: Final = 1
"""Minimum of the query parameter `Points` of a time series, inclusive (rest-183)."""
MAX_POINTS: Final = 2000
"""Maximum of the query parameter `Points` of a time series, inclusive (rest-183)."""
DEFAULT_POINTS: Final = 300
"""Number of points of a time series if the query parameter `Points` is absent (rest-183)."""


class Sample(ResponseBody, frozen=True, kw_only=True):
    """Stored value of a property, measurement or event. The order of the fields is fixed (rest-81)."""

    time: TimeText
    kind: Literal["property", "measurement", "measurement-error", "event"]
    identifier: IdentifierText | None
    """Hex id of the identifier; None if the gateway sent a name that is not in the catalogue."""
    name: str | None
    """Name of the identifier; None if the gateway sent a hex id that is not in the catalogue."""
    seq: int | None
    value: Any
    """Decoded value, any JSON; None also if there is no value, or the raw value could not be decoded."""
    raw: Annotated[str, Meta(pattern="^(?:[0-9a-f]{2})*$")] | None
    ext: dict[str, Any] | None
    error: int | None
    error_ext: int | None
    gateway: MacText
    clock: Literal["future", "past"] | None
    """`future` or `past` if the sample's time is implausible, even after correction; else None (rest-179)."""
    corrected_time: TimeText | UnsetType = UNSET
    """Time by the service's clock; only if the gateway's clock is wrong by more than 5 s (rest-179)."""


class SamplePage(ResponseBody, frozen=True, kw_only=True):
    """Page of the samples of a device, the newest sample first."""

    items: list[Sample]
    next_token: str | None


class ExportedSample(Sample, frozen=True, kw_only=True):
    """Line of an export of samples in the format JSON lines: a sample, and its device (rest-234)."""

    device: MacText
    device_name: str


class ExportEnd(ResponseBody, frozen=True, kw_only=True):
    """Last line of an export in the format JSON lines; without it, the export is incomplete (rest-235)."""

    end: Literal[True]
    samples: int
    """Number of samples in the export."""


EXPORT_FORMATS: Final = ("jsonl", "csv")
"""Values of the query parameter `Format` of an export; the first is the default."""
JSON_LINES_TYPE: Final = "application/x-ndjson"
"""Media type of JSON lines: one JSON object on each line."""


class Bucket(ResponseBody, frozen=True, kw_only=True):
    """Time interval of a series (rest-86). If `count` is 0, charts interrupt the line here (rest-184)."""

    time: TimeText
    """Start of the time interval."""
    min: float | None
    mean: float | None
    max: float | None
    count: int
    last: float | None


class Series(ResponseBody, frozen=True, kw_only=True):
    """Time series: the values of one identifier, aggregated by time interval (rest-85)."""

    identifier: IdentifierText | None
    name: str | None
    unit: str | None
    complete_up_to: TimeText | None
    """Time up to which no sample of the series is missing; None if unknown."""
    gap_checked: bool | None
    """Whether gaps are detected by the samples' `seq`; None if the samples are not acknowledged."""
    items: list[Bucket]


class LinkBucket(Bucket, frozen=True, kw_only=True):
    """Time interval of a link, with the readings that were expected in it (rest-245)."""

    expected: int | None = None
    """Number of readings that were expected; null if unknown."""
    loss: float | None = None
    """Share of the expected readings that were lost, 0 to 1; null if unknown."""


class ChannelSignal(ResponseBody, frozen=True, kw_only=True):
    """Readings of a link on one BLE advertising channel (rest-246)."""

    channel: int
    """37, 38 or 39."""
    count: int
    mean: float
    """Mean RSSI in dBm."""


class HeartbeatCount(ResponseBody, frozen=True, kw_only=True):
    """Heartbeats of a device within the requested time (rest-247)."""

    count: int
    expected: int | None
    """Number of heartbeats that were expected, according to `seq`; null if unknown."""
    loss: float | None
    """Share of the expected heartbeats that were lost, 0 to 1; null if unknown."""
    copies: float | None
    """Mean number of copies in which a heartbeat was received (`lastCount`); null if gateways report none."""


class Link(ResponseBody, frozen=True, kw_only=True):
    """Signal strength of a device at one parent within the requested time (rest-87)."""

    parent: MacText
    rssi: int
    """RSSI of the last reading, in dBm."""
    seen_at: TimeText
    """Time of the last RSSI reading."""
    unreachable: bool
    """Whether the device cannot be reached through this parent, according to the last reading."""
    mean: float | None
    """Mean RSSI of all readings within the requested time, in dBm."""
    min: float | None
    max: float | None
    count: int
    gateway: MacText
    """Gateway that sent the first RSSI reading in the minute of the last RSSI reading."""
    series: list[LinkBucket]
    """RSSI over time. All readings of a minute are dated to the start of the minute (rest-88)."""
    expected: int | None = None
    """Number of readings that were expected within the requested time; null if unknown (rest-245)."""
    loss: float | None = None
    """Share of the expected readings that were lost, 0 to 1; null if unknown."""
    channels: tuple[ChannelSignal, ...] = ()
    """Readings by BLE advertising channel. Readings without a channel are of an established mesh link."""


class Links(ResponseBody, frozen=True, kw_only=True):
    """Parents that received a device, sorted by the minute of the last reading, then by signal strength."""

    items: list[Link]
    heartbeats: HeartbeatCount | None = None
    """Heartbeats of the device; null if there are none."""


class Reject(ResponseBody, frozen=True, kw_only=True):
    """Report of a gateway that the service rejected, and the reason (rest-95)."""

    time: TimeText
    gateway: MacText | None
    """Gateway in the topic of the report; None if the topic names no gateway."""
    topic: str
    reason: str
    payload: str
    """First part of the report's payload, as a string."""


class RejectPage(ResponseBody, frozen=True, kw_only=True):
    """Page of rejected reports, the newest report first."""

    items: list[Reject]
    next_token: str | None


def parse_points(text: str, field: str = "Points") -> int:
    """Parse the query parameter `Points`: the maximum number of intervals of a time series (rest-183)."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not MIN_POINTS <= int(text) <= MAX_POINTS:
        raise MalformedPayload(field, f"must be a number from {MIN_POINTS} to {MAX_POINTS}")
    return int(text)
