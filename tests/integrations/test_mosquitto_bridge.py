"""mosquitto as a bridge to and from the embedded broker, with the configuration that the guide recommends."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from queue import Queue
from typing import TYPE_CHECKING, Self

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.protocol.times import format_time
from tests.cli.programs import TEST_TIMEOUT
from tests.eventually import eventually
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import ServerAddress
    from tests.service.embedded_broker.mqtt_accounts import Credentials

pytestmark = pytest.mark.part("integrations")

CONFIG = Path(__file__).parents[2] / "src/meshfleet/deploy/mosquitto/bridge.conf"
OWN, BRIDGED = "02005e000001", "02005e000002"
"""Gateway that connects to Meshfleet, and gateway that connects to mosquitto."""


class PahoClient:
    """MQTT client that keeps the payloads that it receives."""

    def __init__(self, address: ServerAddress, who: Credentials | None, topic_filter: str) -> None:
        self.received: Queue[tuple[str, bytes]] = Queue()
        self._client = Client(CallbackAPIVersion.VERSION2, "" if who is None else who.user)
        if who is not None:
            self._client.username_pw_set(*who)
        self._client.on_message = lambda _, __, message: self.received.put(
            (message.topic, bytes(message.payload))
        )
        self._subscribed: Queue[object] = Queue()
        self._client.on_subscribe = lambda *arguments: self._subscribed.put(arguments)
        self._client.connect(*address)
        self._client.loop_start()
        self._client.subscribe(topic_filter, 1)
        self._subscribed.get(timeout=TEST_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, topic: str, payload: object) -> None:
        """Publish JSON, and wait until the broker has it."""
        self._client.publish(topic, json.dumps(payload), 1).wait_for_publish(TEST_TIMEOUT)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as running:
        yield running


@pytest.fixture
def credentials(service: ServiceProcess) -> dict[str, Credentials]:
    return {mac: service.claim(mac) for mac in (OWN, BRIDGED)}


@pytest.fixture
def mosquitto(
    service: ServiceProcess, credentials: dict[str, Credentials], tmp_path: Path
) -> Iterator[Mosquitto]:
    """Run mosquitto with the recommended configuration, and wait until both bridges are connected."""
    key = service.call("POST", "/api/v1/api-keys", {"name": "bridge", "role": "operator"})["key"]
    address = service.mqtt["mqtt"]
    config = CONFIG.read_text().replace("127.0.0.1:1883", f"{address.host}:{address.port}")
    config = config.replace("GATEWAY-PASSWORD", credentials[BRIDGED].password).replace("API-KEY", key)
    config = config.replace("GATEWAY", BRIDGED)
    with Mosquitto(tmp_path, *config.splitlines()) as running:
        eventually(
            lambda: "meshfleet_mqtt_connections 2.0" in service.call("GET", "/metrics"),
            "that bridges connect",
        )
        yield running


def build_report(value: float) -> dict[str, object]:
    return {"time": format_time(datetime.now(UTC)), "value": value}


def report_topic(gateway: str) -> str:
    return f"mt/gateway/{gateway}/device/{gateway}/property-decoded/temperature"


def test_reports_and_requests_pass_the_bridge_in_both_directions(
    service: ServiceProcess, credentials: dict[str, Credentials], mosquitto: Mosquitto
) -> None:
    requests = f"mt/gateway/{OWN}/request/#"
    with (
        PahoClient(service.mqtt["mqtt"], credentials[OWN], requests) as gateway,
        PahoClient(mosquitto.address, None, "mt/gateway/+/device/#") as user,
    ):
        gateway.publish(report_topic(OWN), build_report(4.25))
        topic, payload = user.received.get(timeout=TEST_TIMEOUT)
        assert (topic, json.loads(payload)["value"]) == (report_topic(OWN), 4.25)
        request = f"mt/gateway/{OWN}/request/{OWN}/read/8800"
        user.publish(request, {"id": "from mosquitto"})
        received = iter(lambda: gateway.received.get(timeout=TEST_TIMEOUT), None)
        assert next(payload for topic, payload in received if topic == request) == b'{"id": "from mosquitto"}'


def test_a_gateway_behind_mosquitto_reports_to_meshfleet(
    service: ServiceProcess, mosquitto: Mosquitto
) -> None:
    with PahoClient(mosquitto.address, None, f"mt/gateway/{BRIDGED}/request/#") as gateway:
        gateway.publish(report_topic(BRIDGED), build_report(21.5))
        path = f"/api/v1/devices/bmac-{BRIDGED}/samples?Identifier=temperature"
        samples = eventually(lambda: service.call("GET", path)["items"], "that the sample is stored")
        assert [sample["value"] for sample in samples] == [21.5]
