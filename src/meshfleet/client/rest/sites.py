"""`fleet.sites`: sites with their floors and plans, places and positions of devices, zones and surveys."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final

import msgspec
from msgspec.structs import replace

from meshfleet.client.arguments import check_text, format_optional_time, normalize_device_id
from meshfleet.client.rest.http_caller import RestResource
from meshfleet.client.rest.http_messages import HttpRequest, build_query
from meshfleet.client.rest.multipart import MultipartUpload
from meshfleet.rest.paths import (
    SITES_PATH,
    coverage_path,
    nearest_path,
    places_path,
    plan_path,
    site_path,
    site_positions_path,
    survey_export_path,
    survey_import_path,
    survey_path,
    survey_point_path,
    visits_path,
    zone_path,
    zones_path,
)
from meshfleet.rest.positions import CoverageAnswer, SitePositions, ZoneVisitPage
from meshfleet.rest.sites import (
    BatchPlace,
    Corner,
    NewSite,
    NewZone,
    PlaceBatch,
    PlaceCount,
    Plan,
    Site,
    SitePage,
    SitePlacePage,
    Zone,
    ZonePage,
)
from meshfleet.rest.survey import (
    NewSurveyPoint,
    NewSurveyReading,
    NewSurveyRecord,
    SurveyBatch,
    SurveyCount,
    SurveyExport,
    SurveyPoint,
    SurveyPointPage,
    SurveyRecord,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable

    from meshfleet.client.arguments import Moment
    from meshfleet.rest.positions import SitePosition, ZoneVisit
    from meshfleet.rest.sites import NewFloor, ReferencePoint, SitePlace

_MIN_BYTES_PER_SECOND: Final = 50_000
"""Minimum rate of the upload or download of a plan in bytes per second; a slower one is aborted."""
_IDLE_TIMEOUT: Final = 60.0
"""Seconds that are added to the timeout of the client for an upload or download."""


class Sites(RestResource):
    """Sites of a fleet, their floors, places and zones. Methods accept the id of a site or a `Site` object.

    Coordinates are in meters; `x` grows to the right of a plan and `y` upwards.
    """

    def list(self) -> AsyncGenerator[Site, None]:
        """List all sites in the order of their creation, without the walkable areas of their floors."""
        return self._caller.iterate_items(SitePage, SITES_PATH)

    async def show(self, site: str | Site) -> Site:
        """Get a site with its floors."""
        return await self._caller.get(Site, site_path(to_site_id(site)))

    async def create(self, name: str, floors: Iterable[NewFloor]) -> Site:
        """Create a site with its floors."""
        return await self._caller.post(Site, SITES_PATH, NewSite(name=name, floors=tuple(floors)))

    async def change(self, site: str | Site, name: str, floors: Iterable[NewFloor]) -> Site:
        """Replace the name and all floors of a site. Floors that stay keep their plans, places and zones.

        Raise `FloorInUse` if places, zones or survey points are on a floor that would be removed, or would be
        outside.
        """
        body = NewSite(name=name, floors=tuple(floors))
        return await self._caller.put(Site, site_path(to_site_id(site)), body)

    async def remove(self, site: str | Site) -> None:
        """Delete a site with everything on it: floors, plans, places, zones, visits and survey points."""
        await self._caller.delete(site_path(to_site_id(site)))

    def places(self, site: str | Site) -> AsyncGenerator[SitePlace, None]:
        """List the devices with a place on a site, sorted by device."""
        return self._caller.iterate_items(SitePlacePage, places_path(to_site_id(site)))

    async def set_places(self, site: str | Site, places: Iterable[BatchPlace]) -> int:
        """Set the places of up to 1,000 devices on a site: all of them, or none. Return their number."""
        body = PlaceBatch(
            places=tuple(replace(each, device=normalize_device_id(each.device)) for each in places)
        )
        return (await self._caller.post(PlaceCount, places_path(to_site_id(site)), body)).count

    async def upload_plan(
        self,
        site: str | Site,
        floor: int,
        image: str | PathLike[str] | BinaryIO,
        reference: Iterable[ReferencePoint],
    ) -> Plan:
        """Upload the picture of a floor (PNG, JPEG or SVG, at most 20 MiB), or replace it.

        `reference` are two points whose pixels and meters are known; the picture is scaled, rotated and moved
        accordingly.
        """
        source = Path(image) if isinstance(image, str | PathLike) else image
        fields = (("reference", msgspec.json.encode(tuple(reference)).decode()),)
        upload = MultipartUpload("image", source, "plan", fields)
        request = HttpRequest(
            method="PUT",
            path=plan_path(to_site_id(site), floor),
            upload=upload,
            extra_timeout=_IDLE_TIMEOUT + upload.size / _MIN_BYTES_PER_SECOND,
        )
        return self._caller.decode(Plan, await self._caller.send(request))

    async def download_plan(self, site: str | Site, floor: int) -> bytes:
        """Download the picture of a floor. Its type is in the `plan` of the floor."""
        request = HttpRequest(
            method="GET",
            path=plan_path(to_site_id(site), floor),
            accept="image/*",
            is_repeatable=True,
            extra_timeout=_IDLE_TIMEOUT,
        )
        return (await self._caller.send(request)).body

    async def remove_plan(self, site: str | Site, floor: int) -> None:
        """Delete the picture of a floor."""
        await self._caller.delete(plan_path(to_site_id(site), floor))

    def zones(self, site: str | Site) -> AsyncGenerator[Zone, None]:
        """List the zones of a site, sorted by name."""
        return self._caller.iterate_items(ZonePage, zones_path(to_site_id(site)))

    async def zone(self, site: str | Site, zone: str | Zone) -> Zone:
        """Get a zone of a site."""
        return await self._caller.get(Zone, zone_path(to_site_id(site), to_zone_id(zone)))

    async def create_zone(self, site: str | Site, name: str, floor: int, polygon: Iterable[Corner]) -> Zone:
        """Create a zone: a named area on a floor with 3 to 100 corners.

        Raise `ZoneExists` if the site has another zone of this name.
        """
        body = NewZone(name=name, floor=floor, polygon=tuple(polygon))
        return await self._caller.post(Zone, zones_path(to_site_id(site)), body)

    async def change_zone(
        self, site: str | Site, zone: str | Zone, *, name: str, floor: int, polygon: Iterable[Corner]
    ) -> Zone:
        """Replace the name, floor and area of a zone."""
        body = NewZone(name=name, floor=floor, polygon=tuple(polygon))
        return await self._caller.put(Zone, zone_path(to_site_id(site), to_zone_id(zone)), body)

    def visits(
        self,
        site: str | Site,
        zone: str | Zone,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> AsyncGenerator[ZoneVisit, None]:
        """List the visits of devices to a zone, the newest first."""
        times = {
            "From": format_optional_time(since, "since"),
            "To": format_optional_time(until, "until"),
        }
        path = visits_path(to_site_id(site), to_zone_id(zone))
        return self._caller.iterate_items(ZoneVisitPage, path, build_query(times))

    async def positions(self, site: str | Site) -> SitePositions:
        """Get the current positions of all devices on a site, and anchors that do not fit to their places."""
        return await self._caller.get(SitePositions, site_positions_path(to_site_id(site)))

    async def nearest(
        self, site: str | Site, floor: int, x: float, y: float, *, limit: int | None = None
    ) -> tuple[SitePosition, ...]:
        """Get the devices on a floor that are nearest to a point, the nearest first."""
        query = build_query({"Floor": floor, "X": str(x), "Y": str(y), "MaxResults": limit})
        found = await self._caller.get(SitePositions, nearest_path(to_site_id(site)), query)
        return tuple(found.items)

    async def coverage(self, site: str | Site, floor: int, *, min_rssi: int | None = None) -> CoverageAnswer:
        """Get the expected coverage of a floor, or the reason why it is unknown.

        Readings below `min_rssi` (dBm) do not count, by default those that the anchors do not receive.
        """
        query = build_query({"MinRssi": min_rssi})
        return await self._caller.get(CoverageAnswer, coverage_path(to_site_id(site), floor), query)

    def survey_points(self, site: str | Site) -> AsyncGenerator[SurveyPoint, None]:
        """List the survey points of a site, the oldest first."""
        return self._caller.iterate_items(SurveyPointPage, survey_path(to_site_id(site)))

    async def add_survey_point(  # noqa: PLR0913 # the last two are keyword-only
        self,
        site: str | Site,
        device: str,
        floor: int,
        x: float,
        y: float,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
    ) -> SurveyPoint:
        """Say where a device was from `since` to `until`, by default for the last 60 s.

        Raise `InvalidRequest` if no anchor of the site received it in this time.
        """
        body = NewSurveyPoint(
            device=normalize_device_id(device),
            floor=floor,
            x=x,
            y=y,
            since=format_optional_time(since, "since"),
            until=format_optional_time(until, "until"),
        )
        return await self._caller.post(SurveyPoint, survey_path(to_site_id(site)), body)

    async def survey_point(self, site: str | Site, point: str) -> SurveyPoint:
        """Get a survey point by its id."""
        return await self._caller.get(SurveyPoint, survey_point_path(to_site_id(site), point))

    async def remove_survey_point(self, site: str | Site, point: str | SurveyPoint) -> None:
        """Withdraw a survey point."""
        point_id = check_text(point if isinstance(point, str) else point.id, "point")
        await self._caller.delete(survey_point_path(to_site_id(site), point_id))

    async def export_survey(self, site: str | Site) -> tuple[SurveyRecord, ...]:
        """Get all survey points of a site with their readings, the oldest first."""
        found = await self._caller.get(SurveyExport, survey_export_path(to_site_id(site)))
        return tuple(found.points)

    async def import_survey(
        self, site: str | Site, records: Iterable[SurveyRecord | NewSurveyRecord]
    ) -> SurveyCount:
        """Add up to 2,000 survey points to a site, such as those of an export: all of them, or none.

        Points that the site has already are left as they are. Raise `InvalidRequest` with all faults.
        """
        body = SurveyBatch(points=tuple(map(_to_new_record, records)))
        return await self._caller.post(SurveyCount, survey_import_path(to_site_id(site)), body)

    async def remove_zone(self, site: str | Site, zone: str | Zone) -> None:
        """Delete a zone."""
        await self._caller.delete(zone_path(to_site_id(site), to_zone_id(zone)))


def to_site_id(site: str | Site) -> str:
    """Return the id of a site; the argument is the id or the site."""
    return check_text(site if isinstance(site, str) else site.id, "site")


def to_zone_id(zone: str | Zone) -> str:
    """Return the id of a zone; the argument is the id or the zone."""
    return check_text(zone if isinstance(zone, str) else zone.id, "zone")


def _to_new_record(record: SurveyRecord | NewSurveyRecord) -> NewSurveyRecord:
    if isinstance(record, NewSurveyRecord):
        return replace(record, device=normalize_device_id(record.device))
    return NewSurveyRecord(
        id=record.id,
        device=record.device,
        floor=record.floor,
        x=record.x,
        y=record.y,
        since=record.since,
        until=record.until,
        created_at=record.created_at,
        readings=tuple(
            NewSurveyReading(anchor=each.anchor, rssi=each.rssi, count=each.count) for each in record.readings
        ),
    )
