"""What is asked of the list of devices, and what is learned of devices: plain values."""

from __future__ import annotations

import unicodedata
from enum import StrEnum
from typing import NamedTuple

from msgspec import UNSET, Struct, UnsetType

from meshfleet.protocol.ids import Mac, ModelNumber, Version

DevicePosition = tuple[int | str | bool, ...]
"""Where a page ended: the values of the sort columns of its last device, the id at the end."""


class DeviceFilter(Struct, frozen=True, kw_only=True):
    """Which devices are meant; all that is given must hold (rest-34, rest-35)."""

    labels: tuple[str, ...] = ()
    connected: bool | None = None
    model: ModelNumber | None = None
    firmware: Version | None = None
    hardware: Version | None = None
    name: str | None = None
    gateway: Mac | None = None
    ids: tuple[Mac, ...] | None = None


class DeviceSort(StrEnum):
    """By what a list is sorted; the id decides between equals (rest-37)."""

    ID = "id"
    NAME = "friendlyName"
    CONNECTIVITY = "connectivity"
    """Disconnected devices first, and among them those that changed first."""


class SortOrder(NamedTuple):
    """How a list is sorted."""

    sort: DeviceSort = DeviceSort.ID
    reverse: bool = False


class DeviceListQuery(Struct, frozen=True, kw_only=True):
    """All that a list was asked for; the token of a next page belongs to it."""

    device_filter: DeviceFilter
    order: SortOrder


class DeviceObservation(Struct, frozen=True, kw_only=True, gc=False):
    """What is newly known of a device. What is UNSET stays as it is."""

    device: Mac
    at: int
    """When, in milliseconds."""
    heard: bool = True
    """Whether the device itself was heard; not so when it is claimed, or when its silence is noticed."""
    name: str | UnsetType = UNSET
    """A name that somebody gave it; one that it has stays."""
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
    """A name as searches and sorts see it: no case, and one spelling for what looks the same."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())


def format_base_version(version: Version) -> str:
    """A version without its beta, as it is stored and listed (rest-49, rest-50)."""
    return f"{version[0]}.{version[1]}.{version[2]}"
