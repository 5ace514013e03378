"""Bodies of devices, labels and connectivity."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.rest.bodies import DeviceIdText, MacText, RequestBody, ResponseBody, TimeText

# Labels.


class NewLabel(RequestBody, frozen=True, kw_only=True):
    """Label to create, and the devices to attach it to (rest-58, rest-60)."""

    label: str
    device_ids: tuple[str, ...] = ()


class Label(ResponseBody, frozen=True, kw_only=True):
    """Label and the number of devices that have it (rest-61)."""

    label: str
    device_count: int


class LabelPage(ResponseBody, frozen=True, kw_only=True):
    """Page of labels in alphabetical order."""

    items: list[Label]
    next_token: str | None


# History of the connectivity.


class ConnectivityChange(ResponseBody, frozen=True, kw_only=True):
    """Time at which a device connected or disconnected (rest-189)."""

    time: TimeText
    connected: bool
    cause: Literal["heard", "silent", "gateway", "connection"]
    """`heard`: a report arrived. `silent`: no report for too long. `gateway`: its gateway connected or
    disconnected. `connection`: the device is a gateway, and its own connection opened or closed."""
    gateway: MacText | None
    """Gateway through which the device was received."""


class ConnectivityPage(ResponseBody, frozen=True, kw_only=True):
    """Page of connectivity changes, the newest first."""

    items: list[ConnectivityChange]
    next_token: str | None


NumericVersionText = Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+$")]
ModelNumberText = Annotated[str, Meta(pattern="^[0-9A-F]{4}$")]


class Connectivity(ResponseBody, frozen=True, kw_only=True):
    """Whether a device is connected, and the time of the last change."""

    connected: bool
    timestamp: TimeText


class Place(ResponseBody, frozen=True, kw_only=True):
    """Place of a device on a floor of a site, in meters (rest-90)."""

    site: str
    floor: int
    x: float
    y: float


class Live(ResponseBody, frozen=True, kw_only=True):
    """Current state of a device, which changes with its reports (rest-38).

    `gateway`, `parent` and `rssi` belong to one reading: that of the parent with the best signal. Without a
    recent reading `parent` and `rssi` are null, and `gateway` is the one that the device belongs to.
    """

    gateway: MacText | None
    parent: MacText | None
    rssi: int | None
    battery: int | None
    last_report_at: TimeText | None
    updating: bool
    place: Place | None


class Device(ResponseBody, frozen=True, kw_only=True):
    """Device in a list, with these fields in this order (rest-29)."""

    id: DeviceIdText
    friendly_name: str
    model_number: ModelNumberText
    labels: list[str]
    boot_mode: Literal["dfu"] | None
    connectivity: Connectivity
    firmware_version: NumericVersionText
    hardware_version: NumericVersionText
    imei: str | None
    status: int | None
    live: Live | UnsetType = UNSET
    """Present only if it was requested with `Include=live` (rest-38)."""


class DeviceDetail(Device, frozen=True, kw_only=True):
    """Device with all its details (rest-39)."""

    live: Live
    firmware_version_text: str
    product: str | None
    claimed_at: TimeText | None


class DevicePage(ResponseBody, frozen=True, kw_only=True):
    """Page of devices, with the token for the next page; null on the last one (rest-16)."""

    items: list[Device]
    next_token: str | None


class FriendlyName(RequestBody, frozen=True, kw_only=True):
    """New name of a device."""

    name: str


class Share(ResponseBody, frozen=True, kw_only=True):
    """Number of devices that have this value."""

    value: str
    count: int


class Summary(ResponseBody, frozen=True, kw_only=True):
    """Counts of the devices that match a filter (rest-42).

    `exact` is false if the counts are some seconds old: counting a large fleet takes a while.
    """

    total: int
    connected: int
    disconnected: int
    models: list[Share]
    firmware: list[Share]
    labels: list[Share]
    exact: bool
