"""MQTT clients of other implementations, and gateways, with the service as a program."""

from __future__ import annotations

import json
import re
import select
import ssl
import subprocess
import sys
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING

import pytest
import trustme

from meshfleet.rest.accounts import Role
from tests.cli.programs import TEST_TIMEOUT, Program
from tests.eventually import eventually
from tests.scenarios.mqtt_clients import (
    BrokerAddress,
    Message,
    MosquittoClient,
    MqttClient,
    MqttJsClient,
    PahoClient,
)
from tests.scenarios.service_process import PASSWORD, ServiceProcess, loopback_options
from tests.service.embedded_broker.mqtt_accounts import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

D = "02005e0000aa"
_numbers = count(1)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def service(directory: Path) -> Iterator[ServiceProcess]:
    """Run a service without TLS."""
    with ServiceProcess(directory, *loopback_options("--mqtt", "--mqtt-ws")) as running:
        yield running


@pytest.fixture(scope="module")
def encrypted(directory: Path) -> Iterator[ServiceProcess]:
    """Run a service with TLS."""
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(directory / "authority.pem")
    for each in certificate.cert_chain_pems:
        each.write_to_path(directory / "cert.pem", append=True)
    certificate.private_key_pem.write_to_path(directory / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    options = [
        "--tls-cert",
        str(directory / "cert.pem"),
        "--tls-key",
        str(directory / "key.pem"),
        "--mqtt",
        "off",
    ]
    data_directory = directory / "secret"
    data_directory.mkdir()
    with ServiceProcess(
        data_directory, *options, *loopback_options("--mqtt-tls", "--mqtt-ws"), trusting=context
    ) as running:
        yield running


IMPLEMENTATIONS: tuple[type[MqttClient], ...] = (PahoClient, MosquittoClient, MqttJsClient)


@pytest.mark.rule("broker-1", "broker-4", "broker-10")
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
def test_clients_of_other_implementations_communicate_through_the_broker(
    request: pytest.FixtureRequest, directory: Path, scheme: str
) -> None:
    """Test every pair of implementations, one as gateway and one as operator, with reports and requests."""
    running: ServiceProcess = request.getfixturevalue(
        "encrypted" if scheme in {"mqtts", "wss"} else "service"
    )
    broker = BrokerAddress(scheme, running.mqtt[scheme], directory / "authority.pem")
    implementations = [
        implementation for implementation in IMPLEMENTATIONS if scheme in implementation.schemes
    ]
    operator_account = running.add_user(f"operator-{scheme}", Role.OPERATOR)
    with ExitStack() as stack:
        gateways: dict[str, MqttClient] = {}
        for gateway_type in implementations:
            claimed = running.claim(f"02005e10{next(_numbers):04x}")
            gateway = gateways[claimed.user] = stack.enter_context(gateway_type(broker, claimed))
            # The service itself sends requests to the gateway, too.
            gateway.subscribe(f"mt/gateway/{claimed.user}/request/{D}/#")
        for operator_type in implementations:
            with operator_type(broker, operator_account) as operator:
                operator.subscribe("mt/gateway/+/device/#")
                for mac, gateway in gateways.items():
                    _exchange_messages(gateway, operator, mac)


def _exchange_messages(gateway: MqttClient, operator: MqttClient, mac: str) -> None:
    for payload in (bytes(range(256)), b"x" * 100_000):
        request = Message(f"mt/gateway/{mac}/request/{D}/write/8000", payload, 1, retain=False)
        operator.publish(request)
        assert gateway.receive() == request
        report = Message(f"mt/gateway/{mac}/device/{D}/property/8000", payload, 1, retain=False)
        gateway.publish(report)
        assert operator.receive() == report


# --- examples/listen.py ---

EXAMPLE = Path(__file__).parents[2] / "examples" / "listen.py"


def test_the_listen_example_prints_reports_and_names_a_refused_filter(
    service: ServiceProcess,
) -> None:
    viewer, claimed = service.add_user("listener", Role.VIEWER), service.claim("02005e300001")
    host, port = service.mqtt["mqtt"]
    command = [sys.executable, str(EXAMPLE), f"mqtt://{viewer.user}:{viewer.password}@{host}:{port}"]
    refused = subprocess.run(
        [*command, "mt/#"], capture_output=True, text=True, check=False, timeout=TEST_TIMEOUT
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "refused the filter mt/#." in refused.stderr
    report = Message(f"mt/gateway/{claimed.user}/device/{D}/property/8000", b"{}", 1, retain=False)
    with (
        PahoClient(BrokerAddress("mqtt", service.mqtt["mqtt"], service.data), claimed) as gateway,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process,
    ):
        assert process.stdout is not None
        output = process.stdout

        def has_printed() -> bool:
            gateway.publish(report)  # repeatedly: a test cannot see when the example has subscribed
            return bool(select.select([output], [], [], 0)[0])

        eventually(has_printed, "a report that the example prints", patience=TEST_TIMEOUT)
        assert output.readline() == f"{report.topic} {{}}\n"
        process.kill()


# --- Life cycle of a gateway ---


@pytest.mark.rule("broker-4", "broker-12", "broker-13", "gateway-45")
def test_an_emulated_gateway_can_be_claimed_reports_and_responds(service: ServiceProcess) -> None:
    claim = service.call("POST", "/api/v1/gateways", {"mac": "02005e200001", "friendlyName": "Depot"})
    mac, broker_claim = claim["mac"], claim["broker"]
    url = f"mqtt://{mac}:{claim['password']}@{broker_claim['host']}:{broker_claim['port']}"
    broker = BrokerAddress("mqtt", service.mqtt["mqtt"], service.data)
    viewer, operator = service.add_user("eva", Role.VIEWER), service.add_user("otto", Role.OPERATOR)
    arguments = ["gateway", "--broker", url, "--mac", mac, "--devices", "3", "--speed", "600", "--json"]
    with MosquittoClient(broker, viewer) as viewer_client, PahoClient(broker, operator) as operator_client:
        viewer_client.subscribe(f"mt/gateway/{mac}/device/#")
        operator_client.subscribe(f"mt/gateway/{mac}/response/#")
        with Program(*arguments) as program:
            assert json.loads(program.read_line())["event"] == "connected"
            devices: set[str] = set()
            while len(devices) < 4:  # including itself
                match = re.fullmatch(rf"mt/gateway/{mac}/device/(\w+)/.*", viewer_client.receive().topic)
                assert match is not None
                devices.add(match[1])
            operator_client.publish(
                Message(f"mt/gateway/{mac}/request/{mac}/apiversion", b'{"id":"7"}', 1, retain=False)
            )
            response = operator_client.receive()
            assert response.topic == f"mt/gateway/{mac}/response/{mac}/apiversion"
            assert json.loads(response.payload)["version"] == "2.4.0"
            assert program.wait_for_exit(SIGTERM)[::2] == (0, "")


@pytest.mark.rule("broker-1", "broker-4", "rest-168")
def test_a_claim_with_tls_can_be_used_by_a_gateway(encrypted: ServiceProcess, directory: Path) -> None:
    claim = encrypted.call("POST", "/api/v1/gateways", {"mac": "02005e200002"})
    mac, (host, port) = claim["mac"], encrypted.mqtt["mqtts"]
    assert claim["broker"] == {"host": host, "port": port, "tls": True}
    url = f"mqtts://{mac}:{claim['password']}@{host}:{port}"
    broker = BrokerAddress("mqtts", encrypted.mqtt["mqtts"], directory / "authority.pem")
    arguments = ["gateway", "--broker", url, "--mac", mac, "--speed", "600", "--json"]
    with PahoClient(broker, Credentials("admin", PASSWORD)) as subscriber:
        subscriber.subscribe(f"mt/gateway/{mac}/device/{mac}/heartbeat")
        with Program(*arguments, "--tls-ca", str(directory / "authority.pem")) as program:
            assert json.loads(program.read_line())["event"] == "connected"
            assert subscriber.receive().topic.endswith("heartbeat")
            assert program.wait_for_exit(SIGTERM)[::2] == (0, "")


@pytest.mark.rule("broker-4", "gateway-46")
def test_a_simulated_fleet_claims_its_gateways_and_reports(service: ServiceProcess) -> None:
    broker = BrokerAddress("mqtt", service.mqtt["mqtt"], service.data)
    arguments = ["simulate", "--service", service.url, "--user", "admin", "--gateways", "3", "--devices", "2"]
    with PahoClient(broker, Credentials("admin", PASSWORD)) as subscriber:
        subscriber.subscribe("mt/gateway/+/device/+/heartbeat")
        with Program(*arguments, "--rate", "100", "--json", MESHFLEET_PASSWORD=PASSWORD) as program:
            gateways: set[str] = set()
            while len(gateways) < 3:
                gateways.add(subscriber.receive().topic.split("/")[2])
            assert program.wait_for_exit(SIGTERM)[0] == 0
    claimed = {item["mac"] for item in service.call("GET", "/api/v1/gateways")["items"]}
    assert gateways <= claimed
