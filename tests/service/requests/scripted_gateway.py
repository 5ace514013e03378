"""A gateway of another make, on paho-mqtt: it answers what a test tells it, or nothing."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import asynccontextmanager
from queue import Queue
from typing import TYPE_CHECKING, Any, NamedTuple

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.protocol.times import format_millis
from tests.mqtt.broker.raw_client import TIMEOUT
from tests.mqtt.broker.running_broker import PASSWORD, G

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from paho.mqtt.client import MQTTMessage

    Responder = Callable[["IncomingRequest"], "list[OutgoingMessage]"]
    """What a gateway says to a request."""
    AutoResponder = Callable[["IncomingRequest"], "list[OutgoingMessage] | None"]
    """What it says to a request that the service sends by itself; None: it is another one."""


class IncomingRequest(NamedTuple):
    """A request as it came."""

    topic: str
    body: dict[str, Any]
    qos: int
    retain: bool

    @property
    def topic_suffix(self) -> str:
        """The device, the operation, and the identifier if there is one."""
        return self.topic.partition("/request/")[2]

    def build_response(self, **fields: Any) -> OutgoingMessage:
        """The proper answer, with other fields where a test wants others."""
        now = format_millis(time.time_ns() // 1_000_000)
        given = {"id": self.body["id"], "time": now, "status": 0, **fields}
        return OutgoingMessage(self.topic.replace("/request/", "/response/"), json.dumps(given).encode())


class OutgoingMessage(NamedTuple):
    """What a gateway publishes."""

    topic: str
    payload: bytes


def never_respond(_: IncomingRequest) -> list[OutgoingMessage]:
    """Never answer."""
    return []


class ScriptedGateway:
    """Connected as a gateway, with a manner of its own."""

    def __init__(
        self,
        port: int,
        mac: str,
        responder: Responder,
        *,
        password: str = PASSWORD.decode(),
        auto_responder: AutoResponder = lambda _: None,
    ) -> None:
        self._port = port
        self.responder = responder
        self._auto_responder = auto_responder
        self.mac = mac
        self.requests: list[IncomingRequest] = []
        """All requests that came, but for those that the service sends by itself."""
        self._answers: Queue[int] = Queue()
        self._client = Client(CallbackAPIVersion.VERSION2, mac, reconnect_on_failure=False)
        self._client.username_pw_set(mac, password)
        self._client.on_message = self._on_message
        self._client.on_connect = lambda _, __, ___, code, ____: self._answers.put(code.value)
        self._client.on_subscribe = lambda _, __, ___, codes, ____: self._answers.put(codes[0].value)

    def start(self) -> None:
        """Connect, and listen to requests."""
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._answers.get(timeout=TIMEOUT) == 0
        self._client.subscribe(f"mt/gateway/{self.mac}/request/#", 1)
        assert self._answers.get(timeout=TIMEOUT) == 1

    def stop(self) -> None:
        """Take leave."""
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, *said: OutgoingMessage) -> None:
        """Publish, whoever asked."""
        for each in said:
            self._client.publish(each.topic, each.payload, qos=1)

    def report(self, topic: str, **fields: Any) -> None:
        """Publish, and wait until the broker has it for good."""
        sent = self._client.publish(topic, json.dumps(fields).encode(), qos=1)
        sent.wait_for_publish(TIMEOUT)
        assert sent.is_published()

    def _on_message(self, _: object, __: object, message: MQTTMessage) -> None:
        asked = IncomingRequest(message.topic, json.loads(message.payload), message.qos, message.retain)
        said = self._auto_responder(asked)
        if said is None:
            self.requests.append(asked)
            said = self.responder(asked)
        self.publish(*said)


@asynccontextmanager
async def connect_gateway(
    port: int, responder: Responder = never_respond, mac: str = G
) -> AsyncIterator[ScriptedGateway]:
    """A gateway that is connected while a block runs."""
    made = ScriptedGateway(port, mac, responder)
    await asyncio.to_thread(made.start)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.stop)
