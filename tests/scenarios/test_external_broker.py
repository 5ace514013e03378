"""The whole service behind mosquitto: from an empty folder to reports that outlive every kill."""

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
    """The setting of an empty database."""
    if database_kind == "sqlite":
        return "sqlite"
    server: str = request.getfixturevalue("postgresql_server")
    return create_database(server, f"outside_{next(_numbers)}")


@pytest.fixture
def mosquitto(tmp_path: Path) -> Mosquitto:
    """With the files that we write, as soon as they are there; it does not run yet."""
    (tmp_path / "mosquitto").mkdir()
    return Mosquitto(tmp_path / "mosquitto", "allow_anonymous false", f"include_dir {tmp_path / 'ours'}")


def configure(folder: Path, service: ServiceProcess, database: str) -> str:
    """Write the files, and tell the address for the service."""
    given = ["--data", str(service.data), "--database", database, "--out", str(folder / "ours")]
    result = run_command("broker-config", "mosquitto", *given)
    assert result.exit_code == 0, result.output
    return (folder / "ours" / "meshfleet.env").read_text().strip().partition("=")[2]


async def report(mosquitto: Mosquitto, who: Credentials, seqs: range) -> None:
    """Let a gateway report measurements; mosquitto has taken them when this returns."""
    host, port = mosquitto.address
    there = BrokerAddress(host=host, port=port, user=who.user, password=who.password)
    now = format_millis(time.time_ns() // 1_000_000)
    async with MqttClient(there, who.user, clean=True, options=FAST_RECONNECT) as gateway:
        topic = f"mt/gateway/{who.user}/device/{D}/measurement-decoded/temperature"
        payloads = [b'{"time":"%s","seq":%d,"value":21.5}' % (now.encode(), seq) for seq in seqs]
        await gateway.publish_all([Publish(topic, payload, 1) for payload in payloads])


def stored(service: ServiceProcess) -> list[int]:
    """The numbers of the samples that the service has of the device."""
    found: dict[str, Any] = service.call("GET", f"/api/v1/devices/{to_device_id(D)}/samples?MaxResults=1000")
    return sorted(each["seq"] for each in found["items"])


def has(service: ServiceProcess, numbers: int) -> bool:
    """Whether a device is known, and that many of its samples."""
    known = service.call("GET", f"/api/v1/devices?Ids={to_device_id(D)}")["items"]
    return bool(known) and len(stored(service)) >= numbers


@pytest.mark.rule("broker-21", "broker-22", "broker-23")
async def test_a_fleet_moves_to_mosquitto_and_survives_kills(
    tmp_path: Path, mosquitto: Mosquitto, database: str
) -> None:
    elsewhere = broker_url(mosquitto)
    with ServiceProcess(tmp_path, "--broker", elsewhere, "--database", database) as first:
        eventually(lambda: not first.is_ready())
        gateway = first.claim(G)
        claim = first.call("POST", f"/api/v1/gateways/{G}/credentials")
        gateway = gateway._replace(password=claim["password"])
        assert claim["broker"] == {"host": "127.0.0.1", "port": mosquitto.address.port, "tls": False}
        address = configure(tmp_path, first, database).replace("127.0.0.1:1883", elsewhere.partition("//")[2])
        with mosquitto:
            code, log = first.stop()
            told = re.findall("has no connection: .*Connection refused", log)
            assert (code, len(told)) == (0, 1)
            with ServiceProcess(tmp_path, "--broker", address, "--database", database) as service:
                eventually(service.is_ready)
                await report(mosquitto, gateway, range(50))
                eventually(lambda: has(service, 50))
                service.kill()
                await report(mosquitto, gateway, range(50, 100))
                service.start()
                await report(mosquitto, gateway, range(100, 150))
                eventually(lambda: has(service, 150))
                assert stored(service) == list(range(150))
                assert service.is_ready()


@pytest.mark.rule("rest-79")
@pytest.mark.parametrize("autoclaim", ["on", "off"])
async def test_a_gateway_that_nobody_claimed_registers_itself_unless_that_is_off(
    tmp_path: Path, autoclaim: str
) -> None:
    with Mosquitto(tmp_path) as open_to_all:
        given = ["--broker", broker_url(open_to_all), "--gateways-autoclaim", autoclaim]
        with ServiceProcess(tmp_path, *given) as service:
            eventually(service.is_ready)
            gateway = service.claim(G)  # and it reports at once
            await report(open_to_all, gateway._replace(user=STRANGER), range(3))
            await report(open_to_all, gateway, range(10, 12))
            eventually(lambda: has(service, 2) and {10, 11} <= set(stored(service)))
            listed = [each["mac"] for each in service.call("GET", "/api/v1/gateways")["items"]]
            is_on = autoclaim == "on"
            assert listed == ([G, STRANGER] if is_on else [G])
            assert stored(service) == ([0, 1, 2, 10, 11] if is_on else [10, 11])


def test_of_two_services_on_one_database_only_one_takes_reports(
    tmp_path: Path, mosquitto: Mosquitto, postgresql_server: str
) -> None:
    address = create_database(postgresql_server, f"outside_{next(_numbers)}")
    given = ["--broker", broker_url(mosquitto), "--database", address]
    with ServiceProcess(tmp_path, *given):
        more = ["--http", "127.0.0.1:0", "--data", str(tmp_path / "other")]
        with Program("serve", *given, *more) as second:
            code, output, errors = second.wait_for_exit()
    assert (code, output) == (1, ""), "it says that it listens before it is refused"
    assert "another Meshfleet service already processes reports" in errors
