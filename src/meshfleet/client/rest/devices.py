"""`fleet.devices`: the list of devices, and each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict

from meshfleet.client.names import check_names, id_of, ids_of, mac_of, several
from meshfleet.client.rest.calls import query
from meshfleet.client.rest.pages import walk
from meshfleet.wire import rest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable
    from typing import Unpack

    from meshfleet.client.rest.calls import Query
    from meshfleet.client.rest.desk import Desk
    from meshfleet.wire.rest import ConnectivityChange, Device, DeviceDetail, DeviceUpdate, Hole, Summary

Sort = Literal["id", "-id", "friendlyName", "-friendlyName", "connectivity", "-connectivity"]
"""What decides the order; a `-` in front reverses it."""


class Filters(TypedDict, total=False):
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

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def list(
        self, *, sort: Sort | None = None, live: bool = False, **filters: Unpack[Filters]
    ) -> AsyncGenerator[Device, None]:
        """Devices that meet all filters; with `live`, and what changes with reports."""
        also = query({"Sort": sort, "Include": "live" if live else None})
        return walk(self._desk, rest.DevicePage, rest.DEVICES, _chosen(filters) + also)

    async def summary(self, **filters: Unpack[Filters]) -> Summary:
        """How many devices meet all filters, by model, firmware and label."""
        return await self._desk.get(rest.Summary, rest.SUMMARY, _chosen(filters))

    async def show(self, device: str) -> DeviceDetail:
        """All about a device."""
        return await self._desk.get(rest.DeviceDetail, rest.device_path(id_of(device)))

    async def rename(self, device: str, name: str) -> Device:
        """Give a device another name."""
        path = rest.friendly_name_path(id_of(device))
        return await self._desk.put(rest.Device, path, rest.FriendlyName(name=name))

    async def forget(self, device: str) -> None:
        """Forget a device. Its history stays, and it comes back when it is heard again."""
        await self._desk.delete(rest.device_path(id_of(device)))

    async def label(self, device: str, label: str) -> Device:
        """Put a label on a device; an unknown label is made."""
        path = rest.device_label_path(id_of(device), rest.parse_label(label))
        return await self._desk.put(rest.Device, path)

    async def unlabel(self, device: str, label: str) -> Device:
        """Take a label off a device."""
        path = rest.device_label_path(id_of(device), rest.parse_label(label))
        return self._desk.read(rest.Device, await self._desk.delete(path))

    def connectivity(self, device: str) -> AsyncGenerator[ConnectivityChange, None]:
        """When a device was connected and when no longer, the newest change first."""
        return walk(self._desk, rest.ConnectivityPage, rest.connectivity_path(id_of(device)))

    def holes(self, device: str) -> AsyncGenerator[Hole, None]:
        """Where samples of a device are missing."""
        return walk(self._desk, rest.HolePage, rest.holes_path(id_of(device)))

    def updates(self, device: str) -> AsyncGenerator[DeviceUpdate, None]:
        """What becomes of a device in jobs that are not over, the newest job first."""
        return walk(self._desk, rest.DeviceUpdatePage, rest.updates_path(id_of(device)))


def _chosen(filters: Filters) -> Query:
    check_names(filters, Filters)
    gateway = filters.get("gateway")
    single = {
        "Connected": filters.get("connected"),
        "ModelNumber": filters.get("model_number"),
        "FirmwareVersion": filters.get("firmware_version"),
        "HardwareVersion": filters.get("hardware_version"),
        "FriendlyName": filters.get("friendly_name"),
        "Gateway": None if gateway is None else mac_of(gateway),
    }
    ids = ids_of(filters.get("ids", ()), "ids")
    return query(single, {"Label": several(filters.get("labels", ())), "Ids": ids})
