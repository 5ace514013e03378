"""A real Home Assistant while a device, a gateway, the service, its broker or itself is away."""

from __future__ import annotations

from contextlib import ExitStack
from signal import SIGKILL, SIGTERM, Signals
from typing import TYPE_CHECKING, Final

import pytest

from tests.eventually import eventually
from tests.homeassistant.house import BROKERS, DEVICE, GATEWAY, House

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.part("homeassistant")

each_broker = pytest.mark.parametrize("broker", BROKERS)

TEMPERATURE: Final = f"meshfleet_{DEVICE}_8800"
CONNECTIVITY: Final = f"meshfleet_{GATEWAY}_connectivity"


def report_temperature(house: House, value: float) -> None:
    """Send a temperature, and wait until Home Assistant shows it."""
    house.gateway.report("measurement", "temperature", value)
    house.wait_for_entities("8800")
    house.home_assistant.wait_for_state(TEMPERATURE, str(value))


@pytest.mark.rule("homeassistant-5")
@each_broker
def test_a_device_is_unavailable_while_its_gateway_is_away(tmp_path: Path, broker: str) -> None:
    with House(tmp_path, broker) as house, ExitStack() as stack:
        report_temperature(house, 4.25)
        home = house.home_assistant
        home.wait_for_state(CONNECTIVITY, "on")
        house.gateway.__exit__()
        home.wait_for_state(TEMPERATURE, "unavailable")
        home.wait_for_state(CONNECTIVITY, "off")
        gateway = stack.enter_context(house.open_gateway())
        gateway.heartbeat()
        home.wait_for_state(TEMPERATURE, "4.25")
        home.wait_for_state(CONNECTIVITY, "on")
        assert home.problems() == []


@pytest.mark.rule("homeassistant-5")
@each_broker
def test_a_silent_device_is_unavailable_until_it_is_heard_again(tmp_path: Path, broker: str) -> None:
    """Takes three minutes: a device counts as silent after three intervals of at least a minute."""
    with House(tmp_path, broker) as house:
        for _ in range(6):
            house.gateway.heartbeat()
        report_temperature(house, 4.25)

        def is_unavailable() -> bool:
            return house.home_assistant.entity(TEMPERATURE).state == "unavailable"

        eventually(is_unavailable, "the silent device", patience=300)
        assert house.home_assistant.entity(CONNECTIVITY).state == "on"
        house.gateway.heartbeat()
        house.home_assistant.wait_for_state(TEMPERATURE, "4.25")


@pytest.mark.rule("homeassistant-5")
@each_broker
@pytest.mark.parametrize("ends", ["killed", "stopped"])
def test_everything_is_unavailable_while_the_service_is_away(tmp_path: Path, broker: str, ends: str) -> None:
    with House(tmp_path, broker) as house:
        report_temperature(house, 4.25)
        home = house.home_assistant
        if ends == "killed":
            house.service.kill()
        else:
            assert house.service.stop()[0] == 0
        home.wait_for_state(TEMPERATURE, "unavailable")
        home.wait_for_state(CONNECTIVITY, "unavailable")
        house.service.start()
        home.wait_for_state(TEMPERATURE, "4.25")
        home.wait_for_state(CONNECTIVITY, "on")
        house.gateway.report("measurement", "temperature", 5.5)
        home.wait_for_state(TEMPERATURE, "5.5")


@pytest.mark.rule("homeassistant-6")
@each_broker
def test_home_assistant_shows_all_values_after_its_restart(tmp_path: Path, broker: str) -> None:
    with House(tmp_path, broker) as house:
        report_temperature(house, 4.25)
        home = house.home_assistant
        for end in (home.stop, home.kill):
            before = home.entities()
            end()
            home.start()
            home.wait_for_state(TEMPERATURE, "4.25")
            after = home.entities()
            assert {name: each.entity_id for name, each in after.items()} == {
                name: each.entity_id for name, each in before.items()
            }
        house.gateway.report("measurement", "temperature", 5.5)
        home.wait_for_state(TEMPERATURE, "5.5")
        assert home.problems() == []


@pytest.mark.rule("homeassistant-6")
@each_broker
def test_values_that_changed_while_home_assistant_was_away_are_shown(tmp_path: Path, broker: str) -> None:
    with House(tmp_path, broker) as house:
        report_temperature(house, 4.25)
        house.home_assistant.stop()
        house.rename("Cellar")
        house.gateway.report("measurement", "temperature", -1.5)
        house.gateway.report("measurement", "humidity", 70)
        house.home_assistant.start()
        house.home_assistant.wait_for_state(TEMPERATURE, "-1.5")
        house.wait_for_entities("8802")
        house.home_assistant.wait_for_state(f"meshfleet_{DEVICE}_8802", "70")
        assert house.home_assistant.devices()[f"meshfleet_{DEVICE}"].name == "Cellar"


@pytest.mark.rule("homeassistant-6")
@pytest.mark.parametrize("ends", [SIGKILL, SIGTERM])
def test_everything_is_back_after_a_restart_of_mosquitto(tmp_path: Path, ends: Signals) -> None:
    """Mosquitto loses all retained messages, because it has no persistence."""
    with House(tmp_path, "mosquitto") as house:
        assert house.mosquitto is not None
        report_temperature(house, 4.25)
        home = house.home_assistant
        house.mosquitto.stop(ends)
        home.wait_for_state(TEMPERATURE, "unavailable")
        house.mosquitto.start()
        home.wait_for_state(TEMPERATURE, "4.25")
        house.gateway.report("measurement", "temperature", 5.5)
        home.wait_for_state(TEMPERATURE, "5.5")
        home.wait_for_state(CONNECTIVITY, "on")
