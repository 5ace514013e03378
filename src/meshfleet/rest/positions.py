"""JSON bodies of the REST API: positions of devices, and visits to zones."""

from __future__ import annotations

from typing import Final, Literal

from msgspec import UNSET, UnsetType

from meshfleet.rest.bodies import DeviceIdText, MacText, ResponseBody, TimeText
from meshfleet.rest.sites import SiteIdText  # noqa: TC001 # msgspec reads it

DEFAULT_WINDOW: Final = 60
"""Seconds of readings from which a position is computed, if `Window` is absent."""
MIN_WINDOW: Final = 3
MAX_WINDOW: Final = 3600
"""Limits of the query parameter `Window` in seconds, inclusive."""


class FloorProbability(ResponseBody, frozen=True, kw_only=True):
    """Probability that a device is on a floor."""

    floor: int
    probability: float


class PositionReading(ResponseBody, frozen=True, kw_only=True):
    """Reading of an anchor that a position was computed from."""

    anchor: MacText
    rssi: float
    """Mean RSSI in dBm."""
    count: int
    """Number of readings."""
    distance: float
    """Distance of the anchor from the position, in meters."""
    residual: float
    """RSSI minus the RSSI that is expected from a device at the position, in dB."""


class Position(ResponseBody, frozen=True, kw_only=True):
    """Estimated position of a device (rest-91)."""

    site: SiteIdText
    floor: int
    x: float
    y: float
    radius: float
    """Radius in meters that holds the device with the probability `confidence`."""
    confidence: float
    level: Literal[0, 1, 2]
    """2: the site has survey points; 1: its anchors receive each other; 0: only their places are known."""
    time: TimeText
    """Time of the newest reading."""
    floors: list[FloorProbability]
    readings: list[PositionReading]
    """Readings that were used, the strongest first."""


class PositionAnswer(ResponseBody, frozen=True, kw_only=True):
    """Position of a device, or the reason why it is unknown (rest-92)."""

    position: Position | None
    reason: str | None


class PastPosition(ResponseBody, frozen=True, kw_only=True):
    """Position of a device at a time in the past (rest-258)."""

    time: TimeText
    site: SiteIdText
    floor: int
    x: float
    y: float
    radius: float


class PastPositionPage(ResponseBody, frozen=True, kw_only=True):
    """Page of the positions of a device, the oldest first."""

    items: list[PastPosition]
    next_token: str | None


class SitePosition(ResponseBody, frozen=True, kw_only=True):
    """Current position of a device on a site (rest-259)."""

    device: DeviceIdText
    name: str
    time: TimeText
    floor: int
    x: float
    y: float
    radius: float
    distance: float | UnsetType = UNSET
    """Distance from the requested point in meters; only in lists of the nearest devices."""


class ZoneVisit(ResponseBody, frozen=True, kw_only=True):
    """Stay of a device in a zone (rest-264)."""

    device: DeviceIdText
    entered_at: TimeText
    left_at: TimeText | None
    """Null while the device is inside."""
    dwell_seconds: float | None
    """Seconds between both times."""


class ZoneVisitPage(ResponseBody, frozen=True, kw_only=True):
    """Page of the visits to a zone, the newest first."""

    items: list[ZoneVisit]
    next_token: str | None


class SuspiciousAnchor(ResponseBody, frozen=True, kw_only=True):
    """Anchor that does not seem to be where its place says (rest-259)."""

    anchor: MacText
    difference: float
    """Root mean square difference between its readings and those expected at its place, in dB."""


class SitePositions(ResponseBody, frozen=True, kw_only=True):
    """Current positions of all devices on a site, and anchors that do not fit to their places."""

    items: list[SitePosition]
    suspicious_anchors: list[SuspiciousAnchor]


class FloorCoverage(ResponseBody, frozen=True, kw_only=True):
    """Expected coverage of a floor for a device of usual transmit power (rest-266).

    The floor is divided into cells of equal size, at most 1,000. The lists have a value per cell, row by row
    from the corner with the smallest coordinates. The last column and row may reach beyond the floor. Values
    are null where devices cannot be.
    """

    floor: int
    min_rssi: float
    """RSSI in dBm from which a reading counts."""
    level: Literal[0, 1, 2]
    """Level of the positions of the site, as in a position."""
    located_share: float
    """Share of the floor where at least three anchors receive a device."""
    min_x: float
    min_y: float
    columns: int
    rows: int
    column_meters: float
    row_meters: float
    anchors: list[int | None]
    """Number of anchors that receive a device."""
    rssi: list[float | None]
    """RSSI in dBm at the anchor that receives a device best; null where none does."""
    radius: list[float | None]
    """Radius of the position of a device in meters; null where fewer than three anchors receive it."""


class CoverageAnswer(ResponseBody, frozen=True, kw_only=True):
    """Expected coverage of a floor, or the reason why it is unknown (rest-266)."""

    coverage: FloorCoverage | None
    reason: str | None
