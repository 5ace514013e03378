"""All entities of a device, as a real Home Assistant shows them (homeassistant-4, homeassistant-5)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from tests.eventually import eventually
from tests.homeassistant.house import BROKERS, DEVICE, GATEWAY, House

if TYPE_CHECKING:
    from pathlib import Path

    from tests.homeassistant.home_assistant import Entity

pytestmark = pytest.mark.part("homeassistant")


class Row(NamedTuple):
    """Entity that Home Assistant must show. All values are text; empty means none."""

    object_id: str
    report: str
    """Kind, name and JSON value of the report; empty if the entity shows no report."""
    domain: str
    name: str
    state: str
    device_class: str
    unit: str
    state_class: str
    category: str
    disabled: str


def parse_rows(table: str) -> dict[str, Row]:
    """Parse a table with a row for each entity."""
    rows = [Row(*map(str.strip, line.split("|"))) for line in table.strip().splitlines()]
    return {row.object_id: row for row in rows}


ROWS: Final = parse_rows("""
8800 | measurement temperature 4.25  | sensor | Temperature | 4.25 | temperature | °C | measurement | |
8801 | measurement pressure 1013.25  | sensor | Pressure | 1013.25 | atmospheric_pressure | hPa | measurement | |
8802 | measurement humidity 41.5     | sensor | Humidity | 41.5 | humidity | % | measurement | |
8803 | measurement light-intensity 320 | sensor | Light intensity | 320 | illuminance | lx | measurement | |
8810 | property motion 32            | binary_sensor | Motion | on | motion | | | |
8813 | property total-minutes-in-motion 77 | sensor | Total minutes in motion | 77 | duration | min | total_increasing | | off
9800 | property alarm true           | binary_sensor | Alarm | on | safety | | | |
9809 | property alarm-2 false        | binary_sensor | Alarm 2 | off | safety | | | |
8100 | property battery-level 95     | sensor | Battery level | 95 | battery | % | measurement | diagnostic |
8103 | property vdd 3012             | sensor | Vdd | 3012 | voltage | mV | measurement | diagnostic | off
8101 | property uptime 86400         | sensor | Uptime | 86400 | duration | s | total_increasing | diagnostic | off
8102 | property reset-cause 2        | sensor | Reset cause | watchdog | enum | | | diagnostic | off
8110 | property device-mode "connected" | sensor | Device mode | connected | enum | | | diagnostic | off
8112 |                               | event | Storage mode event | unknown | | | | diagnostic | off
8113 |                               | event | Watchdog reset event | unknown | | | | diagnostic | off
rssi |                               | sensor | Signal strength | -61 | signal_strength | dBm | measurement | diagnostic | off
firmware | property firmware-version "3.4.1" | update | Firmware | off | firmware | | | config |
""")  # noqa: E501 # a table
WITHOUT_COMMANDS: Final = parse_rows("""
9801 | property priority true        | binary_sensor | Priority | on | | | | | off
""")
WITH_COMMANDS: Final = parse_rows("""
9801-switch | property priority true | switch | Priority | on | | | | | off
9802 | property tx-power -8          | number | Tx power | -8.0 | | dBm | | config | off
9803 | property long-button-press-timeout 3000 | number | Long button press timeout | 3000 | | ms | | config | off
9808 | property inactive-to-sleep-delay 60 | number | Inactive to sleep delay | 60 | | s | | config | off
9800-clear |                         | button | Clear alarm | unknown | | | | |
9809-clear |                         | button | Clear alarm 2 | unknown | | | | |
8300 |                               | button | Soft reset | unknown | restart | | | config | off
""")  # noqa: E501 # a table
GATEWAY_ROWS: Final = parse_rows("""
connectivity |                       | binary_sensor | Connectivity | on | connectivity | | | diagnostic |
devices |                            | sensor | Devices | 1 | | devices | measurement | diagnostic |
""")


def describe(entity: Entity, row: Row, *, was_disabled: bool) -> Row:
    """Return the row that an entity is; what it does not tell is taken from the expected row."""
    return Row(
        row.object_id,
        row.report,
        entity.domain,
        entity.name or "",
        entity.state or "",
        entity.device_class or "",
        entity.unit or "",
        entity.capabilities.get("state_class") or "",
        entity.category or "",
        "off" if was_disabled else "",
    )


def check_rows(house: House, device: str, rows: dict[str, Row]) -> None:
    """Enable the entities of a device, and wait until they are exactly these."""
    start = f"meshfleet_{device}_"
    house.wait_for_entities(*rows, device=device)
    home = house.home_assistant
    was_disabled = {name for name in rows if home.entity(start + name).is_disabled}
    home.enable([start + name for name in was_disabled])

    def match() -> bool:
        found = {
            name.removeprefix(start): each for name, each in home.entities().items() if name.startswith(start)
        }
        assert rows.keys() <= found.keys()
        assert {
            name: describe(found[name], row, was_disabled=name in was_disabled) for name, row in rows.items()
        } == rows
        return True

    eventually(match, f"the entities of {device}")


@pytest.mark.parametrize("broker", BROKERS)
@pytest.mark.parametrize("commands", ["off", "on"])
def test_every_entity_has_name_class_unit_category_and_value(
    tmp_path: Path, broker: str, commands: str
) -> None:
    rows = ROWS | (WITH_COMMANDS if commands == "on" else WITHOUT_COMMANDS)
    with House(tmp_path, broker, "--homeassistant-commands", commands) as house:
        house.gateway.report("property", "model-number", 24)
        for row in (ROWS | WITH_COMMANDS).values():
            if row.report:
                kind, name, value = row.report.split()
                house.gateway.report(kind, name, json.loads(value))
        house.gateway.heartbeat()
        house.gateway.send(f"{DEVICE}/rssi", {"parent": GATEWAY, "rssi": -61, "channel": 38, "seq": 1})
        check_rows(house, DEVICE, rows)
        check_rows(house, GATEWAY, GATEWAY_ROWS)
        home = house.home_assistant
        shown = {name for name in home.entities() if name.startswith(f"meshfleet_{DEVICE}_")}
        assert shown == {f"meshfleet_{DEVICE}_{name}" for name in rows}
        if commands == "on":
            limits = home.entity(f"meshfleet_{DEVICE}_9803").capabilities
            assert [limits[name] for name in ("min", "max", "step")] == [100, 25500, 100]
        device = home.devices()[f"meshfleet_{DEVICE}"]
        assert device.connections == [("bluetooth", "CA:5B:DA:18:00:04")]
        assert (device.manufacturer, device.model) == ("Mesh Tech", "MT MotionSensor 15x")
        assert (device.sw_version, device.serial_number) == ("3.4.1", DEVICE)
        assert device.via == [f"meshfleet_{GATEWAY}"]
        assert device.configuration_url == f"{house.service.url}/devices/bmac-{DEVICE}"
        assert home.problems() == []


@pytest.mark.parametrize("broker", BROKERS)
def test_an_unknown_battery_level_has_no_value(tmp_path: Path, broker: str) -> None:
    with House(tmp_path, broker) as house:
        house.gateway.report("property", "battery-level", 255)
        house.wait_for_entities("8100")
        house.home_assistant.wait_for_state(f"meshfleet_{DEVICE}_8100", "unknown")
        house.gateway.report("property", "battery-level", 80)
        house.home_assistant.wait_for_state(f"meshfleet_{DEVICE}_8100", "80")
        assert house.home_assistant.problems() == []


@pytest.mark.parametrize("broker", BROKERS)
def test_an_event_is_shown_when_it_happens(tmp_path: Path, broker: str) -> None:
    with House(tmp_path, broker) as house:
        house.gateway.report("property", "model-number", 24)
        house.wait_for_entities("8113")
        event = f"meshfleet_{DEVICE}_8113"
        house.home_assistant.enable([event])
        house.home_assistant.wait_for_state(event, "unknown")
        house.gateway.send(f"{DEVICE}/event/8113", {"seq": 1, "value": ""})

        def has_happened() -> bool:
            entity = house.home_assistant.entity(event)
            return entity.attributes.get("event_type") == "watchdog-reset"

        eventually(has_happened, "the event")
        assert house.home_assistant.problems() == []
