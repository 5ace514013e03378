"""Bodies about samples, and about reports that could not be taken."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.errors.protocol import MalformedPayload
from meshfleet.rest.bodies import IdentifierText, MacText, ResponseBody, TimeText

# Bodies about samples that are missing.


class Hole(ResponseBody, frozen=True, kw_only=True):
    """Samples of a series are missing between two that are there (rest-190)."""

    kind: Literal["measurement", "event"]
    identifier: IdentifierText | None
    name: str | None
    since: TimeText
    """Of the sample before the hole."""
    until: TimeText
    """Of the sample behind it."""
    found_at: TimeText
    lost_at: TimeText | None
    """Since when the missing ones are not expected any more; None: they are asked for."""


class HolePage(ResponseBody, frozen=True, kw_only=True):
    """Holes, by kind, identifier and time."""

    items: list[Hole]
    next_token: str | None


MIN_POINTS: Final = 1
MAX_POINTS: Final = 2000
DEFAULT_POINTS: Final = 300
"""`Points` of a series (rest-183)."""


class Sample(ResponseBody, frozen=True, kw_only=True):
    """A sample: these fields, in this order (rest-81)."""

    time: TimeText
    kind: Literal["property", "measurement", "measurement-error", "event"]
    identifier: IdentifierText | None
    """None: the gateway told a name that the catalogue does not know."""
    name: str | None
    """None: the catalogue does not know the identifier."""
    seq: int | None
    value: Any
    """Any JSON; None also where there is no value, or where a raw one could not be decoded."""
    raw: Annotated[str, Meta(pattern="^(?:[0-9a-f]{2})*$")] | None
    ext: dict[str, Any] | None
    error: int | None
    error_ext: int | None
    gateway: MacText
    clock: Literal["future", "past"] | None
    """Set when the time is not believed, not even corrected (rest-179)."""
    corrected_time: TimeText | UnsetType = UNSET
    """When it was made by our clock, where the clock of its gateway was wrong by more than 5 s (rest-179)."""


class SamplePage(ResponseBody, frozen=True, kw_only=True):
    """Samples, the newest first."""

    items: list[Sample]
    next_token: str | None


class Bucket(ResponseBody, frozen=True, kw_only=True):
    """A part of a series (rest-86). With `count` 0, a chart breaks its line here (rest-184)."""

    time: TimeText
    """When it begins."""
    min: float | None
    mean: float | None
    max: float | None
    count: int
    last: float | None


class Series(ResponseBody, frozen=True, kw_only=True):
    """The numbers of one identifier over time (rest-85)."""

    identifier: IdentifierText | None
    name: str | None
    unit: str | None
    complete_up_to: TimeText | None
    """None: not known."""
    gap_checked: bool | None
    """Whether `seq` tells what is missing; None: its samples are not acknowledged."""
    items: list[Bucket]


class Link(ResponseBody, frozen=True, kw_only=True):
    """How a parent heard a device within the time that is asked for (rest-87)."""

    parent: MacText
    rssi: int
    """Of the last reading, in dBm."""
    seen_at: TimeText
    """When that was."""
    unreachable: bool
    """Whether the last reading says that the device cannot be reached through this parent."""
    mean: float | None
    """Of all readings, as are the next three."""
    min: float | None
    max: float | None
    count: int
    gateway: MacText
    """Who brought the first reading of the minute of the last one."""
    series: list[Bucket]
    """The RSSI of all readings; those of one minute count where it begins (rest-88)."""


class Links(ResponseBody, frozen=True, kw_only=True):
    """The parents that heard a device: in the newest minute first, and best within it."""

    items: list[Link]


class Reject(ResponseBody, frozen=True, kw_only=True):
    """A report that could not be taken (rest-95)."""

    time: TimeText
    gateway: MacText | None
    """None: the topic names none."""
    topic: str
    reason: str
    payload: str
    """The beginning of it, as text."""


class RejectPage(ResponseBody, frozen=True, kw_only=True):
    """Reports that could not be taken, the newest first."""

    items: list[Reject]
    next_token: str | None


def parse_points(text: str, field: str = "Points") -> int:
    """Read how many buckets a series may have (rest-183)."""
    if not re.fullmatch(r"[0-9]{1,4}", text) or not MIN_POINTS <= int(text) <= MAX_POINTS:
        raise MalformedPayload(field, f"is not a number from {MIN_POINTS} to {MAX_POINTS}")
    return int(text)
