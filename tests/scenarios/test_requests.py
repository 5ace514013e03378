"""Requests over REST, with the service and gateways as separate programs."""

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
from meshfleet.rest.accounts import Role
from tests.cli.programs import TEST_TIMEOUT, Program, broker_url
from tests.eventually import eventually
from tests.scenarios.mqtt_clients import BrokerAddress, Message, PahoClient
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GATEWAY, OLD_GATEWAY = Mac("02005e300001"), Mac("02005e300002")
TX_POWER = "tx-power"
KEY, PUBLIC_KEY = "5ec2e7c0de" * 4, "9ab11c7e57" * 12


class RequestSender:
    """Client that sends requests with an API key."""

    def __init__(self, service: ServiceProcess) -> None:
        self._service = service
        body = {"name": f"sender {time.monotonic_ns()}", "role": Role.OPERATOR}
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
        identifier_field = {} if identifier is None else {"identifier": identifier}
        return self.http.post(
            f"/api/v1/devices/bmac-{device}/requests",
            json={"operation": operation, **identifier_field, **body},
        )

    def send_and_decode(self, device: str, operation: str, identifier: str | None = None, **body: Any) -> Any:
        """Send a request that must succeed, and return its response."""
        response = self.send(device, operation, identifier, **body)
        assert response.status_code == 200, response.text
        assert response.json()["status"] == 0, response.text
        return response.json()

    def history(self, device: str) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = self.http.get(f"/api/v1/devices/bmac-{device}/requests").json()["items"]
        return items


@contextmanager
def run_gateway(
    service: ServiceProcess, mac: Mac, *options: str, broker: str | None = None
) -> Iterator[list[Mac]]:
    """Run a gateway as a program, and wait until the service knows its version. Yield its devices."""
    if broker is None:
        address, credentials = service.mqtt["mqtt"], service.claim(mac)
        broker = f"mqtt://{credentials.user}:{credentials.password}@{address.host}:{address.port}"
    arguments = ["gateway", "--mac", mac, "--devices", "2", "--speed", "60", *options]
    with Program(*arguments, "--describe") as describing:
        site = json.loads(describing.wait_for_exit()[1])
    devices = [Mac(each["mac"].lower()) for each in site["devices"]]
    with Program(*arguments, "--broker", broker, "--json") as program:
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
    with RequestSender(service) as sender, run_gateway(service, mac, "--mode", mode) as (_, device):
        assert sender.send_and_decode(mac, "apiversion")["version"] == "2.4.0"
        read = sender.send_and_decode(device, "read", "8000", priority=4)
        decoded = sender.send_and_decode(device, "read-decoded", "model-number")
        assert int(read["value"], 16) == decoded["value"]
        for response in (read, decoded):
            assert response["gateway"] == mac
            assert response["choice"]["reason"] in {"strongest", "last-heard"}
            assert {"id", "time", "status", "responseTime", "origin", "route"} <= response.keys()
        sender.send_and_decode(device, "write", "9802", value="FC")
        assert sender.send_and_decode(device, "read", "9802")["value"] == "fc"
        assert sender.send_and_decode(device, "read-decoded", TX_POWER)["value"] == -4
        sender.send_and_decode(device, "write-decoded", TX_POWER, value=0)
        assert sender.send_and_decode(device, "read", "9802")["value"] == "00"
        for operation, identifier in (("ack", "8800"), ("ack-decoded", "temperature")):
            response = sender.send(device, operation, identifier, time=format_millis(0), type=0)
            assert (response.status_code, response.json()["state"]) == (202, "SENT")
        assert sender.send_and_decode(mac, "read", "8000")["choice"]["reason"] == "itself"
        assert sender.send_and_decode(device, "read", "8000", gateway=mac)["choice"]["reason"] == "asked"
        # A request that a gateway or a device declines gets a response, too.
        declined = sender.send(device, "read", "ef10").json()
        assert declined["status"] != 0
        assert declined["errorMessage"]
        assert sender.send(device, "apiversion").json()["status"] != 0
        history = [(each["request"]["operation"], each["state"]) for each in reversed(sender.history(device))]
        assert [operation for operation, _ in history][:4] == ["read", "read-decoded", "write", "read"]
        assert {state for _, state in history} == {"DONE"}


@pytest.mark.rule("version-12", "rest-106")
@pytest.mark.parametrize("mode", ["raw", "decoded"])
def test_an_old_gateway_gets_only_requests_that_it_supports(service: ServiceProcess, mode: str) -> None:
    mac = mac_from_int(mac_to_int(OLD_GATEWAY) + 2 * (mode == "raw") + 1)
    broker = BrokerAddress("mqtt", service.mqtt["mqtt"], service.data)
    with (
        RequestSender(service) as sender,
        run_gateway(service, mac, "--mode", mode, "--api-version", "1.2.0") as (_, device),
        PahoClient(broker, service.add_user(f"viewer-{mode}", Role.VIEWER)) as viewer,
    ):
        viewer.subscribe(f"mt/gateway/{mac}/response/#")
        for operation, identifier, newer_parameters in (
            ("write-decoded", "of-theirs", {"value": 0, "ext": {"a": 1}}),
            ("read", "8000", {"extenderId": "C0FFEE0000E1"}),
            ("read-decoded", "model-number", {"accessType": "legacy"}),
            ("write", "9802", {"value": "00", "key": "ff"}),
            ("ack", "8800", {"time": format_millis(0), "type": 0}),
            ("ack-decoded", "temperature", {"time": format_millis(0), "type": 0}),
        ):
            response = sender.send(device, operation, identifier, **newer_parameters)
            assert (response.status_code, response.json()["code"]) == (409, "gateway-too-old"), (
                newer_parameters
            )
        response = sender.send_and_decode(device, "read", "8000")
        assert sender.send_and_decode(device, "write", "9802", value="00")["gateway"] == mac
        assert not {"responseTime", "origin", "route"} & response.keys()
        received: list[str] = []
        while f"{device}/write/9802" not in received:
            received.append(viewer.receive().topic.partition("/response/")[2])
        assert f"{device}/read/8000" in received
        # The service itself sends requests, too, but only reads and apiversion.
        assert {each.split("/")[1] for each in received} <= {"apiversion", "read", "write"}
        assert len([each for each in received if "/write/" in each]) == 1


@pytest.mark.rule("request-29")
def test_other_clients_on_the_same_topics_are_not_affected_and_do_not_interfere(
    service: ServiceProcess,
) -> None:
    mac = Mac("02005e30000a")
    broker, other = (
        BrokerAddress("mqtt", service.mqtt["mqtt"], service.data),
        service.add_user("other", Role.OPERATOR),
    )
    with (
        RequestSender(service) as sender,
        run_gateway(service, mac) as (_, device),
        PahoClient(broker, other) as client,
    ):
        client.subscribe(f"mt/gateway/{mac}/response/{device}/read/8000")
        our_ids: list[str] = []
        for number in range(20):
            topic = f"mt/gateway/{mac}/request/{device}/read/8000"
            client.publish(Message(topic, json.dumps({"id": f"theirs-{number}"}).encode(), 1, retain=False))
            our_ids.append(sender.send_and_decode(device, "read", "8000")["id"])
        responses = [json.loads(client.receive().payload) for _ in range(40)]
        assert {each["id"] for each in responses} == {*our_ids, *(f"theirs-{number}" for number in range(20))}
        assert {each["status"] for each in responses} == {0}
        assert len(set(our_ids)) == 20
        ids = {each["id"] for each in sender.history(device)}
        assert not any(each.startswith("theirs") for each in ids)


@pytest.mark.rule("request-31", "request-32")
def test_keys_of_requests_are_in_no_file_log_or_response(tmp_path: Path) -> None:
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        with RequestSender(service) as sender, run_gateway(service, GATEWAY) as (_, device):
            for options in ({}, {"gateway": GATEWAY}):
                response = sender.send(
                    device, "write", "9802", value="00", key=KEY, publicKey=PUBLIC_KEY, **options
                )
                assert response.status_code == 200, response.text
            metrics = service.call("GET", "/metrics")
            outputs = [
                metrics,
                json.dumps(sender.history(device)),
                json.dumps(service.call("GET", "/api/v1/audit")),
            ]
        code, log = service.stop()
        assert code == 0, log
    files = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert any(b"request.write" in each for each in files)
    everything = b"\n".join([*files, log.encode(), *(each.encode() for each in outputs)])
    for secret in (KEY, PUBLIC_KEY):
        for form in (secret.encode(), secret.upper().encode(), bytes.fromhex(secret)):
            assert form not in everything


@pytest.mark.rule("rest-101", "rest-102", "request-35")
def test_a_gateway_on_another_broker_that_has_reported_gets_requests(tmp_path: Path) -> None:
    (tmp_path / "mosquitto").mkdir()
    with (
        Mosquitto(tmp_path / "mosquitto") as mosquitto,
        ServiceProcess(tmp_path, "--broker", broker_url(mosquitto)) as service,
        RequestSender(service) as sender,
    ):
        eventually(service.is_ready)
        silent = Mac("02005e30000f")
        service.claim(silent)
        response = sender.send(silent, "apiversion")
        assert (response.status_code, response.json()["code"]) == (503, "gateway-offline")
        with run_gateway(service, GATEWAY, broker=broker_url(mosquitto)) as (_, device):
            assert sender.send_and_decode(device, "read", "8000")["gateway"] == GATEWAY
            assert sender.send_and_decode(GATEWAY, "apiversion")["version"] == "2.4.0"
        assert re.search("Traceback", service.stop()[1]) is None
