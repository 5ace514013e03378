"""Data types of the device list (filter, sort order, position) and of device observations."""

from __future__ import annotations

import unicodedata
from enum import StrEnum
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType

from meshfleet.protocol.ids import Mac, ModelNumber, Version

DevicePosition = tuple[int | str | bool, ...]
"""Position in the device list: values of the sort columns of a device, the device id last."""


class DeviceFilter(Struct, frozen=True, kw_only=True):
    """Filter of devices. A device must match all fields; None matches any value (rest-34, rest-35)."""

    labels: tuple[str, ...] = ()
    connected: bool | None = None
    model: ModelNumber | None = None
    firmware: Version | None = None
    hardware: Version | None = None
    name: str | None = None
    gateway: Mac | None = None
    ids: tuple[Mac, ...] | None = None


class DeviceSort(StrEnum):
    """Sort criterion of a device list. Devices with equal values are sorted by id (rest-37)."""

    ID = "id"
    NAME = "friendlyName"
    CONNECTIVITY = "connectivity"
    """Disconnected before connected devices; within each group, the longest in this state first."""


class SortOrder(NamedTuple):
    """Sort criterion and direction of a device list."""

    sort: DeviceSort = DeviceSort.ID
    reverse: bool = False


class DeviceListQuery(Struct, frozen=True, kw_only=True):
    """Filter and sort order of a device list. A page token is valid for one such query."""

    device_filter: DeviceFilter
    order: SortOrder


class DeviceObservation(Struct, frozen=True, kw_only=True, gc=False):
    """New values of a device, for example from a report. A field that is UNSET keeps its stored value."""

    device: Mac
    at: int
    """Unix time of the observation in milliseconds."""
    heard: bool = True
    """Whether the device sent a report, so that `reported_at` changes; False for example for a claim."""
    name: str | UnsetType = UNSET
    """Name to set, unless a user has already named the device."""
    gateway: Mac | UnsetType = UNSET
    model: ModelNumber | UnsetType = UNSET
    variant: int | UnsetType = UNSET
    firmware: Version | UnsetType = UNSET
    hardware: Version | UnsetType = UNSET
    imei: str | UnsetType | None = UNSET
    connected: bool | UnsetType = UNSET
    status: int | UnsetType = UNSET
    boot_mode: str | UnsetType | None = UNSET
    parent: Mac | UnsetType = UNSET
    rssi: int | UnsetType = UNSET
    battery: int | UnsetType = UNSET


def normalize_name(name: str) -> str:
    """Return a name in the form that filters and sorting compare: case-folded, in Unicode normal form."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def format_base_version(version: Version) -> str:
    """Return a version without its beta number, the form in the registry and REST API (rest-49, rest-50)."""
    return f"{version[0]}.{version[1]}.{version[2]}"
