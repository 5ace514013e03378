"""Small fleets for tests, and what the list of them must be, worked out in plain Python."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from msgspec import UNSET, Struct

from meshfleet.db.tables import device, label
from meshfleet.protocol.ids import Mac, ModelNumber, Version
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import (
    DeviceFilter,
    DeviceObservation,
    DeviceSort,
    SortOrder,
    normalize_name,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

MACS = [Mac(f"{number:012x}") for number in (0, 1, 0x00A1, 0xBC5729000001, 0xC00000000000, 0xFFFFFFFFFFFF)]
MACS += [Mac(f"{0xC0FFEE000000 + number:012x}") for number in range(20)]
LABELS = ["a", "B", "é", "z/1", "倉庫", "\U0001f600"]
MODELS = [ModelNumber(text) for text in ("0018", "0011", "2011")]
FIRMWARE = [Version.parse(text) for text in ("1.2.3", "1.2.3-beta.4", "1.2.3-beta.5", "2.0.0")]
HARDWARE = [Version.parse(text) for text in ("1.0", "1.2.3")]
LETTERS = 'aAbßẞéE\u0301İ\u0131ΣςǰJ\u030cﬁ"%_\\*^ 会議'
"""Letters whose case, length and spelling are in doubt, and what queries may take for their own."""


class FleetMember(Struct, frozen=True, kw_only=True):
    """A device of a fleet."""

    observation: DeviceObservation
    labels: frozenset[str]


names = st.text(LETTERS, min_size=1, max_size=5)

observations = st.builds(
    DeviceObservation,
    device=st.sampled_from(MACS),
    at=st.integers(1, 5),
    name=st.one_of(st.just(UNSET), names),
    gateway=st.sampled_from(MACS[:3]),
    model=st.sampled_from(MODELS),
    variant=st.sampled_from([0, 1, 4]),
    firmware=st.sampled_from(FIRMWARE),
    hardware=st.sampled_from(HARDWARE),
    connected=st.booleans(),
)

fleets = st.lists(
    st.builds(FleetMember, observation=observations, labels=st.frozensets(st.sampled_from(LABELS))),
    max_size=20,
    unique_by=lambda member: member.observation.device,
)

filters = st.builds(
    DeviceFilter,
    labels=st.lists(st.sampled_from([*LABELS, "unknown", "\0"]), max_size=2).map(tuple),
    connected=st.sampled_from([None, None, True, False]),
    model=st.sampled_from([None, None, *MODELS]),
    firmware=st.sampled_from([None, None, *FIRMWARE]),
    hardware=st.sampled_from([None, None, *HARDWARE]),
    name=st.one_of(st.none(), st.text(LETTERS + "\0", max_size=4)),
    gateway=st.sampled_from([None, None, *MACS[:4]]),
    ids=st.one_of(st.none(), st.lists(st.sampled_from(MACS), max_size=20).map(tuple)),
)

sort_orders = st.builds(SortOrder, sort=st.sampled_from(DeviceSort), reverse=st.booleans())


def store_fleet(connection: Connection, fleet: Sequence[FleetMember]) -> None:
    """Make a fleet all that is known."""
    registry.record_observations(connection, [member.observation for member in fleet])
    registry.attach_labels(
        connection, [(text, member.observation.device) for member in fleet for text in member.labels], at=1
    )


def clear_fleet(connection: Connection) -> None:
    """Forget all devices and labels."""
    for number in connection.scalars(device.select().with_only_columns(device.c.id)).all():
        registry.delete_device(connection, Mac(f"{number:012x}"))
    connection.execute(label.delete())


def expected_name(seen: DeviceObservation) -> str:
    """What a device is called."""
    if seen.name is not UNSET:
        return seen.name
    product = {
        ("0018", 0): "MT MotionSensor 15x",
        ("0018", 1): "MT MotionSensor 15x",
        ("0018", 4): "MT MotionSensor 15x",
        ("0011", 1): "BlueUp SafeX BLE",
        ("0011", 4): "KKM B1",
        ("2011", 0): "MT MeshConnect 2011",
        ("2011", 1): "MT MeshConnect 2011",
        ("2011", 4): "MT MeshConnect 2011",
    }.get((str(seen.model), int(str(seen.variant))), "Device")
    return f"{product} {seen.device[-4:]}"


def matches_filter(member: FleetMember, device_filter: DeviceFilter) -> bool:
    """Whether a device meets a filter."""
    seen = member.observation
    return (
        set(device_filter.labels) <= member.labels
        and device_filter.connected in {None, seen.connected}
        and device_filter.model in {None, seen.model}
        and _has_firmware(member, device_filter.firmware)
        and device_filter.hardware in {None, seen.hardware}
        and _is_called(expected_name(seen), device_filter.name)
        and device_filter.gateway in {None, seen.gateway}
        and (device_filter.ids is None or seen.device in device_filter.ids)
    )


def firmware_of(member: FleetMember) -> Version:
    """What a device of such a fleet always has."""
    firmware = member.observation.firmware
    assert firmware is not UNSET
    return firmware


def _has_firmware(member: FleetMember, wanted: Version | None) -> bool:
    if wanted is None:
        return True
    firmware = firmware_of(member)
    return firmware == wanted if wanted.beta else firmware[:3] == wanted[:3]


def _is_called(name: str, wanted: str | None) -> bool:
    if not wanted:
        return True
    if len(unicodedata.normalize("NFC", wanted)) < 3:
        return normalize_name(name).startswith(normalize_name(wanted))
    return normalize_name(wanted) in normalize_name(name)


def expected_list(fleet: Sequence[FleetMember], device_filter: DeviceFilter, order: SortOrder) -> list[Mac]:
    """The whole list."""
    members = [member.observation for member in fleet if matches_filter(member, device_filter)]
    members.sort(key=lambda seen: _sort_key(seen, order.sort), reverse=order.reverse)
    return [seen.device for seen in members]


def _sort_key(seen: DeviceObservation, sort: DeviceSort) -> tuple[Any, ...]:
    return {
        DeviceSort.ID: (),
        DeviceSort.NAME: (normalize_name(expected_name(seen)),),
        DeviceSort.CONNECTIVITY: (seen.connected, seen.at),
    }[sort] + (seen.device,)
