"""JSON bodies of the REST API: survey points, places at which devices were on purpose."""

from __future__ import annotations

from typing import Annotated, Final

from msgspec import Meta, field

from meshfleet.rest.bodies import DeviceIdText, MacText, RequestBody, ResponseBody, TimeText

MAX_SURVEY_POINTS: Final = 2000
"""Maximum number of survey points of a site: the map of each anchor is interpolated between all of them."""
MAX_SURVEY_READINGS: Final = 500
"""Maximum number of anchors in an imported survey point."""
MAX_SURVEY_BYTES: Final = 8 * 1024 * 1024
"""Maximum size of an import of survey points: it is decoded at once (rest-267)."""
MIN_SURVEY_RSSI: Final = -127
MAX_SURVEY_RSSI: Final = 20
"""Limits of the mean RSSI in dBm of an imported survey point, inclusive."""
MAX_SURVEY_COUNT: Final = 1_000_000
"""Maximum number of readings of an anchor in an imported survey point."""

SurveyIdText = Annotated[str, Meta(pattern="^survey-[0-9a-f]{16}$")]


def format_survey_id(number: int) -> str:
    """Return the id of a survey point in the REST API for its number in the database."""
    return f"survey-{number:016x}"


class NewSurveyPoint(RequestBody, frozen=True, kw_only=True):
    """Statement that a device was at a place from one time to another (rest-261)."""

    device: str
    floor: int
    x: float
    y: float
    since: str | None = field(default=None, name="from")
    until: str | None = field(default=None, name="to")


class SurveyPoint(ResponseBody, frozen=True, kw_only=True):
    """Survey point: a place with the readings of a device that was there (rest-261)."""

    id: SurveyIdText
    device: DeviceIdText
    floor: int
    x: float
    y: float
    since: TimeText = field(name="from")
    until: TimeText = field(name="to")
    anchors: int
    """Number of anchors that received the device."""
    created_at: TimeText
    created_by: str


class SurveyPointPage(ResponseBody, frozen=True, kw_only=True):
    """Page of the survey points of a site, the oldest first."""

    items: list[SurveyPoint]
    next_token: str | None


# Export and import (rest-267, rest-268).


class SurveyReading(ResponseBody, frozen=True, kw_only=True):
    """Readings of an anchor at a survey point: how it received the device there."""

    anchor: MacText
    rssi: float
    """Mean RSSI in dBm."""
    count: int
    """Number of readings."""


class SurveyRecord(ResponseBody, frozen=True, kw_only=True):
    """Exported survey point with its readings."""

    id: SurveyIdText
    device: DeviceIdText
    floor: int
    x: float
    y: float
    since: TimeText = field(name="from")
    until: TimeText = field(name="to")
    created_at: TimeText
    readings: list[SurveyReading]


class SurveyExport(ResponseBody, frozen=True, kw_only=True):
    """All survey points of a site, the oldest first. It is also the body of an import."""

    points: list[SurveyRecord]


class NewSurveyReading(RequestBody, frozen=True, kw_only=True):
    """Reading of an anchor in a survey point to import."""

    anchor: str
    rssi: float
    count: int


class NewSurveyRecord(RequestBody, frozen=True, kw_only=True):
    """Survey point to import.

    Without `readings`, the readings are those that the service has kept, as for a new survey point. With
    `readings`, `from` and `to` are required.
    """

    id: str | None = None
    device: str
    floor: int
    x: float
    y: float
    since: str | None = field(default=None, name="from")
    until: str | None = field(default=None, name="to")
    created_at: str | None = None
    readings: tuple[NewSurveyReading, ...] | None = None


class SurveyBatch(RequestBody, frozen=True, kw_only=True):
    """Request to import up to 2,000 survey points: all of them or none (rest-268)."""

    points: tuple[NewSurveyRecord, ...]


class SurveyCount(ResponseBody, frozen=True, kw_only=True):
    """Numbers of survey points of an import that are new, and that the site had already."""

    added: int
    unchanged: int
