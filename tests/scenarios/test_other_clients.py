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

from meshfleet.wire.rest import Role
from tests.cli.outside import PATIENCE, Program
from tests.eventually import eventually
from tests.scenarios.peers import Heard, Js, Mosquitto, Paho, Peer, Place
from tests.scenarios.serving import PASSWORD, Service, loopback
from tests.service.mqtt.house import Credentials

if TYPE_CHECKING:
    from collections.abc import Iterator

D = "02005e0000aa"
_numbers = count(1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """Speaks plainly."""
    with Service(folder, *loopback("--mqtt", "--mqtt-ws")) as running:
        yield running


@pytest.fixture(scope="module")
def encrypted(folder: Path) -> Iterator[Service]:
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
    with Service(secret, *given, *loopback("--mqtt-tls", "--mqtt-ws"), trusting=context) as running:
        yield running


MAKES: tuple[type[Peer], ...] = (Paho, Mosquitto, Js)


@pytest.mark.rule("broker-1", "broker-4", "broker-10")
@pytest.mark.parametrize("scheme", ["mqtt", "mqtts", "ws", "wss"])
def test_clients_of_other_makes_talk_through_the_broker(
    request: pytest.FixtureRequest, folder: Path, scheme: str
) -> None:
    """Each of them as a gateway and as a person, with each other one: reports one way, requests the other."""
    running: Service = request.getfixturevalue("encrypted" if scheme in {"mqtts", "wss"} else "service")
    place = Place(scheme, running.mqtt[scheme], folder / "authority.pem")
    makes = [make for make in MAKES if scheme in make.schemes]
    person = running.person(f"operator-{scheme}", Role.OPERATOR)
    gateways = [(make, running.claim(f"02005e10{next(_numbers):04x}")) for make in makes]
    for there in makes:
        with there(place, person) as operator:
            operator.listen("mt/gateway/+/device/#")
            for here, claimed in gateways:
                with here(place, claimed) as gateway:
                    _talk(gateway, operator, claimed.user)


def _talk(gateway: Peer, operator: Peer, mac: str) -> None:
    gateway.listen(f"mt/gateway/{mac}/request/{D}/#")  # about itself the service asks it too
    for payload in (bytes(range(256)), b"x" * 100_000):
        request = Heard(f"mt/gateway/{mac}/request/{D}/write/8000", payload, 1, retain=False)
        operator.say(request)
        assert gateway.hear() == request
        report = Heard(f"mt/gateway/{mac}/device/{D}/property/8000", payload, 1, retain=False)
        gateway.say(report)
        assert operator.hear() == report


# --- The example that listens ---

LISTEN = Path(__file__).parents[2] / "examples" / "listen.py"


def test_the_example_that_listens_hears_reports_and_names_a_filter_that_is_refused(service: Service) -> None:
    viewer, claimed = service.person("listener", Role.VIEWER), service.claim("02005e300001")
    host, port = service.mqtt["mqtt"]
    command = [sys.executable, str(LISTEN), f"mqtt://{viewer.user}:{viewer.password}@{host}:{port}"]
    refused = subprocess.run(
        [*command, "mt/#"], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "refused the filter mt/#." in refused.stderr
    report = Heard(f"mt/gateway/{claimed.user}/device/{D}/property/8000", b"{}", 1, retain=False)
    with (
        Paho(Place("mqtt", service.mqtt["mqtt"], service.data), claimed) as gateway,
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listening,
    ):
        assert listening.stdout is not None
        output = listening.stdout

        def is_heard() -> bool:
            gateway.say(report)  # again and again: a test does not see when the example has subscribed
            return bool(select.select([output], [], [], 0)[0])

        eventually(is_heard, "a report that the example prints", patience=PATIENCE)
        assert output.readline() == f"{report.topic} {{}}\n"
        listening.kill()


# --- A gateway, from its claim to its end ---


@pytest.mark.rule("broker-4", "broker-12", "broker-13", "gateway-45")
def test_an_emulated_gateway_is_claimed_reports_and_answers(service: Service) -> None:
    told = service.ask("POST", "/api/v1/gateways", {"mac": "02005e200001", "friendlyName": "Depot"})
    mac, broker = told["mac"], told["broker"]
    url = f"mqtt://{mac}:{told['password']}@{broker['host']}:{broker['port']}"
    place = Place("mqtt", service.mqtt["mqtt"], service.data)
    viewer, operator = service.person("eva", Role.VIEWER), service.person("otto", Role.OPERATOR)
    given = ["gateway", "--broker", url, "--mac", mac, "--devices", "3", "--speed", "600", "--json"]
    with Mosquitto(place, viewer) as looker, Paho(place, operator) as worker:
        looker.listen(f"mt/gateway/{mac}/device/#")
        worker.listen(f"mt/gateway/{mac}/response/#")
        with Program(*given) as program:
            assert json.loads(program.line())["event"] == "connected"
            devices: set[str] = set()
            while len(devices) < 4:  # itself among them
                heard = re.fullmatch(rf"mt/gateway/{mac}/device/(\w+)/.*", looker.hear().topic)
                assert heard is not None
                devices.add(heard[1])
            worker.say(Heard(f"mt/gateway/{mac}/request/{mac}/apiversion", b'{"id":"7"}', 1, retain=False))
            answer = worker.hear()
            assert answer.topic == f"mt/gateway/{mac}/response/{mac}/apiversion"
            assert json.loads(answer.payload)["version"] == "2.4.0"
            assert program.end(SIGTERM)[::2] == (0, "")


@pytest.mark.rule("broker-1", "broker-4", "rest-168")
def test_a_gateway_is_told_to_come_through_tls_and_does(encrypted: Service, folder: Path) -> None:
    told = encrypted.ask("POST", "/api/v1/gateways", {"mac": "02005e200002"})
    mac, (host, port) = told["mac"], encrypted.mqtt["mqtts"]
    assert told["broker"] == {"host": host, "port": port, "tls": True}
    url = f"mqtts://{mac}:{told['password']}@{host}:{port}"
    place = Place("mqtts", encrypted.mqtt["mqtts"], folder / "authority.pem")
    given = ["gateway", "--broker", url, "--mac", mac, "--speed", "600", "--json"]
    with Paho(place, Credentials("admin", PASSWORD)) as looker:
        looker.listen(f"mt/gateway/{mac}/device/{mac}/heartbeat")
        with Program(*given, "--tls-ca", str(folder / "authority.pem")) as program:
            assert json.loads(program.line())["event"] == "connected"
            assert looker.hear().topic.endswith("heartbeat")
            assert program.end(SIGTERM)[::2] == (0, "")


@pytest.mark.rule("broker-4", "gateway-46")
def test_a_simulated_fleet_claims_its_gateways_and_reports(service: Service) -> None:
    place = Place("mqtt", service.mqtt["mqtt"], service.data)
    given = ["simulate", "--service", service.url, "--user", "admin", "--gateways", "3", "--devices", "2"]
    with Paho(place, Credentials("admin", PASSWORD)) as looker:
        looker.listen("mt/gateway/+/device/+/heartbeat")
        with Program(*given, "--rate", "100", "--json", MESHFLEET_PASSWORD=PASSWORD) as program:
            gateways: set[str] = set()
            while len(gateways) < 3:
                gateways.add(looker.hear().topic.split("/")[2])
            assert program.end(SIGTERM)[0] == 0
    claimed = {item["mac"] for item in service.ask("GET", "/api/v1/gateways")["items"]}
    assert gateways <= claimed
