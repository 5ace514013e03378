"""Bodies about devices."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from meshfleet.rest.bodies import DeviceIdText, MacText, RequestBody, ResponseBody, TimeText

# Bodies about labels.


class NewLabel(RequestBody, frozen=True, kw_only=True):
    """A label for the list of labels, and devices to put it on (rest-58, rest-60)."""

    label: str
    device_ids: tuple[str, ...] = ()


class Label(ResponseBody, frozen=True, kw_only=True):
    """A label, and on how many devices it is (rest-61)."""

    label: str
    device_count: int


class LabelPage(ResponseBody, frozen=True, kw_only=True):
    """Labels, in the order of their letters."""

    items: list[Label]
    next_token: str | None


# Bodies about when devices were connected.


class ConnectivityChange(ResponseBody, frozen=True, kw_only=True):
    """A device was connected from a moment on, or no longer (rest-189)."""

    time: TimeText
    connected: bool
    cause: Literal["heard", "silent", "gateway", "connection"]
    """It was heard; it was not for too long; its gateway came or went; it is a gateway itself, and its own
    connection began or ended."""
    gateway: MacText | None
    """Through which it was heard."""


class ConnectivityPage(ResponseBody, frozen=True, kw_only=True):
    """Changes, the newest first."""

    items: list[ConnectivityChange]
    next_token: str | None


NumericVersionText = Annotated[str, Meta(pattern=r"^\d+\.\d+\.\d+$")]
ModelNumberText = Annotated[str, Meta(pattern="^[0-9A-F]{4}$")]


class Connectivity(ResponseBody, frozen=True, kw_only=True):
    """Whether a device is connected, and since when it is or is not."""

    connected: bool
    timestamp: TimeText


class Place(ResponseBody, frozen=True, kw_only=True):
    """Where a device hangs, in metres (rest-90)."""

    site: str
    floor: int
    x: float
    y: float


class Live(ResponseBody, frozen=True, kw_only=True):
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


class Device(ResponseBody, frozen=True, kw_only=True):
    """A device in a list: these fields, in this order (rest-29)."""

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
    """Only if it was asked for (rest-38)."""


class DeviceDetail(Device, frozen=True, kw_only=True):
    """All that is told of one device (rest-39)."""

    live: Live
    firmware_version_text: str
    product: str | None
    claimed_at: TimeText | None


class DevicePage(ResponseBody, frozen=True, kw_only=True):
    """Devices, and the token for the next page; None on the last one (rest-16)."""

    items: list[Device]
    next_token: str | None


class FriendlyName(RequestBody, frozen=True, kw_only=True):
    """The new name of a device."""

    name: str


class Share(ResponseBody, frozen=True, kw_only=True):
    """How many devices have this value."""

    value: str
    count: int


class Summary(ResponseBody, frozen=True, kw_only=True):
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
