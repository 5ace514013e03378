"""Tests of image requests of gateways, on the embedded broker and on an external one."""

from __future__ import annotations

import json
from contextlib import contextmanager
from queue import Queue
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import httpx
import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.diagnostics import format_image_request_topic, format_image_response_topic
from meshfleet.rest.firmware import FIRMWARE_PATH, IMAGES_PATH
from meshfleet.settings import ListenAddress, Settings
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto
from tests.service.firmware.uploads import (
    MODEL,
    hash_hex,
    new_content,
    new_version,
    upload_record,
    upload_released,
)
from tests.service.requests.service_with_broker import PATIENCE, ServiceWithBroker
from tests.service.requests.service_with_broker import run_service as run_service_with_broker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from meshfleet.protocol.ids import Mac


@pytest.fixture(scope="module")
def module_database(sqlite_of_module: Database) -> Database:
    """Provide a database that stays open for all services of this module."""
    return sqlite_of_module


@pytest.fixture(scope="module", params=["embedded", "embedded with a prefix", "external broker"])
def service(
    request: pytest.FixtureRequest, module_database: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceWithBroker]:
    """Run a service whose gateways are connected to its own broker or to an external one."""
    if request.param != "external broker":
        prefix = "some/prefix" if "prefix" in request.param else ""
        with run_service_with_broker(
            module_database, Settings(mqtt=ListenAddress("127.0.0.1", 0), topic_prefix=prefix)
        ) as running:
            yield running
        return
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), "set_tcp_nodelay true") as broker:
        address = BrokerAddress(host=broker.address.host, port=broker.address.port)
        with run_service_with_broker(
            module_database, Settings(mqtt=None, external_broker=address)
        ) as running:
            running.port = broker.address.port
            yield running


class ImageRequester:
    """Client of a gateway that requests images."""

    def __init__(self, service: ServiceWithBroker, mac: Mac, password: str) -> None:
        self.mac = mac
        self.responses: Queue[dict[str, Any]] = Queue()
        ready: Queue[int] = Queue()
        # Like real gateways, it uses a second connection with its own client id (gateway-5).
        self._client = Client(CallbackAPIVersion.VERSION2, mac.upper(), reconnect_on_failure=False)
        self._client.username_pw_set(mac, password)
        self._client.on_connect = lambda *args: ready.put(args[3].value)
        self._client.on_subscribe = lambda *args: ready.put(args[3][0].value)
        self._client.on_message = lambda _, __, message: self.responses.put(json.loads(message.payload))
        self._client.connect("127.0.0.1", service.port)
        self._client.loop_start()
        assert ready.get(timeout=PATIENCE) == 0
        self._client.subscribe(format_image_response_topic(mac), 1)
        assert ready.get(timeout=PATIENCE) == 1

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def publish_payload(self, payload: bytes, topic: str | None = None) -> None:
        sent = self._client.publish(topic or format_image_request_topic(self.mac), payload, qos=1)
        sent.wait_for_publish(PATIENCE)

    def request_image(self, **params: Any) -> dict[str, Any]:
        """Request an image and return the response."""
        request_id = str(uuid4())
        params_sent = {"modelNumber": MODEL, "firmwareType": 1, **params}
        self.publish_payload(json.dumps({"id": request_id, "params": params_sent}).encode())
        response = self.responses.get(timeout=PATIENCE)
        assert response.pop("id") == request_id
        return response


@contextmanager
def connect_requester(service: ServiceWithBroker, *, claimed: bool = True) -> Iterator[ImageRequester]:
    mac = service.new_mac()
    client = ImageRequester(service, mac, service.claim(mac) if claimed else "")
    try:
        yield client
    finally:
        client.stop()


@pytest.mark.rule("firmware-15", "firmware-16", "firmware-18", "firmware-19", "firmware-20", "firmware-37")
def test_a_gateway_gets_the_url_of_its_image(service: ServiceWithBroker) -> None:
    content, version = new_content(), f"{new_version()}-beta.3"
    record = upload_released(service, content, version=version, name="my image.bin")
    with connect_requester(service) as gateway:
        response = gateway.request_image(version=version)
    uri = response["result"].pop("uri")
    assert response == {
        "success": True,
        "result": {
            "fileName": "my image.bin",
            "firmwareType": 1,
            "sha256": hash_hex(content),
            "size": record["size"],
        },
    }
    assert uri.startswith(f"{service.url}{IMAGES_PATH}/")
    download = httpx.get(uri, verify=NO_TRUSTED_AUTHORITIES, trust_env=False)
    assert (download.status_code, download.content) == (200, content)


@pytest.mark.rule("firmware-18")
def test_only_released_firmware_of_the_requested_kind_is_found(service: ServiceWithBroker) -> None:
    draft, record, withdrawn = upload_record(service), upload_released(service), upload_released(service)
    service.admin.post(f"{FIRMWARE_PATH}/{withdrawn['id']}/withdraw")
    with connect_requester(service) as gateway:
        for params in (
            {"version": draft["version"]},
            {"version": withdrawn["version"]},
            {"version": "250.0.0"},
            {"version": record["version"], "firmwareType": 2},
            {"version": record["version"], "modelNumber": "0019"},
        ):
            assert gateway.request_image(**params) == {"success": False}
        assert gateway.request_image(version=record["version"])["success"] is True


@pytest.mark.parametrize("service", ["external broker"], indirect=True)  # the embedded one rejects others
def test_only_a_claimed_gateway_gets_a_url(service: ServiceWithBroker) -> None:
    record = upload_released(service)
    with connect_requester(service, claimed=False) as gateway:
        assert gateway.request_image(version=record["version"]) == {"success": False}
        service.claim(gateway.mac)
        assert gateway.request_image(version=record["version"])["success"] is True
        service.admin.delete(f"/api/v1/gateways/{gateway.mac}")
        assert gateway.request_image(version=record["version"]) == {"success": False}


MALFORMED_PAYLOADS = [
    b"",
    b"{",
    b"[]",
    b"\xff",
    b'{"id": 1, "params": {}}',
    b'{"id": "x"}',
    b'{"id": "x", "params": {"modelNumber": "0018"}}',
    b'{"id": "x", "params": {"modelNumber": "0018", "version": "1.0.0", "firmwareType": 3}}',
    b'{"id": "x", "params": ' + b"[" * 10_000,
    b"x" * 100_000,
]


@pytest.mark.rule("firmware-15")
def test_a_malformed_request_is_dropped_and_others_are_answered(service: ServiceWithBroker) -> None:
    record = upload_released(service)
    failures = []
    with connect_requester(service) as gateway:
        for payload in MALFORMED_PAYLOADS:
            before = _read_outcome(service, "malformed")
            gateway.publish_payload(payload)
            response = gateway.request_image(version=record["version"])
            malformed = _read_outcome(service, "malformed") - before
            if (response["success"], gateway.responses.qsize(), malformed) != (True, 0, 1):
                failures.append((payload[:100], response, malformed))
    assert failures == []


def test_an_unusual_request_id_is_returned_unchanged(service: ServiceWithBroker) -> None:
    record = upload_released(service)
    with connect_requester(service) as gateway:
        for unusual_id in ("", "ü\u0000\n", "\ud800", "x" * 30_000):
            params = {"modelNumber": MODEL, "version": record["version"], "firmwareType": 1}
            gateway.publish_payload(json.dumps({"id": unusual_id, "params": params}).encode())
            if unusual_id != "\ud800":
                assert gateway.responses.get(timeout=PATIENCE)["id"] == unusual_id
        assert gateway.request_image(version=record["version"])["success"] is True


def test_many_requests_are_all_answered(service: ServiceWithBroker) -> None:
    record = upload_released(service)
    with connect_requester(service) as gateway:
        for number in range(100):
            params = {"modelNumber": MODEL, "version": record["version"], "firmwareType": 1}
            gateway.publish_payload(json.dumps({"id": str(number), "params": params}).encode())
        responses = [gateway.responses.get(timeout=PATIENCE) for _ in range(100)]
    assert {each["id"] for each in responses} == {str(number) for number in range(100)}
    assert all(each["success"] for each in responses)


def test_image_requests_are_counted_by_outcome(service: ServiceWithBroker) -> None:
    record = upload_released(service)
    before = _read_outcome(service, "answered"), _read_outcome(service, "unknown")
    with connect_requester(service) as gateway:
        gateway.request_image(version=record["version"])
        gateway.request_image(version="251.0.0")
    assert (_read_outcome(service, "answered"), _read_outcome(service, "unknown")) == (
        before[0] + 1,
        before[1] + 1,
    )


def _read_outcome(service: ServiceWithBroker, outcome: str) -> float:
    return service.metric(f'meshfleet_firmware_questions_total{{outcome="{outcome}"}}')
