"""`fleet.devices`: the list of devices, and each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from meshfleet import rest
from meshfleet.client.arguments import (
    check_argument_names,
    normalize_device_id,
    normalize_device_ids,
    normalize_mac,
    to_tuple,
)
from meshfleet.client.rest.http_caller import iterate_items
from meshfleet.client.rest.http_messages import build_query

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Unpack

    from meshfleet.client.rest.http_caller import HttpCaller
    from meshfleet.client.rest.http_messages import QueryParams
    from meshfleet.rest import (
        ConnectivityChange,
        Device,
        DeviceDetail,
        DeviceUpdate,
        Gateway,
        GatewayClaim,
        Hole,
        Label,
        Summary,
    )


# `fleet.gateways`: claiming gateways, and what becomes of them.


class Gateways:
    """The claimed gateways of a fleet. Each is named by MAC or device id, in either case."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    def list(self) -> AsyncGenerator[Gateway, None]:
        """All gateways, by MAC."""
        return iterate_items(self._caller, rest.GatewayPage, rest.GATEWAYS_PATH)

    async def show(self, gateway: str) -> Gateway:
        """All about a gateway."""
        return await self._caller.get(rest.Gateway, rest.gateway_path(normalize_mac(gateway)))

    async def claim(self, gateway: str, name: str | None = None) -> GatewayClaim:
        """Take a gateway into the fleet, and get its credentials for MQTT, which are told this once."""
        ask = rest.NewGateway(mac=normalize_mac(gateway), friendly_name=name)
        return await self._caller.post(rest.GatewayClaim, rest.GATEWAYS_PATH, ask)

    async def rotate(self, gateway: str) -> GatewayClaim:
        """Give a gateway a new password. The old one holds no longer."""
        return await self._caller.post(rest.GatewayClaim, rest.credentials_path(normalize_mac(gateway)))

    async def release(self, gateway: str) -> None:
        """Give a gateway up. It stays among the devices until it is forgotten there."""
        await self._caller.delete(rest.gateway_path(normalize_mac(gateway)))


# `fleet.labels`: words attached to devices.


class Labels:
    """All labels of a fleet. What is on a device is changed at `fleet.devices`."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    def list(self) -> AsyncGenerator[Label, None]:
        """All labels, each with the number of devices that have it."""
        return iterate_items(self._caller, rest.LabelPage, rest.LABELS_PATH)

    async def add(self, label: str, devices: str | Iterable[str] = ()) -> Label:
        """Add a label, and put it on devices; one that exists stays as it is."""
        ids = tuple(normalize_device_id(each, "devices") for each in to_tuple(devices))
        return await self._caller.post(
            rest.Label, rest.LABELS_PATH, rest.NewLabel(label=label, device_ids=ids)
        )

    async def remove(self, label: str) -> None:
        """Remove a label from everything."""
        await self._caller.delete(rest.label_path(rest.parse_label(label)))


Sort = Literal["id", "-id", "friendlyName", "-friendlyName", "connectivity", "-connectivity"]
"""What decides the order; a `-` in front reverses it."""


class DeviceFilters(TypedDict, total=False):
    """What devices must be, all of it at once; None, and no values, ask for nothing (rest-34 to rest-36)."""

    labels: str | Iterable[str]
    """Has all of these labels."""
    connected: bool | None
    model_number: str | None
    firmware_version: str | None
    hardware_version: str | None
    friendly_name: str | None
    """Part of the name, in any case; fewer than three characters: its beginning."""
    gateway: str | None
    """Is behind this gateway."""
    ids: str | Iterable[str]
    """Is one of these devices."""


class Devices:
    """The devices of a fleet, gateways included. Each is named by MAC or device id, in either case."""

    def __init__(self, caller: HttpCaller) -> None:
        self._caller = caller

    def list(
        self, *, sort: Sort | None = None, live: bool = False, **filters: Unpack[DeviceFilters]
    ) -> AsyncGenerator[Device, None]:
        """Devices that meet all filters; with `live`, and what changes with reports."""
        also = build_query({"Sort": sort, "Include": "live" if live else None})
        return iterate_items(
            self._caller, rest.DevicePage, rest.DEVICES_PATH, _build_filter_query(filters) + also
        )

    async def summary(self, **filters: Unpack[DeviceFilters]) -> Summary:
        """How many devices meet all filters, by model, firmware and label."""
        return await self._caller.get(rest.Summary, rest.SUMMARY_PATH, _build_filter_query(filters))

    async def show(self, device: str) -> DeviceDetail:
        """All about a device."""
        return await self._caller.get(rest.DeviceDetail, rest.device_path(normalize_device_id(device)))

    async def rename(self, device: str, name: str) -> Device:
        """Give a device another name."""
        path = rest.friendly_name_path(normalize_device_id(device))
        return await self._caller.put(rest.Device, path, rest.FriendlyName(name=name))

    async def forget(self, device: str) -> None:
        """Forget a device. Its history stays, and it comes back when it is heard again."""
        await self._caller.delete(rest.device_path(normalize_device_id(device)))

    async def label(self, device: str, label: str) -> Device:
        """Put a label on a device; an unknown label is made."""
        path = rest.device_label_path(normalize_device_id(device), rest.parse_label(label))
        return await self._caller.put(rest.Device, path)

    async def unlabel(self, device: str, label: str) -> Device:
        """Take a label off a device."""
        path = rest.device_label_path(normalize_device_id(device), rest.parse_label(label))
        return self._caller.decode(rest.Device, await self._caller.delete(path))

    def connectivity(self, device: str) -> AsyncGenerator[ConnectivityChange, None]:
        """When a device was connected and when no longer, the newest change first."""
        return iterate_items(
            self._caller, rest.ConnectivityPage, rest.connectivity_path(normalize_device_id(device))
        )

    def holes(self, device: str) -> AsyncGenerator[Hole, None]:
        """Where samples of a device are missing."""
        return iterate_items(self._caller, rest.HolePage, rest.holes_path(normalize_device_id(device)))

    def updates(self, device: str) -> AsyncGenerator[DeviceUpdate, None]:
        """What becomes of a device in jobs that are not over, the newest job first."""
        return iterate_items(
            self._caller, rest.DeviceUpdatePage, rest.updates_path(normalize_device_id(device))
        )


def _build_filter_query(filters: DeviceFilters) -> QueryParams:
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
