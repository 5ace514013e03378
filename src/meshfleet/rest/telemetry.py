"""Bodies of samples, gaps, links and rejected reports."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.errors.protocol import MalformedPayload
from meshfleet.rest.bodies import IdentifierText, MacText, ResponseBody, TimeText

# Gaps in series.


class SampleGap(ResponseBody, frozen=True, kw_only=True):
    """Gap in a series: samples are missing between two received ones (rest-190)."""

    kind: Literal["measurement", "event"]
    identifier: IdentifierText | None
    name: str | None
    since: TimeText
    """Time of the last sample before the gap."""
    until: TimeText
    """Time of the first sample after the gap."""
    found_at: TimeText
    lost_at: TimeText | None
    """Time since which the missing samples are no longer expected; None while they are being requested."""


class SampleGapPage(ResponseBody, frozen=True, kw_only=True):
    """Page of gaps, by kind, identifier and time."""

    items: list[SampleGap]
    next_token: str | None


MIN_POINTS: Final = 1
MAX_POINTS: Final = 2000
DEFAULT_POINTS: Final = 300
"""Range and default of `Points` of a series (rest-183)."""


class Sample(ResponseBody, frozen=True, kw_only=True):
    """Sample, with these fields in this order (rest-81)."""

    time: TimeText
    kind: Literal["property", "measurement", "measurement-error", "event"]
    identifier: IdentifierText | None
    """None if the gateway sent a name that the catalogue does not have."""
    name: str | None
    """None if the catalogue does not have the identifier."""
    seq: int | None
    value: Any
    """Any JSON value; None also if there is no value, or a raw one could not be decoded."""
    raw: Annotated[str, Meta(pattern="^(?:[0-9a-f]{2})*$")] | None
    ext: dict[str, Any] | None
    error: int | None
    error_ext: int | None
    gateway: MacText
    clock: Literal["future", "past"] | None
    """Set if the time is implausible even after correction (rest-179)."""
    corrected_time: TimeText | UnsetType = UNSET
    """Time by the clock of the service, if the clock of the gateway is wrong by more than 5 s (rest-179)."""


class SamplePage(ResponseBody, frozen=True, kw_only=True):
    """Page of samples, the newest first."""

    items: list[Sample]
    next_token: str | None


class Bucket(ResponseBody, frozen=True, kw_only=True):
    """Time interval of a series (rest-86). If `count` is 0, a chart interrupts its line here (rest-184)."""

    time: TimeText
    """Start of the interval."""
    min: float | None
    mean: float | None
    max: float | None
    count: int
    last: float | None


class Series(ResponseBody, frozen=True, kw_only=True):
    """Values of one identifier over time (rest-85)."""

    identifier: IdentifierText | None
    name: str | None
    unit: str | None
    complete_up_to: TimeText | None
    """Time up to which no sample is missing; None if unknown."""
    gap_checked: bool | None
    """Whether `seq` shows which samples are missing; None if the samples are not acknowledged."""
    items: list[Bucket]


class Link(ResponseBody, frozen=True, kw_only=True):
    """Signal of a device at one parent within the requested time (rest-87)."""

    parent: MacText
    rssi: int
    """RSSI of the last reading in dBm."""
    seen_at: TimeText
    """Time of the last reading."""
    unreachable: bool
    """Whether the last reading says that the device cannot be reached through this parent."""
    mean: float | None
    """Mean RSSI of all readings; `min`, `max` and `count` are of all readings, too."""
    min: float | None
    max: float | None
    count: int
    gateway: MacText
    """Gateway that sent the first reading in the minute of the last reading."""
    series: list[Bucket]
    """RSSI over time. All readings of a minute count at its start (rest-88)."""


class Links(ResponseBody, frozen=True, kw_only=True):
    """Parents that received a device: those with the latest reading (by minute) first, then by signal."""

    items: list[Link]


class Reject(ResponseBody, frozen=True, kw_only=True):
    """Rejected report (rest-95)."""

    time: TimeText
    gateway: MacText | None
    """None if the topic has no gateway."""
    topic: str
    reason: str
    payload: str
    """Beginning of the payload as text."""


class RejectPage(ResponseBody, frozen=True, kw_only=True):
    """Page of rejected reports, the newest first."""

    items: list[Reject]
    next_token: str | None


def parse_points(text: str, field: str = "Points") -> int:
    """Parse `Points`, the maximum number of buckets of a series (rest-183)."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not MIN_POINTS <= int(text) <= MAX_POINTS:
        raise MalformedPayload(field, f"must be a number from {MIN_POINTS} to {MAX_POINTS}")
    return int(text)
