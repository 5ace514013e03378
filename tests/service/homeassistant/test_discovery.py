"""Discovery messages in both forms, against the table of entities and the rules of Home Assistant."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec.structs import replace

from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.protocol.ids import ModelNumber
from meshfleet.service.homeassistant.discovery import DiscoveryOptions, build_messages
from meshfleet.service.homeassistant.entities import DeviceDescription, list_entities
from tests.row_tables import each_row
from tests.service.homeassistant.discovery_rules import (
    check_device_message,
    check_entity_message,
    expand_device_message,
)
from tests.service.homeassistant.fleets import COLD_ROOM, GATEWAY, TOPICS

ALL = frozenset(each.id for each in BUILTIN_CATALOGUE)

# Object id, platform, device class, unit, state class, category, enabled, name. Only with commands: C.
ENTITIES = """
8100 sensor battery % measurement diagnostic on - Battery level
8101 sensor duration s total_increasing diagnostic off - Uptime
8102 sensor enum - - diagnostic off - Reset cause
8103 sensor voltage mV measurement diagnostic off - Vdd
8110 sensor enum - - diagnostic off - Device mode
8112 event - - - diagnostic off - Storage mode event
8113 event - - - diagnostic off - Watchdog reset event
8300 button restart - - config off C Soft reset
8800 sensor temperature °C measurement - on - Temperature
8801 sensor atmospheric_pressure hPa measurement - on - Pressure
8802 sensor humidity % measurement - on - Humidity
8803 sensor illuminance lx measurement - on - Light intensity
8810 binary_sensor motion - - - on - Motion
8813 sensor duration min total_increasing - off - Total minutes in motion
9800 binary_sensor safety - - - on - Alarm
9800-clear button - - - - on C Clear alarm
9801 binary_sensor - - - - off R Priority
9801-switch switch - - - - off C Priority
9802 number - dBm - config off C Tx power
9803 number - ms - config off C Long button press timeout
9808 number - s - config off C Inactive to sleep delay
9809 binary_sensor safety - - - on - Alarm 2
9809-clear button - - - - on C Clear alarm 2
rssi sensor signal_strength dBm measurement diagnostic off - Signal strength
firmware update firmware - - config on - Firmware
""".strip().splitlines()
GATEWAY_ENTITIES = """
firmware           update         firmware      -           -            config     on - Firmware
connectivity       binary_sensor  connectivity  -           -            diagnostic on - Connectivity
devices            sensor         -             devices     measurement  diagnostic on - Devices
reports-per-minute sensor         -             reports/min measurement  diagnostic on - Reports per minute
""".strip().splitlines()


def build(
    device: DeviceDescription, form: str, identifiers: frozenset[str] = ALL, *, with_commands: bool = True
) -> list[tuple[str, bytes]]:
    entities = list_entities(device, identifiers, BUILTIN_CATALOGUE, TOPICS, with_commands=with_commands)
    options = DiscoveryOptions(TOPICS, "https://fleet.example.org", form)
    return [(each.topic, each.payload) for each in build_messages(device, entities, options)]


def list_components(device: DeviceDescription, *args: Any, **options: Any) -> dict[str, dict[str, Any]]:
    ((_, payload),) = build(device, "device", *args, **options)
    components: dict[str, dict[str, Any]] = check_device_message(payload)["components"]
    return components


def to_row(object_id: str, component: dict[str, Any]) -> list[str]:
    keys = ("platform", "device_class", "unit_of_measurement", "state_class", "entity_category")
    is_enabled = component.get("enabled_by_default", True)
    return [object_id, *(component.get(key, "-") for key in keys), "on" if is_enabled else "off"]


@pytest.mark.rule("homeassistant-4")
@each_row("with_commands", [False, True])
def test_the_entities_of_a_device_are_those_of_the_table(*, with_commands: bool) -> None:
    rows = [line.split(maxsplit=8) for line in ENTITIES]
    hidden = "R" if with_commands else "C"
    expected = [(row[:7], row[8]) for row in rows if row[7] != hidden]
    found = list_components(COLD_ROOM, with_commands=with_commands)
    assert [(to_row(name, each), each["name"]) for name, each in found.items()] == expected


@pytest.mark.rule("homeassistant-4")
def test_the_entities_of_a_gateway_are_those_of_the_table() -> None:
    found = list_components(GATEWAY, frozenset(), with_commands=False)
    rows = [line.split(maxsplit=8) for line in GATEWAY_ENTITIES]
    own = {name: each for name, each in found.items() if not name.startswith("8")}
    assert [(to_row(name, each), each["name"]) for name, each in own.items()] == [
        (row[:7], row[8]) for row in rows
    ]
    assert found["connectivity"]["availability"] == [{"topic": "meshfleet/status"}]


@pytest.mark.rule("homeassistant-4")
def test_only_what_a_device_has_reported_is_shown() -> None:
    found = list_components(COLD_ROOM, frozenset({"8800", "8204", "9810"}), with_commands=True)
    assert list(found) == ["8112", "8113", "8300", "8800", "rssi", "firmware"]
    unknown = replace(COLD_ROOM, model=ModelNumber("0000"), product=None, firmware=None)
    assert list(list_components(unknown, frozenset({"8803"}), with_commands=True)) == ["8803", "rssi"]


@pytest.mark.rule("homeassistant-2")
def test_a_device_message_describes_the_device() -> None:
    ((topic, payload),) = build(COLD_ROOM, "device", frozenset({"8800"}))
    message = check_device_message(payload)
    assert topic == "homeassistant/device/meshfleet_ca5bda180004/config"
    assert message["device"] == {
        "identifiers": ["meshfleet_ca5bda180004"],
        "connections": [["bluetooth", "CA:5B:DA:18:00:04"]],
        "name": "Cold room 3",
        "manufacturer": "Mesh Tech",
        "model": "MT MotionSensor 15x",
        "model_id": "0018",
        "sw_version": "3.4.1",
        "hw_version": "1.1",
        "serial_number": "ca5bda180004",
        "suggested_area": "2nd floor",
        "via_device": "meshfleet_02005e000001",
        "configuration_url": "https://fleet.example.org/devices/bmac-ca5bda180004",
    }
    assert message["availability"] == [
        {"topic": "meshfleet/status"},
        {"topic": "meshfleet/ca5bda180004/availability"},
    ]
    assert (message["availability_mode"], message["qos"]) == ("all", 1)
    assert message["state_topic"] == "meshfleet/ca5bda180004/state"
    assert message["components"]["8800"] == {
        "platform": "sensor",
        "unique_id": "meshfleet_ca5bda180004_8800",
        "name": "Temperature",
        "device_class": "temperature",
        "state_class": "measurement",
        "unit_of_measurement": "°C",
        "suggested_display_precision": 1,
        "value_template": "{{ value_json['temperature'] }}",
    }


@pytest.mark.rule("homeassistant-3")
@each_row("device", [COLD_ROOM, GATEWAY, replace(COLD_ROOM, model=ModelNumber("0000"), firmware=None)])
def test_both_forms_say_the_same(device: DeviceDescription) -> None:
    ((_, payload),) = build(device, "device")
    check_device_message(payload)
    messages = build(device, "entity")
    checked = {topic: check_entity_message(topic, payload) for topic, payload in messages}
    assert checked == expand_device_message(payload)


@pytest.mark.rule("homeassistant-4")
def test_details_of_single_entities() -> None:
    found = list_components(COLD_ROOM)
    options = ["power-on", "pin", "watchdog", "software", "cpu-lockup", "other"]
    assert found["8102"]["options"] == options
    assert found["8110"]["options"] == ["dfu", "connected", "storage", "unconnected"]
    number = found["9802"]
    assert (number["min"], number["max"], number["step"]) == (-40, 8, 1)
    assert (found["9803"]["min"], found["9803"]["max"], found["9803"]["step"]) == (100, 25500, 100)
    assert number["command_topic"] == "meshfleet/ca5bda180004/set/tx-power"
    assert found["9800-clear"]["command_topic"] == "meshfleet/ca5bda180004/set/alarm"
    assert found["9800-clear"]["payload_press"] == "OFF"
    assert found["8113"]["event_types"] == ["watchdog-reset"]
    assert found["8113"]["state_topic"] == "meshfleet/ca5bda180004/event/watchdog-reset-event"
    assert found["8100"]["value_template"] == "{{ value_json['battery-level'] }}"


def test_a_discovery_message_is_small() -> None:
    ((_, payload),) = build(COLD_ROOM, "device")
    assert len(payload) < 10_000
    assert json.loads(payload)["origin"]["name"] == "Meshfleet"
