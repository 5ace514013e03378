"""Changes of devices and commands to them, with a real Home Assistant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.cli.programs import Program
from tests.eventually import eventually
from tests.homeassistant.house import BROKERS, DEVICE, House

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.part("homeassistant"), pytest.mark.parametrize("broker", BROKERS)]

EMULATED: Final = "02005e000002"
COMMANDS: Final = ("--homeassistant-commands", "on")


@pytest.mark.rule("homeassistant-7")
def test_a_renamed_device_has_its_new_name_and_the_same_entities(tmp_path: Path, broker: str) -> None:
    with House(tmp_path, broker) as house:
        house.gateway.report("measurement", "temperature", 4.25)
        house.wait_for_entities("8800")
        before = house.home_assistant.entities().keys()
        house.rename("Cold room 3")

        def is_renamed() -> bool:
            return house.home_assistant.devices()[f"meshfleet_{DEVICE}"].name == "Cold room 3"

        eventually(is_renamed, "the new name")
        assert house.home_assistant.entities().keys() == before
        house.home_assistant.wait_for_state(f"meshfleet_{DEVICE}_8800", "4.25")


@pytest.mark.rule("homeassistant-7")
def test_a_forgotten_device_disappears(tmp_path: Path, broker: str) -> None:
    with House(tmp_path, broker) as house:
        house.gateway.report("measurement", "temperature", 4.25)
        house.wait_for_entities("8800")
        house.service.call("DELETE", f"/api/v1/devices/bmac-{DEVICE}")
        home = house.home_assistant
        start = f"meshfleet_{DEVICE}"
        eventually(lambda: not any(name.startswith(start) for name in home.entities()), "no entities")
        eventually(lambda: start not in home.devices(), "no device")
        assert home.problems() == []


@pytest.mark.rule("homeassistant-7")
def test_a_device_that_leaves_the_filter_while_the_service_is_off_disappears(
    tmp_path: Path, broker: str
) -> None:
    with House(tmp_path, broker) as house:
        house.gateway.report("measurement", "temperature", 4.25)
        house.wait_for_entities("8800")
        house.service.stop()
        house.service.add_options("--homeassistant-devices", "label=Home")
        house.service.start()
        home = house.home_assistant
        eventually(lambda: f"meshfleet_{DEVICE}" not in home.devices(), "no device")


def request(house: House, device: str, operation: str, name: str, **fields: object) -> Any:
    """Send a request to an emulated device, and return the value in the response."""
    body = {"operation": operation, "identifier": name, **fields}
    response = house.service.call("POST", f"/api/v1/devices/bmac-{device}/requests", body)
    assert response["status"] == 0, response
    return response.get("value")


@pytest.mark.rule("homeassistant-9", "homeassistant-10")
def test_the_button_clears_the_alarm_of_an_emulated_device(tmp_path: Path, broker: str) -> None:
    with House(tmp_path, broker, "--homeassistant-commands", "on") as house:
        account = house.service.claim(EMULATED)
        listener = house.service.mqtt["mqtt"]
        url = f"mqtt://{account.user}:{account.password}@{listener.host}:{listener.port}"
        options = ("--mac", EMULATED, "--devices", "4", "--mode", "decoded", "--speed", "20")
        with Program("gateway", "--broker", url, *options):
            home = house.home_assistant

            def find_buttons() -> list[str]:
                return [name for name in home.entities() if name.endswith("_9800-clear")]

            button = eventually(find_buttons, "a button")[0]
            alarm, device = button.removesuffix("-clear"), button.split("_")[1]
            request(house, device, "write-decoded", "alarm", value=True)
            home.wait_for_state(alarm, "on")
            home.call("press", button)
            home.wait_for_state(alarm, "off")
            assert request(house, device, "read-decoded", "alarm") is False
            rows = house.service.call("GET", "/api/v1/audit?Actor=program%3A%20homeassistant")["items"]
            assert [row["target"] for row in rows] == [f"bmac-{device}"], rows


@pytest.mark.rule("homeassistant-9")
def test_a_refused_command_leaves_the_true_state(tmp_path: Path, broker: str) -> None:
    """Use a switch while no device responds: it returns to its position."""
    with House(tmp_path, broker, "--homeassistant-commands", "on") as house:
        house.gateway.report("property", "priority", value=False)
        switch = f"meshfleet_{DEVICE}_9801-switch"
        house.wait_for_entities("9801-switch")
        house.home_assistant.enable([switch])
        house.home_assistant.wait_for_state(switch, "off")
        house.home_assistant.call("turn_on", switch)
        house.home_assistant.wait_for_state(switch, "off")
