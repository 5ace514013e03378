"""`fleet.devices`, `fleet.gateways` and `fleet.labels`: devices, claimed gateways and device labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from msgspec.structs import replace

from meshfleet.client.arguments import (
    Moment,
    check_argument_names,
    format_optional_time,
    normalize_device_id,
    normalize_device_ids,
    normalize_mac,
    to_tuple,
)
from meshfleet.client.rest.http_caller import RestResource
from meshfleet.client.rest.http_messages import build_query
from meshfleet.client.rest.sites import to_site_id
from meshfleet.rest.alarms import Diagnosis
from meshfleet.rest.availability import (
    AVAILABILITY_PATH,
    DEFAULT_AVAILABILITY_POINTS,
    FLEET_CONNECTIVITY_PATH,
    Availability,
    FleetConnectivityPage,
)
from meshfleet.rest.devices import (
    ConnectivityPage,
    Device,
    DeviceDetail,
    DevicePage,
    FriendlyName,
    Label,
    LabelPage,
    NewLabel,
    Place,
    Summary,
)
from meshfleet.rest.gateways import (
    BatchGateway,
    Gateway,
    GatewayClaim,
    GatewayClaimBatch,
    GatewayPage,
    NewGateway,
    NewGatewayBatch,
)
from meshfleet.rest.inputs import parse_label
from meshfleet.rest.jobs import DeviceUpdatePage
from meshfleet.rest.paths import (
    DEVICES_PATH,
    GATEWAY_BATCH_PATH,
    GATEWAYS_PATH,
    LABELS_PATH,
    SUMMARY_PATH,
    connectivity_path,
    credentials_path,
    device_label_path,
    device_path,
    device_way_path,
    diagnosis_path,
    friendly_name_path,
    gateway_path,
    holes_path,
    label_path,
    parents_path,
    past_positions_path,
    place_path,
    position_path,
    topology_path,
    updates_path,
)
from meshfleet.rest.positions import PastPositionPage, PositionAnswer
from meshfleet.rest.sites import NewPlace
from meshfleet.rest.telemetry import SampleGapPage, parse_points
from meshfleet.rest.topology import DevicePath, ParentChangePage, Topology

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Sequence
    from typing import Unpack

    from meshfleet.client.rest.http_messages import QueryParams
    from meshfleet.rest.availability import AvailabilityPoint, FleetConnectivityChange
    from meshfleet.rest.devices import ConnectivityChange
    from meshfleet.rest.jobs import DeviceUpdate
    from meshfleet.rest.positions import PastPosition
    from meshfleet.rest.sites import Site
    from meshfleet.rest.telemetry import SampleGap
    from meshfleet.rest.topology import ParentChange


# `fleet.gateways`: claims of gateways.


class Gateways(RestResource):
    """Claimed gateways of a fleet. Methods accept a MAC or device id, in upper or lower case."""

    def list(self, *, connected: bool | None = None) -> AsyncGenerator[Gateway, None]:
        """List all claimed gateways, or those that are connected or are not, ordered by MAC."""
        query = build_query({"Connected": None if connected is None else str(connected).lower()})
        return self._caller.iterate_items(GatewayPage, GATEWAYS_PATH, query)

    async def show(self, gateway: str) -> Gateway:
        """Get the state of a claimed gateway."""
        return await self._caller.get(Gateway, gateway_path(normalize_mac(gateway)))

    async def claim(self, gateway: str, name: str | None = None) -> GatewayClaim:
        """Claim a gateway. Only the returned object has the MQTT password, which cannot be read later."""
        body = NewGateway(mac=normalize_mac(gateway), friendly_name=name)
        return await self._caller.post(GatewayClaim, GATEWAYS_PATH, body)

    async def claim_many(self, gateways: Iterable[BatchGateway]) -> tuple[GatewayClaim, ...]:
        """Claim up to 1,000 gateways: all of them, or none. Return the claims in the order of `gateways`.

        Only the returned objects have the MQTT passwords, which cannot be read later. The request is repeated
        after a lost connection. If the service had executed it already, `AlreadyExists` is raised: the
        gateways are claimed, but the passwords are lost, and `rotate` creates new ones.
        """
        body = NewGatewayBatch(
            gateways=tuple(replace(each, mac=normalize_mac(each.mac)) for each in gateways)
        )
        response = await self._caller.post_once(GATEWAY_BATCH_PATH, body)
        return tuple(self._caller.decode(GatewayClaimBatch, response).items)

    async def rotate(self, gateway: str) -> GatewayClaim:
        """Replace the MQTT password of a gateway. The old password becomes invalid at once."""
        return await self._caller.post(GatewayClaim, credentials_path(normalize_mac(gateway)))

    async def topology(self, gateway: str, *, at: Moment | None = None) -> Topology:
        """Get the mesh of a gateway as a tree, at a past time if `at` is given."""
        query = build_query({"At": format_optional_time(at, "at")})
        return await self._caller.get(Topology, topology_path(normalize_mac(gateway)), query)

    async def release(self, gateway: str) -> None:
        """Release and disconnect a gateway, which remains a device until `devices.forget` is called."""
        await self._caller.delete(gateway_path(normalize_mac(gateway)))


# `fleet.labels`: the label catalogue.


class Labels(RestResource):
    """All device labels of a fleet. `fleet.devices` attaches labels to single devices."""

    def list(self) -> AsyncGenerator[Label, None]:
        """List all device labels, each with its number of devices."""
        return self._caller.iterate_items(LabelPage, LABELS_PATH)

    async def add(self, label: str, devices: str | Iterable[str] = ()) -> Label:
        """Create a device label, unless the label exists, and attach the label to devices."""
        ids = tuple(normalize_device_id(device, "devices") for device in to_tuple(devices))
        return await self._caller.post(Label, LABELS_PATH, NewLabel(label=label, device_ids=ids))

    async def remove(self, label: str) -> None:
        """Delete a label, and detach the label from all devices."""
        await self._caller.delete(label_path(parse_label(label)))


Sort = Literal["id", "-id", "friendlyName", "-friendlyName", "connectivity", "-connectivity"]
"""Field by which a list of devices is sorted; a `-` in front reverses the order."""


class DeviceFilters(TypedDict, total=False):
    """Filters of the list of devices. A device must match all given filters.

    None and empty values match all devices (rest-34 to rest-36).
    """

    labels: str | Iterable[str]
    """Labels, all of which the device must have."""
    connected: bool | None
    """True for connected devices only, False for disconnected devices only."""
    model_number: str | None
    """Model number: four hex digits."""
    firmware_version: str | None
    """Installed firmware version, such as `2.4.0`."""
    hardware_version: str | None
    """Hardware version, such as `1.0.0`."""
    friendly_name: str | None
    """Part of the friendly name, case-insensitive; with fewer than three characters, its beginning."""
    gateway: str | None
    """MAC or device id of the gateway through which the device is reached."""
    ids: str | Iterable[str]
    """MACs or device ids of the devices."""


class Devices(RestResource):
    """Devices of a fleet, including gateways. Methods accept a MAC or device id, in upper or lower case."""

    def list(
        self, *, sort: Sort | None = None, live: bool = False, **filters: Unpack[DeviceFilters]
    ) -> AsyncGenerator[Device, None]:
        """List the devices that match all filters. If `live` is True, include the state of each device."""
        options = build_query({"Sort": sort, "Include": "live" if live else None})
        return self._caller.iterate_items(DevicePage, DEVICES_PATH, build_device_query(filters) + options)

    async def summary(self, **filters: Unpack[DeviceFilters]) -> Summary:
        """Count the devices that match all filters, by connectivity, model, firmware and label."""
        return await self._caller.get(Summary, SUMMARY_PATH, build_device_query(filters))

    async def show(self, device: str) -> DeviceDetail:
        """Get all fields of a device."""
        return await self._caller.get(DeviceDetail, device_path(normalize_device_id(device)))

    async def rename(self, device: str, name: str) -> Device:
        """Change the friendly name of a device."""
        path = friendly_name_path(normalize_device_id(device))
        return await self._caller.put(Device, path, FriendlyName(name=name))

    async def forget(self, device: str) -> None:
        """Delete a device, but keep its history. The next report of the device creates it again."""
        await self._caller.delete(device_path(normalize_device_id(device)))

    async def label(self, device: str, label: str) -> Device:
        """Attach a label to a device. The label is created if it does not exist."""
        path = device_label_path(normalize_device_id(device), parse_label(label))
        return await self._caller.put(Device, path)

    async def unlabel(self, device: str, label: str) -> Device:
        """Detach a label from a device."""
        path = device_label_path(normalize_device_id(device), parse_label(label))
        return self._caller.decode(Device, await self._caller.delete(path))

    async def place(self, device: str) -> Place:
        """Get the place of a device: site, floor, and coordinates in meters."""
        return await self._caller.get(Place, place_path(normalize_device_id(device)))

    async def set_place(self, device: str, site: str | Site, floor: int, x: float, y: float) -> Place:
        """Set the place of a device in meters. A device with a place that hears others is an anchor.

        Raise `UnknownDevice`, `UnknownSite`, or `InvalidRequest` if the place is not on a floor of the site.
        """
        body = NewPlace(site=to_site_id(site), floor=floor, x=x, y=y)
        return await self._caller.put(Place, place_path(normalize_device_id(device)), body)

    async def remove_place(self, device: str) -> None:
        """Remove the place of a device."""
        await self._caller.delete(place_path(normalize_device_id(device)))

    def connectivity(self, device: str) -> AsyncGenerator[ConnectivityChange, None]:
        """List the connects and disconnects of a device, the newest first."""
        return self._caller.iterate_items(ConnectivityPage, connectivity_path(normalize_device_id(device)))

    def parents(
        self, device: str, *, since: Moment | None = None, until: Moment | None = None
    ) -> AsyncGenerator[ParentChange, None]:
        """List the changes of the parent of a device in the mesh, the newest first."""
        query = build_query(
            {
                "From": format_optional_time(since, "since"),
                "To": format_optional_time(until, "until"),
            }
        )
        return self._caller.iterate_items(ParentChangePage, parents_path(normalize_device_id(device)), query)

    async def path(self, device: str) -> DevicePath:
        """Get the hops from a device to its gateway, and the parents that the device could have instead."""
        return await self._caller.get(DevicePath, device_way_path(normalize_device_id(device)))

    async def availability(
        self,
        *,
        since: Moment | None = None,
        until: Moment | None = None,
        points: int = DEFAULT_AVAILABILITY_POINTS,
    ) -> Sequence[AvailabilityPoint]:
        """Return how many devices were online in whole hours, by default in the last 24 hours."""
        query = build_query(
            {
                "From": format_optional_time(since),
                "To": format_optional_time(until),
                "Points": str(parse_points(str(points), "points")),
            }
        )
        return (await self._caller.get(Availability, AVAILABILITY_PATH, query)).items

    def connectivity_changes(
        self, since: Moment, until: Moment
    ) -> AsyncGenerator[FleetConnectivityChange, None]:
        """List when devices of the whole fleet connected and disconnected, the newest change first."""
        query = build_query({"From": format_optional_time(since), "To": format_optional_time(until)})
        return self._caller.iterate_items(FleetConnectivityPage, FLEET_CONNECTIVITY_PATH, query)

    async def diagnose(self, device: str) -> Diagnosis:
        """Say what is wrong with a device, if anything, and what to do."""
        return await self._caller.get(Diagnosis, diagnosis_path(normalize_device_id(device)))

    async def position(
        self, device: str, *, at: Moment | None = None, window: int | None = None
    ) -> PositionAnswer:
        """Get the position of a device, or the reason why it is unknown.

        It is computed from the readings in the `window` seconds, 60 by default, before `at`, by default now.
        """
        query = build_query({"At": format_optional_time(at, "at"), "Window": window})
        return await self._caller.get(PositionAnswer, position_path(normalize_device_id(device)), query)

    def positions(
        self, device: str, *, since: Moment | None = None, until: Moment | None = None
    ) -> AsyncGenerator[PastPosition, None]:
        """List the positions of a device over time, the oldest first: those of the last hour by default."""
        times = {
            "From": format_optional_time(since, "since"),
            "To": format_optional_time(until, "until"),
        }
        path = past_positions_path(normalize_device_id(device))
        return self._caller.iterate_items(PastPositionPage, path, build_query(times))

    def gaps(self, device: str) -> AsyncGenerator[SampleGap, None]:
        """List the gaps in the samples of a device, where samples are missing."""
        return self._caller.iterate_items(SampleGapPage, holes_path(normalize_device_id(device)))

    def updates(self, device: str) -> AsyncGenerator[DeviceUpdate, None]:
        """List the updates of a device in unfinished jobs, the newest job first."""
        return self._caller.iterate_items(DeviceUpdatePage, updates_path(normalize_device_id(device)))


def build_device_query(filters: DeviceFilters) -> QueryParams:
    """Build the query parameters of a device filter."""
    check_argument_names(filters, DeviceFilters)
    gateway = filters.get("gateway")
    single = {
        "Connected": filters.get("connected"),
        "ModelNumber": filters.get("model_number"),
        "FirmwareVersion": filters.get("firmware_version"),
        "HardwareVersion": filters.get("hardware_version"),
        "FriendlyName": filters.get("friendly_name"),
        "Gateway": None if gateway is None else normalize_mac(gateway),
    }
    ids = normalize_device_ids(filters.get("ids", ()), "ids")
    return build_query(single, {"Label": to_tuple(filters.get("labels", ())), "Ids": ids})
