"""Requests over REST as they are in earnest: a service as a program, and gateways as programs behind it."""

from __future__ import annotations

import json
import re
import time
from contextlib import contextmanager
from signal import SIGTERM
from typing import TYPE_CHECKING, Any, Self

import httpx
import pytest

from meshfleet.protocol.ids import Mac, mac_from_int, mac_to_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest import Role
from tests.cli.programs import TEST_TIMEOUT, Program, broker_url
from tests.eventually import eventually
from tests.scenarios.mqtt_clients import BrokerAddress, Message, PahoClient
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GATEWAY, OLD = Mac("02005e300001"), Mac("02005e300002")
POWER = "tx-power"
KEY, PUBLIC = "5ec2e7c0de" * 4, "9ab11c7e57" * 12


class RequestSender:
    """Sends requests as a program with a key."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        body = {"name": f"desk {time.monotonic_ns()}", "role": Role.OPERATOR}
        key = service.call("POST", "/api/v1/api-keys", body)["key"]
        self.http = httpx.Client(
            base_url=service.url,
            headers={"Authorization": f"Bearer {key}"},
            verify=NO_TRUSTED_AUTHORITIES,
            timeout=TEST_TIMEOUT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def send(self, device: str, operation: str, identifier: str | None = None, **body: Any) -> httpx.Response:
        named = {} if identifier is None else {"identifier": identifier}
        return self.http.post(
            f"/api/v1/devices/bmac-{device}/requests", json={"operation": operation, **named, **body}
        )

    def send_and_decode(self, device: str, operation: str, identifier: str | None = None, **body: Any) -> Any:
        """What is answered to a request that goes well."""
        told = self.send(device, operation, identifier, **body)
        assert told.status_code == 200, told.text
        assert told.json()["status"] == 0, told.text
        return told.json()

    def history(self, device: str) -> list[dict[str, Any]]:
        told: list[dict[str, Any]] = self.http.get(f"/api/v1/devices/bmac-{device}/requests").json()["items"]
        return told


@contextmanager
def emulated(
    service: ServiceProcess, mac: Mac, *given: str, broker: str | None = None
) -> Iterator[list[Mac]]:
    """A gateway as a program, that the service knows by now; gives its devices."""
    if broker is None:
        address, who = service.mqtt["mqtt"], service.claim(mac)
        broker = f"mqtt://{who.user}:{who.password}@{address.host}:{address.port}"
    asked = ["gateway", "--mac", mac, "--devices", "2", "--speed", "60", *given]
    with Program(*asked, "--describe") as describing:
        site = json.loads(describing.wait_for_exit()[1])
    devices = [Mac(each["mac"].lower()) for each in site["devices"]]
    with Program(*asked, "--broker", broker, "--json") as program:
        assert json.loads(program.read_line())["event"] == "connected"
        eventually(lambda: has_version(service, mac))
        eventually(lambda: {*devices} <= list_device_ids(service))
        yield devices
        assert program.wait_for_exit(SIGTERM)[0] == 0


def has_version(service: ServiceProcess, mac: Mac) -> bool:
    items = service.call("GET", "/api/v1/gateways?MaxResults=1000")["items"]
    return any(each["mac"] == mac and each["apiVersion"] for each in items)


def list_device_ids(service: ServiceProcess) -> set[str]:
    items = service.call("GET", "/api/v1/devices?Include=live&MaxResults=1000")["items"]
    return {each["id"].removeprefix("bmac-") for each in items if each["live"]["gateway"]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("service"), *loopback_options("--mqtt")) as running:
        yield running


@pytest.mark.rule("rest-97", "rest-99", "rest-105", "rest-193")
@pytest.mark.parametrize("mode", ["raw", "decoded"])
def test_all_operations_reach_an_emulated_gateway_and_its_devices(service: ServiceProcess, mode: str) -> None:
    mac = mac_from_int(mac_to_int(GATEWAY) + (mode == "raw"))
    with RequestSender(service) as desk, emulated(service, mac, "--mode", mode) as (_, device):
        assert desk.send_and_decode(mac, "apiversion")["version"] == "2.4.0"
        read = desk.send_and_decode(device, "read", "8000", priority=4)
        decoded = desk.send_and_decode(device, "read-decoded", "model-number")
        assert int(read["value"], 16) == decoded["value"]
        for answer in (read, decoded):
            assert answer["gateway"] == mac
            assert answer["choice"]["reason"] in {"strongest", "last-heard"}
            assert {"id", "time", "status", "responseTime", "origin", "route"} <= answer.keys()
        desk.send_and_decode(device, "write", "9802", value="FC")
        assert desk.send_and_decode(device, "read", "9802")["value"] == "fc"
        assert desk.send_and_decode(device, "read-decoded", POWER)["value"] == -4
        desk.send_and_decode(device, "write-decoded", POWER, value=0)
        assert desk.send_and_decode(device, "read", "9802")["value"] == "00"
        for operation, identifier in (("ack", "8800"), ("ack-decoded", "temperature")):
            told = desk.send(device, operation, identifier, time=format_millis(0), type=0)
            assert (told.status_code, told.json()["state"]) == (202, "SENT")
        assert desk.send_and_decode(mac, "read", "8000")["choice"]["reason"] == "itself"
        assert desk.send_and_decode(device, "read", "8000", gateway=mac)["choice"]["reason"] == "asked"
        # What a gateway or a device declines is an answer as well.
        stranger = desk.send(device, "read", "ef10").json()
        assert stranger["status"] != 0
        assert stranger["errorMessage"]
        assert desk.send(device, "apiversion").json()["status"] != 0
        shown = [(each["request"]["operation"], each["state"]) for each in reversed(desk.history(device))]
        assert [operation for operation, _ in shown][:4] == ["read", "read-decoded", "write", "read"]
        assert {state for _, state in shown} == {"DONE"}


@pytest.mark.rule("version-12", "rest-106")
@pytest.mark.parametrize("mode", ["raw", "decoded"])
def test_an_old_gateway_gets_only_what_it_knows(service: ServiceProcess, mode: str) -> None:
    mac = mac_from_int(mac_to_int(OLD) + 2 * (mode == "raw") + 1)
    place = BrokerAddress("mqtt", service.mqtt["mqtt"], service.data)
    with (
        RequestSender(service) as desk,
        emulated(service, mac, "--mode", mode, "--api-version", "1.2.0") as (_, device),
        PahoClient(place, service.add_user(f"looker-{mode}", Role.VIEWER)) as looker,
    ):
        looker.subscribe(f"mt/gateway/{mac}/response/#")
        for operation, identifier, newer in (
            ("write-decoded", "of-theirs", {"value": 0, "ext": {"a": 1}}),
            ("read", "8000", {"extenderId": "C0FFEE0000E1"}),
            ("read-decoded", "model-number", {"accessType": "legacy"}),
            ("write", "9802", {"value": "00", "key": "ff"}),
            ("ack", "8800", {"time": format_millis(0), "type": 0}),
            ("ack-decoded", "temperature", {"time": format_millis(0), "type": 0}),
        ):
            told = desk.send(device, operation, identifier, **newer)
            assert (told.status_code, told.json()["code"]) == (409, "gateway-too-old"), newer
        answer = desk.send_and_decode(device, "read", "8000")
        assert desk.send_and_decode(device, "write", "9802", value="00")["gateway"] == mac
        assert not {"responseTime", "origin", "route"} & answer.keys()
        heard: list[str] = []
        while f"{device}/write/9802" not in heard:
            heard.append(looker.receive().topic.partition("/response/")[2])
        assert f"{device}/read/8000" in heard
        # The service asks by itself too, but reads and the version only.
        assert {each.split("/")[1] for each in heard} <= {"apiversion", "read", "write"}
        assert len([each for each in heard if "/write/" in each]) == 1


@pytest.mark.rule("request-29")
def test_other_clients_on_the_same_topics_are_undisturbed_and_disturb_nobody(service: ServiceProcess) -> None:
    mac = Mac("02005e30000a")
    place, other = (
        BrokerAddress("mqtt", service.mqtt["mqtt"], service.data),
        service.add_user("other", Role.OPERATOR),
    )
    with (
        RequestSender(service) as desk,
        emulated(service, mac) as (_, device),
        PahoClient(place, other) as client,
    ):
        client.subscribe(f"mt/gateway/{mac}/response/{device}/read/8000")
        mine: list[str] = []
        for number in range(20):
            topic = f"mt/gateway/{mac}/request/{device}/read/8000"
            client.publish(Message(topic, json.dumps({"id": f"theirs-{number}"}).encode(), 1, retain=False))
            mine.append(desk.send_and_decode(device, "read", "8000")["id"])
        heard = [json.loads(client.receive().payload) for _ in range(40)]
        assert {each["id"] for each in heard} == {*mine, *(f"theirs-{number}" for number in range(20))}
        assert {each["status"] for each in heard} == {0}
        assert len(set(mine)) == 20
        ids = {each["id"] for each in desk.history(device)}
        assert not any(each.startswith("theirs") for each in ids)


@pytest.mark.rule("request-31", "request-32")
def test_keys_of_a_mesh_are_nowhere_in_the_data_or_the_log(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        with RequestSender(service) as desk, emulated(service, GATEWAY) as (_, device):
            for more in ({}, {"gateway": GATEWAY}):
                told = desk.send(device, "write", "9802", value="00", key=KEY, publicKey=PUBLIC, **more)
                assert told.status_code == 200, told.text
            metrics = service.call("GET", "/metrics")
            told_all = [
                metrics,
                json.dumps(desk.history(device)),
                json.dumps(service.call("GET", "/api/v1/audit")),
            ]
        code, log = service.stop()
        assert code == 0, log
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"request.write" in each for each in files)
    everything = b"\n".join([*files, log.encode(), *(each.encode() for each in told_all)])
    for secret in (KEY, PUBLIC):
        for form in (secret.encode(), secret.upper().encode(), bytes.fromhex(secret)):
            assert form not in everything


@pytest.mark.rule("rest-101", "rest-102", "request-35")
def test_on_another_broker_a_gateway_that_was_heard_is_asked(tmp_path: Path) -> None:
    (tmp_path / "mosquitto").mkdir()
    with (
        Mosquitto(tmp_path / "mosquitto") as elsewhere,
        ServiceProcess(tmp_path, "--broker", broker_url(elsewhere)) as service,
        RequestSender(service) as desk,
    ):
        eventually(service.is_ready)
        silent = Mac("02005e30000f")
        service.claim(silent)
        told = desk.send(silent, "apiversion")
        assert (told.status_code, told.json()["code"]) == (503, "gateway-offline")
        with emulated(service, GATEWAY, broker=broker_url(elsewhere)) as (_, device):
            assert desk.send_and_decode(device, "read", "8000")["gateway"] == GATEWAY
            assert desk.send_and_decode(GATEWAY, "apiversion")["version"] == "2.4.0"
        assert re.search("Traceback", service.stop()[1]) is None
