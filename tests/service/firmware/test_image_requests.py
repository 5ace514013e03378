"""Gateways ask for images, on the embedded broker and on another one."""

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
from meshfleet.protocol.diagnostics import format_answer_topic, format_question_topic
from meshfleet.rest import FIRMWARE_PATH, IMAGES_PATH
from meshfleet.settings import ListenAddress, Settings
from tests.servers import NO_TRUSTED_AUTHORITIES, Mosquitto
from tests.service.firmware.uploads import MODEL, digest, new_content, new_version, released, uploaded
from tests.service.requests.service_with_broker import PATIENCE, ServiceWithBroker
from tests.service.requests.service_with_broker import run_service as running_office

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from meshfleet.protocol.ids import Mac


@pytest.fixture(scope="module")
def kept_open(sqlite_of_module: Database) -> Iterator[Database]:
    """A database that outlasts each of the services."""
    yield sqlite_of_module
    sqlite_of_module.close()


@pytest.fixture(scope="module", params=["embedded", "embedded with a prefix", "another broker"])
def office(
    request: pytest.FixtureRequest, kept_open: Database, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServiceWithBroker]:
    """A service whose gateways are on its own broker, or on another one."""
    if request.param != "another broker":
        prefix = "some/prefix" if "prefix" in request.param else ""
        with running_office(
            kept_open, Settings(mqtt=ListenAddress("127.0.0.1", 0), topic_prefix=prefix)
        ) as running:
            yield running
        return
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), "set_tcp_nodelay true") as broker:
        outside = BrokerAddress(host=broker.address.host, port=broker.address.port)
        with running_office(kept_open, Settings(mqtt=None, external_broker=outside)) as running:
            running.port = broker.address.port
            yield running


class Asker:
    """A gateway of another make, which asks for images."""

    def __init__(self, office: ServiceWithBroker, mac: Mac, password: str) -> None:
        self.mac = mac
        self.answers: Queue[dict[str, Any]] = Queue()
        ready: Queue[int] = Queue()
        # As gateways do: a second connection, under a name of its own (gateway-5).
        self._client = Client(CallbackAPIVersion.VERSION2, mac.upper(), reconnect_on_failure=False)
        self._client.username_pw_set(mac, password)
        self._client.on_connect = lambda *given: ready.put(given[3].value)
        self._client.on_subscribe = lambda *given: ready.put(given[3][0].value)
        self._client.on_message = lambda _, __, message: self.answers.put(json.loads(message.payload))
        self._client.connect("127.0.0.1", office.port)
        self._client.loop_start()
        assert ready.get(timeout=PATIENCE) == 0
        self._client.subscribe(format_answer_topic(mac), 1)
        assert ready.get(timeout=PATIENCE) == 1

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def say(self, payload: bytes, topic: str | None = None) -> None:
        sent = self._client.publish(topic or format_question_topic(self.mac), payload, qos=1)
        sent.wait_for_publish(PATIENCE)

    def ask(self, **params: Any) -> dict[str, Any]:
        """Ask, and gives the answer to that question."""
        question = str(uuid4())
        given = {"modelNumber": MODEL, "firmwareType": 1, **params}
        self.say(json.dumps({"id": question, "params": given}).encode())
        answer = self.answers.get(timeout=PATIENCE)
        assert answer.pop("id") == question
        return answer


@contextmanager
def asker(office: ServiceWithBroker, *, claimed: bool = True) -> Iterator[Asker]:
    mac = office.new_mac()
    made = Asker(office, mac, office.claim(mac) if claimed else "")
    try:
        yield made
    finally:
        made.stop()


@pytest.mark.rule("firmware-15", "firmware-16", "firmware-18", "firmware-19", "firmware-20", "firmware-37")
def test_a_gateway_is_told_where_its_image_is(office: ServiceWithBroker) -> None:
    content, version = new_content(), f"{new_version()}-beta.3"
    record = released(office, content, version=version, name="my image.bin")
    with asker(office) as gateway:
        answer = gateway.ask(version=version)
    uri = answer["result"].pop("uri")
    assert answer == {
        "success": True,
        "result": {
            "fileName": "my image.bin",
            "firmwareType": 1,
            "sha256": digest(content),
            "size": record["size"],
        },
    }
    assert uri.startswith(f"{office.url}{IMAGES_PATH}/")
    fetched = httpx.get(uri, verify=NO_TRUSTED_AUTHORITIES, trust_env=False)
    assert (fetched.status_code, fetched.content) == (200, content)


@pytest.mark.rule("firmware-18")
def test_there_is_no_image_that_is_not_released_or_of_another_kind(office: ServiceWithBroker) -> None:
    draft, record, gone = uploaded(office), released(office), released(office)
    office.admin.post(f"{FIRMWARE_PATH}/{gone['id']}/withdraw")
    with asker(office) as gateway:
        for params in (
            {"version": draft["version"]},
            {"version": gone["version"]},
            {"version": "250.0.0"},
            {"version": record["version"], "firmwareType": 2},
            {"version": record["version"], "modelNumber": "0019"},
        ):
            assert gateway.ask(**params) == {"success": False}
        assert gateway.ask(version=record["version"])["success"] is True


@pytest.mark.parametrize("office", ["another broker"], indirect=True)  # to ours nobody else gets in
def test_only_a_gateway_that_is_claimed_gets_an_address(office: ServiceWithBroker) -> None:
    record = released(office)
    with asker(office, claimed=False) as gateway:
        assert gateway.ask(version=record["version"]) == {"success": False}
        office.claim(gateway.mac)
        assert gateway.ask(version=record["version"])["success"] is True
        office.admin.delete(f"/api/v1/gateways/{gateway.mac}")
        assert gateway.ask(version=record["version"]) == {"success": False}


UNREADABLE = [
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
def test_a_question_that_cannot_be_read_is_dropped_and_others_are_answered(office: ServiceWithBroker) -> None:
    record = released(office)
    failures = []
    with asker(office) as gateway:
        for payload in UNREADABLE:
            before = _asked(office, "malformed")
            gateway.say(payload)
            answer = gateway.ask(version=record["version"])
            counted = _asked(office, "malformed") - before
            if (answer["success"], gateway.answers.qsize(), counted) != (True, 0, 1):
                failures.append((payload[:100], answer, counted))
    assert failures == []


def test_a_strange_id_comes_back_as_it_was(office: ServiceWithBroker) -> None:
    record = released(office)
    with asker(office) as gateway:
        for strange in ("", "ü\u0000\n", "\ud800", "x" * 30_000):
            params = {"modelNumber": MODEL, "version": record["version"], "firmwareType": 1}
            gateway.say(json.dumps({"id": strange, "params": params}).encode())
            if strange != "\ud800":
                assert gateway.answers.get(timeout=PATIENCE)["id"] == strange
        assert gateway.ask(version=record["version"])["success"] is True


def test_many_questions_are_all_answered(office: ServiceWithBroker) -> None:
    record = released(office)
    with asker(office) as gateway:
        for number in range(100):
            params = {"modelNumber": MODEL, "version": record["version"], "firmwareType": 1}
            gateway.say(json.dumps({"id": str(number), "params": params}).encode())
        answers = [gateway.answers.get(timeout=PATIENCE) for _ in range(100)]
    assert {each["id"] for each in answers} == {str(number) for number in range(100)}
    assert all(each["success"] for each in answers)


def test_questions_are_counted(office: ServiceWithBroker) -> None:
    record = released(office)
    before = _asked(office, "answered"), _asked(office, "unknown")
    with asker(office) as gateway:
        gateway.ask(version=record["version"])
        gateway.ask(version="251.0.0")
    assert (_asked(office, "answered"), _asked(office, "unknown")) == (before[0] + 1, before[1] + 1)


def _asked(office: ServiceWithBroker, outcome: str) -> float:
    return office.metric(f'meshfleet_firmware_questions_total{{outcome="{outcome}"}}')
