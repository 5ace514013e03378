"""Small fleets for tests, and what the list of them must be, worked out in plain Python."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from msgspec import UNSET, Struct

from meshfleet.db.tables import device, label
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import Filter, Order, Sighting, Sort, name_key
from meshfleet.wire.ids import Mac, ModelNumber, Version

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


class Member(Struct, frozen=True, kw_only=True):
    """A device of a fleet."""

    sighting: Sighting
    labels: frozenset[str]


names = st.text(LETTERS, min_size=1, max_size=5)

sightings = st.builds(
    Sighting,
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
    st.builds(Member, sighting=sightings, labels=st.frozensets(st.sampled_from(LABELS))),
    max_size=20,
    unique_by=lambda member: member.sighting.device,
)

filters = st.builds(
    Filter,
    labels=st.lists(st.sampled_from([*LABELS, "unknown", "\0"]), max_size=2).map(tuple),
    connected=st.sampled_from([None, None, True, False]),
    model=st.sampled_from([None, None, *MODELS]),
    firmware=st.sampled_from([None, None, *FIRMWARE]),
    hardware=st.sampled_from([None, None, *HARDWARE]),
    name=st.one_of(st.none(), st.text(LETTERS + "\0", max_size=4)),
    gateway=st.sampled_from([None, None, *MACS[:4]]),
    ids=st.one_of(st.none(), st.lists(st.sampled_from(MACS), max_size=20).map(tuple)),
)

orders = st.builds(Order, sort=st.sampled_from(Sort), reverse=st.booleans())


def store(connection: Connection, fleet: Sequence[Member]) -> None:
    """Make a fleet all that is known."""
    registry.observe(connection, [member.sighting for member in fleet])
    registry.attach(
        connection, [(text, member.sighting.device) for member in fleet for text in member.labels], at=1
    )


def clear(connection: Connection) -> None:
    """Forget all devices and labels."""
    for number in connection.scalars(device.select().with_only_columns(device.c.id)).all():
        registry.forget(connection, Mac(f"{number:012x}"))
    connection.execute(label.delete())


def name_of(seen: Sighting) -> str:
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


def is_chosen(member: Member, chosen: Filter) -> bool:
    """Whether a device meets a filter."""
    seen = member.sighting
    return (
        set(chosen.labels) <= member.labels
        and chosen.connected in {None, seen.connected}
        and chosen.model in {None, seen.model}
        and _has_firmware(member, chosen.firmware)
        and chosen.hardware in {None, seen.hardware}
        and _is_called(name_of(seen), chosen.name)
        and chosen.gateway in {None, seen.gateway}
        and (chosen.ids is None or seen.device in chosen.ids)
    )


def firmware_of(member: Member) -> Version:
    """What a device of such a fleet always has."""
    firmware = member.sighting.firmware
    assert firmware is not UNSET
    return firmware


def _has_firmware(member: Member, wanted: Version | None) -> bool:
    if wanted is None:
        return True
    firmware = firmware_of(member)
    return firmware == wanted if wanted.beta else firmware[:3] == wanted[:3]


def _is_called(name: str, wanted: str | None) -> bool:
    if not wanted:
        return True
    if len(unicodedata.normalize("NFC", wanted)) < 3:
        return name_key(name).startswith(name_key(wanted))
    return name_key(wanted) in name_key(name)


def listed(fleet: Sequence[Member], chosen: Filter, order: Order) -> list[Mac]:
    """The whole list."""
    members = [member.sighting for member in fleet if is_chosen(member, chosen)]
    members.sort(key=lambda seen: _sort_key(seen, order.sort), reverse=order.reverse)
    return [seen.device for seen in members]


def _sort_key(seen: Sighting, sort: Sort) -> tuple[Any, ...]:
    return {
        Sort.ID: (),
        Sort.NAME: (name_key(name_of(seen)),),
        Sort.CONNECTIVITY: (seen.connected, seen.at),
    }[sort] + (seen.device,)
