"""Service with mosquitto as its broker: from an empty directory to reports that survive kills."""

from __future__ import annotations

import re
import time
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.mqtt.client import BrokerAddress, MqttClient, Publish
from meshfleet.protocol.ids import Mac, to_device_id
from meshfleet.protocol.times import format_millis
from tests.cli.programs import Program, broker_url, run_command
from tests.databases import create_database
from tests.eventually import eventually
from tests.mqtt.client.proxy import FAST_RECONNECT
from tests.scenarios.service_process import ServiceProcess
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from pathlib import Path

    from tests.service.embedded_broker.mqtt_accounts import Credentials

pytestmark = pytest.mark.anyio

G, STRANGER, D = Mac("02005e000001"), Mac("02005e000002"), Mac("02005e0000aa")
_numbers = count(1)


@pytest.fixture
def database(request: pytest.FixtureRequest, database_kind: str) -> str:
    """Return the `--database` setting of an empty database."""
    if database_kind == "sqlite":
        return "sqlite"
    server: str = request.getfixturevalue("postgresql_server")
    return create_database(server, f"external_{next(_numbers)}")


@pytest.fixture
def mosquitto(tmp_path: Path) -> Mosquitto:
    """Return a stopped broker that will use the files of `meshfleet broker-config`."""
    (tmp_path / "mosquitto").mkdir()
    return Mosquitto(tmp_path / "mosquitto", "allow_anonymous false", f"include_dir {tmp_path / 'ours'}")


def configure(directory: Path, service: ServiceProcess, database: str) -> str:
    """Write the configuration files, and return the broker URL of the service."""
    options = ["--data", str(service.data), "--database", database, "--out", str(directory / "ours")]
    result = run_command("broker-config", "mosquitto", *options)
    assert result.exit_code == 0, result.output
    return (directory / "ours" / "meshfleet.env").read_text().strip().partition("=")[2]


async def report(mosquitto: Mosquitto, credentials: Credentials, seqs: range) -> None:
    """Publish measurements as a gateway, and wait until mosquitto has acknowledged them."""
    host, port = mosquitto.address
    address = BrokerAddress(host=host, port=port, user=credentials.user, password=credentials.password)
    now = format_millis(time.time_ns() // 1_000_000)
    async with MqttClient(address, credentials.user, clean=True, options=FAST_RECONNECT) as gateway:
        topic = f"mt/gateway/{credentials.user}/device/{D}/measurement-decoded/temperature"
        payloads = [b'{"time":"%s","seq":%d,"value":21.5}' % (now.encode(), seq) for seq in seqs]
        await gateway.publish_all([Publish(topic, payload, 1) for payload in payloads])


def list_stored(service: ServiceProcess) -> list[int]:
    """Return the sequence numbers of the stored samples of the device."""
    page: dict[str, Any] = service.call("GET", f"/api/v1/devices/{to_device_id(D)}/samples?MaxResults=1000")
    return sorted(each["seq"] for each in page["items"])


def has_stored(service: ServiceProcess, count: int) -> bool:
    """Return whether the device is registered, and has at least this number of samples."""
    devices = service.call("GET", f"/api/v1/devices?Ids={to_device_id(D)}")["items"]
    return bool(devices) and len(list_stored(service)) >= count


@pytest.mark.rule("broker-21", "broker-22", "broker-23")
async def test_a_fleet_can_be_moved_to_mosquitto_and_survives_kills(
    tmp_path: Path, mosquitto: Mosquitto, database: str
) -> None:
    url = broker_url(mosquitto)
    with ServiceProcess(tmp_path, "--broker", url, "--database", database) as first:
        eventually(lambda: not first.is_ready())
        gateway = first.claim(G)
        claim = first.call("POST", f"/api/v1/gateways/{G}/credentials")
        gateway = gateway._replace(password=claim["password"])
        assert claim["broker"] == {"host": "127.0.0.1", "port": mosquitto.address.port, "tls": False}
        address = configure(tmp_path, first, database).replace("127.0.0.1:1883", url.partition("//")[2])
        with mosquitto:
            code, log = first.stop()
            warnings = re.findall("has no connection: .*Connection refused", log)
            assert (code, len(warnings)) == (0, 1)
            with ServiceProcess(tmp_path, "--broker", address, "--database", database) as service:
                eventually(service.is_ready)
                await report(mosquitto, gateway, range(50))
                eventually(lambda: has_stored(service, 50))
                service.kill()
                await report(mosquitto, gateway, range(50, 100))
                service.start()
                await report(mosquitto, gateway, range(100, 150))
                eventually(lambda: has_stored(service, 150))
                assert list_stored(service) == list(range(150))
                assert service.is_ready()


@pytest.mark.rule("rest-79")
@pytest.mark.parametrize("autoclaim", ["on", "off"])
async def test_an_unclaimed_gateway_registers_itself_unless_autoclaim_is_off(
    tmp_path: Path, autoclaim: str
) -> None:
    with Mosquitto(tmp_path) as mosquitto:
        options = ["--broker", broker_url(mosquitto), "--gateways-autoclaim", autoclaim]
        with ServiceProcess(tmp_path, *options) as service:
            eventually(service.is_ready)
            gateway = service.claim(G)  # needed for its credentials
            await report(mosquitto, gateway._replace(user=STRANGER), range(3))
            await report(mosquitto, gateway, range(10, 12))
            eventually(lambda: has_stored(service, 2) and {10, 11} <= set(list_stored(service)))
            listed = [each["mac"] for each in service.call("GET", "/api/v1/gateways")["items"]]
            is_on = autoclaim == "on"
            assert listed == ([G, STRANGER] if is_on else [G])
            assert list_stored(service) == ([0, 1, 2, 10, 11] if is_on else [10, 11])


def test_only_one_of_two_services_on_one_database_accepts_reports(
    tmp_path: Path, mosquitto: Mosquitto, postgresql_server: str
) -> None:
    address = create_database(postgresql_server, f"external_{next(_numbers)}")
    options = ["--broker", broker_url(mosquitto), "--database", address]
    with ServiceProcess(tmp_path, *options):
        other_options = ["--http", "127.0.0.1:0", "--data", str(tmp_path / "other")]
        with Program("serve", *options, *other_options) as second:
            code, output, errors = second.wait_for_exit()
    assert (code, output) == (1, ""), "it must not report that it is listening"
    assert "another Meshfleet service already processes reports" in errors
