"""Data types of the device list (filter, sort order, position), and observations of devices."""

from __future__ import annotations

import unicodedata
from enum import StrEnum
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType

from meshfleet.protocol.ids import Mac, ModelNumber, Version

DevicePosition = tuple[int | str | bool, ...]
"""Position in the device list: the values of a device's sort columns, the id last."""


class DeviceFilter(Struct, frozen=True, kw_only=True):
    """Filter of devices. A device must meet all conditions; None means any value (rest-34, rest-35)."""

    labels: tuple[str, ...] = ()
    connected: bool | None = None
    model: ModelNumber | None = None
    firmware: Version | None = None
    hardware: Version | None = None
    name: str | None = None
    gateway: Mac | None = None
    ids: tuple[Mac, ...] | None = None


class DeviceSort(StrEnum):
    """Sort criterion of a device list; devices with equal values are ordered by id (rest-37)."""

    ID = "id"
    NAME = "friendlyName"
    CONNECTIVITY = "connectivity"
    """Disconnected devices first; within each group, the longest connected or disconnected first."""


class SortOrder(NamedTuple):
    """Sort criterion and direction of a device list."""

    sort: DeviceSort = DeviceSort.ID
    reverse: bool = False


class DeviceListQuery(Struct, frozen=True, kw_only=True):
    """Filter and order of a device list. A page token is valid only for the same query."""

    device_filter: DeviceFilter
    order: SortOrder


class DeviceObservation(Struct, frozen=True, kw_only=True, gc=False):
    """New values of a device, for example from a report. UNSET fields leave the stored values unchanged."""

    device: Mac
    at: int
    """Time of the observation, in milliseconds since the epoch."""
    heard: bool = True
    """Whether a report of the device arrived, so that `reported_at` changes; False for a claim."""
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
    """Return a name as filters and sorting compare it: case-folded and in Unicode normal form."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def format_base_version(version: Version) -> str:
    """Return a version without its beta number, as it is stored and listed (rest-49, rest-50)."""
    return f"{version[0]}.{version[1]}.{version[2]}"
