"""JSON bodies of the REST API: devices, labels and connectivity."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.rest.bodies import DeviceIdText, MacText, RequestBody, ResponseBody, TimeText

# Labels.


class NewLabel(RequestBody, frozen=True, kw_only=True):
    """Request to create a label and attach it to devices (rest-58, rest-60)."""

    label: str
    device_ids: tuple[str, ...] = ()


class Label(ResponseBody, frozen=True, kw_only=True):
    """Device label, and the number of devices with this label (rest-61)."""

    label: str
    device_count: int


class LabelPage(ResponseBody, frozen=True, kw_only=True):
    """Page of device labels in alphabetical order."""

    items: list[Label]
    next_token: str | None


# History of the connectivity.


class ConnectivityChange(ResponseBody, frozen=True, kw_only=True):
    """Connect or disconnect of a device, with its time and cause (rest-189)."""

    time: TimeText
    connected: bool
    cause: Literal["heard", "silent", "gateway", "connection"]
    """`heard`: a report arrived. `silent`: no report for too long. `gateway`: the device's gateway connected
    or disconnected. `connection`: the device is a gateway that connected or disconnected."""
    gateway: MacText | None
    """Gateway that received the device's reports; None if unknown."""


class ConnectivityPage(ResponseBody, frozen=True, kw_only=True):
    """Page of connects and disconnects of a device, the newest first."""

    items: list[ConnectivityChange]
    next_token: str | None


NumericVersionText = Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+$")]
ModelNumberText = Annotated[str, Meta(pattern="^[0-9A-F]{4}$")]


class Connectivity(ResponseBody, frozen=True, kw_only=True):
    """Whether a device is connected, and since when."""

    connected: bool
    timestamp: TimeText


class Place(ResponseBody, frozen=True, kw_only=True):
    """Position of a device: site, floor, and coordinates in meters (rest-90)."""

    site: str
    floor: int
    x: float
    y: float


class Live(ResponseBody, frozen=True, kw_only=True):
    """Current state of a device, which changes with every report (rest-38).

    `gateway`, `parent` and `rssi` belong to the reading of the parent with the best signal. Without a recent
    reading, `parent` and `rssi` are null, and `gateway` is the gateway to which the device belongs.
    """

    gateway: MacText | None
    parent: MacText | None
    rssi: int | None
    battery: int | None
    last_report_at: TimeText | None
    updating: bool
    place: Place | None


class Device(ResponseBody, frozen=True, kw_only=True):
    """Device in the list of devices. The order of the fields is fixed (rest-29)."""

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
    """Current state of the device; present only if the request has `Include=live` (rest-38)."""


class DeviceDetail(Device, frozen=True, kw_only=True):
    """Device with all fields (rest-39)."""

    live: Live
    firmware_version_text: str
    product: str | None
    claimed_at: TimeText | None


class DevicePage(ResponseBody, frozen=True, kw_only=True):
    """Page of devices, with the token for the next page, which is null on the last page (rest-16)."""

    items: list[Device]
    next_token: str | None


class FriendlyName(RequestBody, frozen=True, kw_only=True):
    """Request to change the friendly name of a device."""

    name: str


class Share(ResponseBody, frozen=True, kw_only=True):
    """Number of devices that have this model, firmware version or label."""

    value: str
    count: int


class Summary(ResponseBody, frozen=True, kw_only=True):
    """Number of devices that match a filter, in total and by state, model, firmware and label (rest-42).

    `exact` is false if the numbers are some seconds old, because counting a large fleet takes a while.
    """

    total: int
    connected: int
    disconnected: int
    models: list[Share]
    firmware: list[Share]
    labels: list[Share]
    exact: bool
