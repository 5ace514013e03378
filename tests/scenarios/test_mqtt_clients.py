"""Clients of other makes, and gateways, with the service as it runs in earnest."""

from __future__ import annotations

import json
import re
import select
import ssl
import subprocess
import sys
from itertools import count
from pathlib import Path
from signal import SIGTERM
from typing import TYPE_CHECKING

import pytest
import trustme

from meshfleet.rest import Role
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
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[ServiceProcess]:
    """Speaks plainly."""
    with ServiceProcess(folder, *loopback_options("--mqtt", "--mqtt-ws")) as running:
        yield running


@pytest.fixture(scope="module")
def encrypted(folder: Path) -> Iterator[ServiceProcess]:
    """Speaks through TLS."""
    authority = trustme.CA()
    mine = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(folder / "authority.pem")
    for each in mine.cert_chain_pems:
        each.write_to_path(folder / "cert.pem", append=True)
    mine.private_key_pem.write_to_path(folder / "key.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    given = ["--tls-cert", str(folder / "cert.pem"), "--tls-key", str(folder / "key.pem"), "--mqtt", "off"]
    secret = folder / "secret"
    secret.mkdir()
    with ServiceProcess(
        secret, *given, *loopback_options("--mqtt-tls", "--mqtt-ws"), trusting=context
    ) as running:
        yield running


MAKES: tuple[type[MqttClient], ...] = (PahoClient, MosquittoClient, MqttJsClient)


@pytest.mark.rule("broker-1", "broker-4", "broker-10")
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
def test_clients_of_other_makes_talk_through_the_broker(
    request: pytest.FixtureRequest, folder: Path, scheme: str
) -> None:
    """Each of them as a gateway and as a person, with each other one: reports one way, requests the other."""
    running: ServiceProcess = request.getfixturevalue(
        "encrypted" if scheme in {"mqtts", "wss"} else "service"
    )
    place = BrokerAddress(scheme, running.mqtt[scheme], folder / "authority.pem")
    makes = [make for make in MAKES if scheme in make.schemes]
    person = running.add_user(f"operator-{scheme}", Role.OPERATOR)
    gateways = [(make, running.claim(f"02005e10{next(_numbers):04x}")) for make in makes]
    for there in makes:
        with there(place, person) as operator:
            operator.subscribe("mt/gateway/+/device/#")
            for here, claimed in gateways:
                with here(place, claimed) as gateway:
                    _talk(gateway, operator, claimed.user)


def _talk(gateway: MqttClient, operator: MqttClient, mac: str) -> None:
    gateway.subscribe(f"mt/gateway/{mac}/request/{D}/#")  # about itself the service asks it too
    for payload in (bytes(range(256)), b"x" * 100_000):
        request = Message(f"mt/gateway/{mac}/request/{D}/write/8000", payload, 1, retain=False)
        operator.publish(request)
        assert gateway.receive() == request
        report = Message(f"mt/gateway/{mac}/device/{D}/property/8000", payload, 1, retain=False)
        gateway.publish(report)
        assert operator.receive() == report


# --- The example that listens ---

LISTEN = Path(__file__).parents[2] / "examples" / "listen.py"


def test_the_example_that_listens_hears_reports_and_names_a_filter_that_is_refused(
    service: ServiceProcess,
) -> None:
    viewer, claimed = service.add_user("listener", Role.VIEWER), service.claim("02005e300001")
    host, port = service.mqtt["mqtt"]
    command = [sys.executable, str(LISTEN), f"mqtt://{viewer.user}:{viewer.password}@{host}:{port}"]
    refused = subprocess.run(
        [*command, "mt/#"], capture_output=True, text=True, check=False, timeout=TEST_TIMEOUT
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "refused the filter mt/#." in refused.stderr
    report = Message(f"mt/gateway/{claimed.user}/device/{D}/property/8000", b"{}", 1, retain=False)
    with (
        PahoClient(BrokerAddress("mqtt", service.mqtt["mqtt"], service.data), claimed) as gateway,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listening,
    ):
        assert listening.stdout is not None
        output = listening.stdout

        def is_heard() -> bool:
            gateway.publish(report)  # again and again: a test does not see when the example has subscribed
            return bool(select.select([output], [], [], 0)[0])

        eventually(is_heard, "a report that the example prints", patience=TEST_TIMEOUT)
        assert output.readline() == f"{report.topic} {{}}\n"
        listening.kill()


# --- A gateway, from its claim to its end ---


@pytest.mark.rule("broker-4", "broker-12", "broker-13", "gateway-45")
def test_an_emulated_gateway_is_claimed_reports_and_answers(service: ServiceProcess) -> None:
    told = service.call("POST", "/api/v1/gateways", {"mac": "02005e200001", "friendlyName": "Depot"})
    mac, broker = told["mac"], told["broker"]
    url = f"mqtt://{mac}:{told['password']}@{broker['host']}:{broker['port']}"
    place = BrokerAddress("mqtt", service.mqtt["mqtt"], service.data)
    viewer, operator = service.add_user("eva", Role.VIEWER), service.add_user("otto", Role.OPERATOR)
    given = ["gateway", "--broker", url, "--mac", mac, "--devices", "3", "--speed", "600", "--json"]
    with MosquittoClient(place, viewer) as looker, PahoClient(place, operator) as worker:
        looker.subscribe(f"mt/gateway/{mac}/device/#")
        worker.subscribe(f"mt/gateway/{mac}/response/#")
        with Program(*given) as program:
            assert json.loads(program.read_line())["event"] == "connected"
            devices: set[str] = set()
            while len(devices) < 4:  # itself among them
                heard = re.fullmatch(rf"mt/gateway/{mac}/device/(\w+)/.*", looker.receive().topic)
                assert heard is not None
                devices.add(heard[1])
            worker.publish(
                Message(f"mt/gateway/{mac}/request/{mac}/apiversion", b'{"id":"7"}', 1, retain=False)
            )
            answer = worker.receive()
            assert answer.topic == f"mt/gateway/{mac}/response/{mac}/apiversion"
            assert json.loads(answer.payload)["version"] == "2.4.0"
            assert program.wait_for_exit(SIGTERM)[::2] == (0, "")


@pytest.mark.rule("broker-1", "broker-4", "rest-168")
def test_a_gateway_is_told_to_come_through_tls_and_does(encrypted: ServiceProcess, folder: Path) -> None:
    told = encrypted.call("POST", "/api/v1/gateways", {"mac": "02005e200002"})
    mac, (host, port) = told["mac"], encrypted.mqtt["mqtts"]
    assert told["broker"] == {"host": host, "port": port, "tls": True}
    url = f"mqtts://{mac}:{told['password']}@{host}:{port}"
    place = BrokerAddress("mqtts", encrypted.mqtt["mqtts"], folder / "authority.pem")
    given = ["gateway", "--broker", url, "--mac", mac, "--speed", "600", "--json"]
    with PahoClient(place, Credentials("admin", PASSWORD)) as looker:
        looker.subscribe(f"mt/gateway/{mac}/device/{mac}/heartbeat")
        with Program(*given, "--tls-ca", str(folder / "authority.pem")) as program:
            assert json.loads(program.read_line())["event"] == "connected"
            assert looker.receive().topic.endswith("heartbeat")
            assert program.wait_for_exit(SIGTERM)[::2] == (0, "")


@pytest.mark.rule("broker-4", "gateway-46")
def test_a_simulated_fleet_claims_its_gateways_and_reports(service: ServiceProcess) -> None:
    place = BrokerAddress("mqtt", service.mqtt["mqtt"], service.data)
    given = ["simulate", "--service", service.url, "--user", "admin", "--gateways", "3", "--devices", "2"]
    with PahoClient(place, Credentials("admin", PASSWORD)) as looker:
        looker.subscribe("mt/gateway/+/device/+/heartbeat")
        with Program(*given, "--rate", "100", "--json", MESHFLEET_PASSWORD=PASSWORD) as program:
            gateways: set[str] = set()
            while len(gateways) < 3:
                gateways.add(looker.receive().topic.split("/")[2])
            assert program.wait_for_exit(SIGTERM)[0] == 0
    claimed = {item["mac"] for item in service.call("GET", "/api/v1/gateways")["items"]}
    assert gateways <= claimed
