"""Devices for tests of the integration with Home Assistant."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from meshfleet.db.samples.sample import NO_SEQ, SampleExtras, SampleKind, SampleRow
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Mac, ModelNumber, mac_to_int
from meshfleet.service.homeassistant.discovery import DiscoveryOptions
from meshfleet.service.homeassistant.entities import DeviceDescription
from meshfleet.service.homeassistant.fleet import FleetDevice
from meshfleet.service.homeassistant.plan import PublicationPlan
from meshfleet.service.homeassistant.state import DeviceFigures, ShownIdentifiers
from meshfleet.service.homeassistant.topics import IntegrationTopics

TOPICS = IntegrationTopics("homeassistant", "meshfleet")
SHOWN = ShownIdentifiers(BUILTIN_CATALOGUE)

COLD_ROOM = DeviceDescription(
    mac=Mac("ca5bda180004"),
    name="Cold room 3",
    model=ModelNumber("0018"),
    product="MT MotionSensor 15x",
    firmware="3.4.1",
    hardware="1.1",
    area="2nd floor",
    via=Mac("02005e000001"),
    is_gateway=False,
)
GATEWAY = DeviceDescription(
    mac=Mac("02005e000001"),
    name="Hall",
    model=ModelNumber("2011"),
    product="MT MeshConnect 2011",
    firmware="2.6.0",
    hardware=None,
    area=None,
    via=None,
    is_gateway=True,
)
FIGURES = DeviceFigures(connected=True, rssi=-61, latest_firmware="3.5.0")


def build_device(description: DeviceDescription = COLD_ROOM, **figures: Any) -> FleetDevice:
    """Build a device of the registry; `figures` replace those of `FIGURES`."""
    if description.is_gateway:
        figures = {"device_count": 12, "report_rate": 340, **figures}
    return FleetDevice(description, replace(FIGURES, **figures))


def to_number(description: DeviceDescription = COLD_ROOM) -> int:
    """Return the number of a device."""
    return mac_to_int(description.mac)


def build_row(  # noqa: PLR0913 # fields of a sample
    name: str,
    value: float | None,
    time: int = 1000,
    kind: SampleKind = SampleKind.PROPERTY,
    *,
    raw: bytes | None = None,
    extras: SampleExtras | None = None,
) -> SampleRow:
    """Build a stored sample of an identifier."""
    number = identifier_to_int(BUILTIN_CATALOGUE[name].id)
    return (time, kind, number, NO_SEQ, to_number(GATEWAY), value, raw, extras)


def build_plan(form: str = "device", *, with_commands: bool = False) -> PublicationPlan:
    """Build a plan without devices."""
    options = DiscoveryOptions(TOPICS, "https://fleet.example.org", form)
    return PublicationPlan(options, SHOWN, with_commands=with_commands)


def take_all(plan: PublicationPlan) -> list[tuple[str, bytes]]:
    """Return topic and payload of everything that is due."""
    messages = [*plan.take_queued(10**6), *plan.take_states()]
    assert all(each.retain and each.qos == 1 for each in messages)
    return [(each.topic, each.payload) for each in messages]


def build_published_plan(form: str = "device", *, with_commands: bool = False) -> PublicationPlan:
    """Build a plan that has published a gateway and a device with a temperature."""
    plan = build_plan(form, with_commands=with_commands)
    fleet = {to_number(GATEWAY): build_device(GATEWAY), to_number(): build_device()}
    for number in plan.update_fleet(fleet, 0):
        plan.add_history(number, [build_row("temperature", 4.25)] if number == to_number() else [])
    take_all(plan)
    return plan
