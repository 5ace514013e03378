"""The integration in a running service, over mosquitto and over the embedded broker."""

from __future__ import annotations

import json
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from meshfleet.emulator import EmulatorSettings, SimulatedClock, generate_site
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.ids import Mac
from meshfleet.settings.model import HomeAssistantSettings
from meshfleet.testing.background import BackgroundContext
from meshfleet.testing.service import running_service
from tests.cli.programs import PahoListener, open_client
from tests.eventually import eventually
from tests.servers import Mosquitto
from tests.service.homeassistant.discovery_rules import check_device_message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import httpx

    from meshfleet.testing import RunningFleet

GATEWAY: Final = Mac("02005e000001")
DEVICE_COUNT: Final = 3


class HomeAssistantBroker:
    """The broker of Home Assistant: what is retained there, and everything that was published."""

    def __init__(self, mosquitto: Mosquitto, listener: PahoListener) -> None:
        self.mosquitto = mosquitto
        self.publish = listener.publish
        self.messages: list[Any] = []
        self._listener = listener

    def collect(self) -> dict[str, bytes]:
        """Return the newest payload of each topic, and forget nothing."""
        while (message := self._listener.receive_now()) is not None:
            self.messages.append(message)
        return {each.topic: each.payload for each in self.messages}

    def clear(self) -> None:
        """Forget all messages until now."""
        self.collect()
        self.messages.clear()

    def find(self, topic: str) -> bytes:
        """Wait until a message with this topic was published, and return the newest."""
        return eventually(lambda: self.collect().get(topic), f"a message on {topic}")

    def read_state(self, mac: str) -> dict[str, Any]:
        """Return the newest state of a device."""
        state: dict[str, Any] = json.loads(self.find(f"meshfleet/{mac}/state"))
        return state


class Installation:
    """Service with the broker of Home Assistant."""

    def __init__(self, fleet: RunningFleet, broker: HomeAssistantBroker, rest: httpx.Client) -> None:
        self.broker = broker
        self.rest = rest
        self.devices = [mac for gateway in fleet.gateways for mac in gateway.devices]


@contextmanager
def run_installation(folder: Path, **settings: Any) -> Iterator[Installation]:
    """Run mosquitto, and a service with an emulated gateway that publishes there."""
    with Mosquitto(folder) as mosquitto, PahoListener(mosquitto) as listener:
        address = BrokerAddress(host=mosquitto.address.host, port=mosquitto.address.port)
        options = HomeAssistantSettings(broker=address, **settings)
        site = generate_site(GATEWAY, devices=DEVICE_COUNT, seed=3)
        emulated = [(EmulatorSettings(mac=GATEWAY, clean_session=True), site)]
        run = partial(running_service, "", SimulatedClock(0, 60.0), emulated, homeassistant=options)
        with BackgroundContext("service", run) as fleet, open_client(fleet.url, fleet.password) as rest:
            yield Installation(fleet, HomeAssistantBroker(mosquitto, listener), rest)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    with run_installation(tmp_path_factory.mktemp("homeassistant"), commands=True) as running:
        yield running


def get_config_topic(mac: str) -> str:
    return f"homeassistant/device/meshfleet_{mac}/config"


@pytest.mark.rule("homeassistant-1", "homeassistant-2", "homeassistant-5")
def test_devices_are_published_with_state_and_availability(installation: Installation) -> None:
    broker = installation.broker
    for mac in (GATEWAY, *installation.devices):
        assert check_device_message(broker.find(get_config_topic(mac)))["components"]
        assert broker.find(f"meshfleet/{mac}/availability") in {b"online", b"offline"}
    assert broker.find("meshfleet/status") == b"online"
    eventually(lambda: broker.find(f"meshfleet/{GATEWAY}/availability") == b"online", "the gateway")
    mac = installation.devices[0]
    eventually(lambda: "uptime" in broker.read_state(mac), "the first values")
    eventually(lambda: "8101" in json.loads(broker.find(get_config_topic(mac)))["components"], "a new entity")
    assert broker.read_state(GATEWAY)["connectivity"] == "ON"


@pytest.mark.rule("homeassistant-6")
def test_a_birth_of_home_assistant_repeats_everything(installation: Installation) -> None:
    broker = installation.broker
    broker.find(get_config_topic(installation.devices[0]))
    broker.clear()
    broker.publish("homeassistant/status", b"online")
    macs = (GATEWAY, *installation.devices)
    eventually(lambda: {get_config_topic(mac) for mac in macs} <= broker.collect().keys(), "discovery")
    topics = [each.topic for each in broker.messages]
    for mac in macs:
        assert topics.index(f"meshfleet/{mac}/availability") < topics.index("meshfleet/status")
        assert topics.index("meshfleet/status") < topics.index(get_config_topic(mac))


@pytest.mark.rule("homeassistant-7")
def test_a_renamed_device_is_published_again_and_a_forgotten_one_removed(installation: Installation) -> None:
    # A gateway that never connects: a device would report again, and be added again, at any moment.
    broker, rest, mac = installation.broker, installation.rest, "02005e0000aa"
    rest.post("/api/v1/gateways", json={"mac": mac}).raise_for_status()
    assert broker.find(get_config_topic(mac))
    rest.put(f"/api/v1/devices/bmac-{mac}/friendly-name", json={"name": "Freezer"}).raise_for_status()

    def get_name() -> str:
        return str(json.loads(broker.find(get_config_topic(mac)))["device"]["name"])

    eventually(lambda: get_name() == "Freezer", "the new name")
    rest.delete(f"/api/v1/gateways/{mac}").raise_for_status()
    rest.delete(f"/api/v1/devices/bmac-{mac}").raise_for_status()
    eventually(
        lambda: {payload for topic, payload in broker.collect().items() if mac in topic} == {b""},
        "the removal",
    )


@pytest.mark.rule("homeassistant-9", "homeassistant-10")
def test_a_command_is_a_request_of_home_assistant(installation: Installation) -> None:
    broker = installation.broker
    eventually(lambda: "tx-power" in broker.read_state(GATEWAY), "the value to write")
    broker.publish(f"meshfleet/{GATEWAY}/set/tx-power", b"-8")
    eventually(lambda: broker.read_state(GATEWAY)["tx-power"] == -8, "the written value")
    requests = installation.rest.get(f"/api/v1/devices/bmac-{GATEWAY}/requests").json()["items"]
    mine = [each for each in requests if each["by"] == "program: homeassistant"]
    assert [(each["request"]["identifier"], each["request"]["value"]) for each in mine] == [("9802", "f8")]
    audit = installation.rest.get("/api/v1/audit", params={"Actor": "program: homeassistant"}).json()
    assert [(each["action"], each["target"]) for each in audit["items"]] == [
        ("request.write", f"bmac-{GATEWAY}")
    ]


@pytest.mark.rule("homeassistant-10")
def test_a_refused_command_repeats_the_true_state(installation: Installation) -> None:
    broker = installation.broker
    eventually(lambda: "tx-power" in broker.read_state(GATEWAY), "the value to write")
    count = len(installation.rest.get(f"/api/v1/devices/bmac-{GATEWAY}/requests").json()["items"])
    broker.clear()
    broker.publish(f"meshfleet/{GATEWAY}/set/tx-power", b"99")
    assert -40 <= broker.read_state(GATEWAY)["tx-power"] <= 8
    assert len(installation.rest.get(f"/api/v1/devices/bmac-{GATEWAY}/requests").json()["items"]) == count


@pytest.mark.rule("homeassistant-6", "homeassistant-8")
def test_everything_is_published_again_after_the_broker_was_away(tmp_path: Path) -> None:
    with run_installation(tmp_path, form="entity", devices=(("name", "Hall"),)) as running:
        broker = running.broker
        mac = running.devices[0]
        response = running.rest.put(f"/api/v1/devices/bmac-{mac}/friendly-name", json={"name": "Hall 7"})
        assert response.status_code < 300, response.text
        config = f"homeassistant/sensor/meshfleet_{mac}/8101/config"
        assert json.loads(broker.find(config))["device"]["name"] == "Hall 7"
        assert {topic.split("/")[1] for topic in broker.collect() if topic.startswith("meshfleet/0")} == set()
        broker.mosquitto.stop()
        broker.mosquitto.start()  # without persistence: it has lost everything
        with PahoListener(broker.mosquitto) as listener:  # the first one has lost its subscription
            broker = HomeAssistantBroker(broker.mosquitto, listener)
            assert json.loads(broker.find(config))["state_topic"] == f"meshfleet/{mac}/state"
            assert broker.find("meshfleet/status") == b"online"
            eventually(lambda: broker.find(f"meshfleet/{mac}/availability") == b"online", "its connection")
