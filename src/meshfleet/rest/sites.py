"""JSON bodies of the REST API: sites, floors, plans, places of devices, and zones.

Coordinates are in meters. On a floor `x` grows to the right and `y` upwards; in a picture, `px` grows to the
right and `py` downwards.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.rest.bodies import DeviceIdText, RequestBody, ResponseBody, TimeText

MAX_BATCH_PLACES: Final = 1000
"""Maximum number of places in a `PlaceBatch`, because other writers wait for the transaction."""
PLACE_SLACK: Final = 1.0
"""Meters that a place or a corner may be outside the rectangle of its floor, for imprecise drawings."""
MAX_PLAN_BYTES: Final = 20 * 1024 * 1024
"""Maximum size of the picture of a floor (rest-251)."""

SiteIdText = Annotated[str, Meta(pattern="^site-[0-9a-f]{16}$")]
ZoneIdText = Annotated[str, Meta(pattern="^zone-[0-9a-f]{16}$")]
PlanType = Literal["image/png", "image/jpeg", "image/svg+xml"]

Corner = tuple[float, float]
"""Corner of a polygon: x and y in meters."""
Polygon = tuple[Corner, ...]


def format_site_id(number: int) -> str:
    """Return the id of a site in the REST API for its number in the database."""
    return f"site-{number:016x}"


def format_zone_id(number: int) -> str:
    """Return the id of a zone in the REST API for its number in the database."""
    return f"zone-{number:016x}"


# Sites.


class NewFloor(RequestBody, frozen=True, kw_only=True):
    """Floor of a site to create or change: its number, and the rectangle that contains it (rest-249)."""

    floor: int
    name: str | None = None
    min_x: float
    min_y: float
    max_x: float
    max_y: float
    walkable: tuple[Polygon, ...] | None = None
    """Areas in which people and devices can be (even-odd rule); null for the whole rectangle."""


class NewSite(RequestBody, frozen=True, kw_only=True):
    """Request to create a site, or to replace its name and floors (rest-248)."""

    name: str
    floors: tuple[NewFloor, ...]


class ReferencePoint(RequestBody, frozen=True, kw_only=True):
    """Point whose pixels in the picture of a floor and whose meters on the floor are known."""

    px: float
    py: float
    x: float
    y: float


class PlanTransform(ResponseBody, frozen=True, kw_only=True):
    """How the picture of a floor lies on it: the point of a pixel is origin + scale · R · (px, -py).

    R rotates counterclockwise by `rotation`.
    """

    scale: float
    """Meters per pixel."""
    rotation: float
    """Degrees, counterclockwise."""
    origin_x: float
    """Coordinates of the upper left corner of the picture, in meters."""
    origin_y: float


class Plan(ResponseBody, frozen=True, kw_only=True):
    """Picture of a floor, without its content (rest-251)."""

    content_type: PlanType
    width: float
    """Pixels of the picture as browsers show it: rotated by the orientation that a camera has stored."""
    height: float
    size: int
    reference: tuple[ReferencePoint, ...]
    transform: PlanTransform
    updated_at: TimeText


class Floor(ResponseBody, frozen=True, kw_only=True):
    """Floor of a site."""

    floor: int
    name: str | None
    min_x: float
    min_y: float
    max_x: float
    max_y: float
    walkable: tuple[Polygon, ...] | UnsetType | None = UNSET
    """Areas in which people and devices can be; null for the whole rectangle. Absent in the list of sites."""
    plan: Plan | None


class Site(ResponseBody, frozen=True, kw_only=True):
    """Site with its floors, sorted by their numbers (rest-248)."""

    id: SiteIdText
    name: str
    floors: list[Floor]


class SitePage(ResponseBody, frozen=True, kw_only=True):
    """Page of sites in the order of their creation, without the walkable areas of floors."""

    items: list[Site]
    next_token: str | None


# Places.


class NewPlace(RequestBody, frozen=True, kw_only=True):
    """Request to set the place of a device (rest-90)."""

    site: str
    floor: int
    x: float
    y: float


class BatchPlace(RequestBody, frozen=True, kw_only=True):
    """Place of a device on the site of the request (rest-254)."""

    device: str
    floor: int
    x: float
    y: float


class PlaceBatch(RequestBody, frozen=True, kw_only=True):
    """Request to set the places of up to 1,000 devices: all of them or none (rest-254)."""

    places: tuple[BatchPlace, ...]


class SitePlace(ResponseBody, frozen=True, kw_only=True):
    """Device with a place on a site, and the time at which the place was set."""

    device: DeviceIdText
    name: str
    floor: int
    x: float
    y: float
    set_at: TimeText


class SitePlacePage(ResponseBody, frozen=True, kw_only=True):
    """Page of the devices with a place on a site, sorted by device."""

    items: list[SitePlace]
    next_token: str | None


class PlaceCount(ResponseBody, frozen=True, kw_only=True):
    """Number of devices whose places were set."""

    count: int


# Zones.


class NewZone(RequestBody, frozen=True, kw_only=True):
    """Request to create a zone or to replace it: a named area on a floor (rest-255)."""

    name: str
    floor: int
    polygon: Polygon


class Zone(ResponseBody, frozen=True, kw_only=True):
    """Named area on a floor of a site."""

    id: ZoneIdText
    name: str
    floor: int
    polygon: Polygon


class ZonePage(ResponseBody, frozen=True, kw_only=True):
    """Page of the zones of a site, sorted by name."""

    items: list[Zone]
    next_token: str | None
