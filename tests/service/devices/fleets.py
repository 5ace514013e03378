"""Strategies for small fleets, and the expected device lists, computed in plain Python."""

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
"""Letters with unusual case folding, length or normal form, and characters special to queries."""


class FleetMember(Struct, frozen=True, kw_only=True):
    """Device of a fleet with its labels."""

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
    """Replace all devices and labels by a fleet."""
    registry.record_observations(connection, [member.observation for member in fleet])
    registry.attach_labels(
        connection, [(text, member.observation.device) for member in fleet for text in member.labels], at=1
    )


def clear_fleet(connection: Connection) -> None:
    """Delete all devices and labels."""
    for number in connection.scalars(device.select().with_only_columns(device.c.id)).all():
        registry.delete_device(connection, Mac(f"{number:012x}"))
    connection.execute(label.delete())


def expected_name(observation: DeviceObservation) -> str:
    """Return the expected name of a device."""
    if observation.name is not UNSET:
        return observation.name
    product = {
        ("0018", 0): "MT MotionSensor 15x",
        ("0018", 1): "MT MotionSensor 15x",
        ("0018", 4): "MT MotionSensor 15x",
        ("0011", 1): "BlueUp SafeX BLE",
        ("0011", 4): "KKM B1",
        ("2011", 0): "MT MeshConnect 2011",
        ("2011", 1): "MT MeshConnect 2011",
        ("2011", 4): "MT MeshConnect 2011",
    }.get((str(observation.model), int(str(observation.variant))), "Device")
    return f"{product} {observation.device[-4:]}"


def matches_filter(member: FleetMember, device_filter: DeviceFilter) -> bool:
    """Return whether a device matches a filter."""
    observation = member.observation
    return (
        set(device_filter.labels) <= member.labels
        and device_filter.connected in {None, observation.connected}
        and device_filter.model in {None, observation.model}
        and _has_firmware(member, device_filter.firmware)
        and device_filter.hardware in {None, observation.hardware}
        and _matches_name(expected_name(observation), device_filter.name)
        and device_filter.gateway in {None, observation.gateway}
        and (device_filter.ids is None or observation.device in device_filter.ids)
    )


def firmware_of(member: FleetMember) -> Version:
    """Return the firmware version of a device, which these fleets always have."""
    firmware = member.observation.firmware
    assert firmware is not UNSET
    return firmware


def _has_firmware(member: FleetMember, expected: Version | None) -> bool:
    if expected is None:
        return True
    firmware = firmware_of(member)
    return firmware == expected if expected.beta else firmware[:3] == expected[:3]


def _matches_name(name: str, expected: str | None) -> bool:
    if not expected:
        return True
    if len(unicodedata.normalize("NFC", expected)) < 3:
        return normalize_name(name).startswith(normalize_name(expected))
    return normalize_name(expected) in normalize_name(name)


def expected_list(fleet: Sequence[FleetMember], device_filter: DeviceFilter, order: SortOrder) -> list[Mac]:
    """Return the MACs of the complete list in order."""
    members = [member.observation for member in fleet if matches_filter(member, device_filter)]
    members.sort(key=lambda observation: _sort_key(observation, order.sort), reverse=order.reverse)
    return [observation.device for observation in members]


def _sort_key(observation: DeviceObservation, sort: DeviceSort) -> tuple[Any, ...]:
    return {
        DeviceSort.ID: (),
        DeviceSort.NAME: (normalize_name(expected_name(observation)),),
        DeviceSort.CONNECTIVITY: (observation.connected, observation.at),
    }[sort] + (observation.device,)
