"""Bodies about devices."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.wire.rest.bodies import Ask, Body, DeviceIdText, MacText, TimeText

ThreeParts = Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+$")]
ModelText = Annotated[str, Meta(pattern="^[0-9A-F]{4}$")]


class Connectivity(Body, frozen=True, kw_only=True):
    """Whether a device is connected, and since when it is or is not."""

    connected: bool
    timestamp: TimeText


class Place(Body, frozen=True, kw_only=True):
    """Where a device hangs, in metres (rest-90)."""

    site: str
    floor: int
    x: float
    y: float


class Live(Body, frozen=True, kw_only=True):
    """What changes with every report (rest-38).

    `gateway`, `parent` and `rssi` are of one reading: of the parent that hears the device best. Without a
    reading that counts `parent` and `rssi` are null, and `gateway` is the one to which the device belongs.
    """

    gateway: MacText | None
    parent: MacText | None
    rssi: int | None
    battery: int | None
    last_report_at: TimeText | None
    updating: bool
    place: Place | None


class Device(Body, frozen=True, kw_only=True):
    """A device in a list: these fields, in this order (rest-29)."""

    id: DeviceIdText
    friendly_name: str
    model_number: ModelText
    labels: list[str]
    boot_mode: Literal["dfu"] | None
    connectivity: Connectivity
    firmware_version: ThreeParts
    hardware_version: ThreeParts
    imei: str | None
    status: int | None
    live: Live | UnsetType = UNSET
    """Only if it was asked for (rest-38)."""


class DeviceDetail(Device, frozen=True, kw_only=True):
    """All that is told of one device (rest-39)."""

    live: Live
    firmware_version_text: str
    product: str | None
    claimed_at: TimeText | None


class DevicePage(Body, frozen=True, kw_only=True):
    """Devices, and the token for the next page; None on the last one (rest-16)."""

    items: list[Device]
    next_token: str | None


class FriendlyName(Ask, frozen=True, kw_only=True):
    """The new name of a device."""

    name: str


class Share(Body, frozen=True, kw_only=True):
    """How many devices have this value."""

    value: str
    count: int


class Summary(Body, frozen=True, kw_only=True):
    """The devices that a filter selects, counted (rest-42).

    `exact` is false when the figures are some seconds old: counting a large fleet takes a while.
    """

    total: int
    connected: int
    disconnected: int
    models: list[Share]
    firmware: list[Share]
    labels: list[Share]
    exact: bool
