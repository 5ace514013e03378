"""Independent gateway based on paho-mqtt, which responds as a test scripts it, or not at all."""

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
    """Returns the messages that a gateway publishes in response to a request."""
    AutoResponder = Callable[["IncomingRequest"], "list[OutgoingMessage] | None"]
    """Returns the responses to requests of the service itself; None for other requests."""


class IncomingRequest(NamedTuple):
    """Request as received by the gateway."""

    topic: str
    body: dict[str, Any]
    qos: int
    retain: bool

    @property
    def topic_suffix(self) -> str:
        """Device, operation, and the identifier if there is one."""
        return self.topic.partition("/request/")[2]

    def build_response(self, **fields: Any) -> OutgoingMessage:
        """Build a valid response in which `fields` override the defaults."""
        now = format_millis(time.time_ns() // 1_000_000)
        body = {"id": self.body["id"], "time": now, "status": 0, **fields}
        return OutgoingMessage(self.topic.replace("/request/", "/response/"), json.dumps(body).encode())


class OutgoingMessage(NamedTuple):
    """Message that a gateway publishes."""

    topic: str
    payload: bytes


def never_respond(_: IncomingRequest) -> list[OutgoingMessage]:
    """Return no response."""
    return []


class ScriptedGateway:
    """MQTT client that acts as a gateway with a scripted responder."""

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
        """Received requests, except those of the service itself."""
        self._return_codes: Queue[int] = Queue()
        self._client = Client(CallbackAPIVersion.VERSION2, mac, reconnect_on_failure=False)
        self._client.username_pw_set(mac, password)
        self._client.on_message = self._on_message
        self._client.on_connect = lambda _, __, ___, code, ____: self._return_codes.put(code.value)
        self._client.on_subscribe = lambda _, __, ___, codes, ____: self._return_codes.put(codes[0].value)

    def start(self) -> None:
        """Connect, and subscribe to requests."""
        self.connect()
        self.subscribe()

    def connect(self) -> None:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._return_codes.get(timeout=TIMEOUT) == 0

    def subscribe(self) -> None:
        self._client.subscribe(f"mt/gateway/{self.mac}/request/#", 1)
        assert self._return_codes.get(timeout=TIMEOUT) == 1

    def stop(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def publish(self, *messages: OutgoingMessage) -> None:
        """Publish messages without waiting for the broker."""
        for each in messages:
            self._client.publish(each.topic, each.payload, qos=1)

    def report(self, topic: str, **fields: Any) -> None:
        """Publish a report, and wait until the broker has acknowledged it."""
        sent = self._client.publish(topic, json.dumps(fields).encode(), qos=1)
        sent.wait_for_publish(TIMEOUT)
        assert sent.is_published()

    def _on_message(self, _: object, __: object, message: MQTTMessage) -> None:
        request = IncomingRequest(message.topic, json.loads(message.payload), message.qos, message.retain)
        messages = self._auto_responder(request)
        if messages is None:
            self.requests.append(request)
            messages = self.responder(request)
        self.publish(*messages)


@asynccontextmanager
async def connect_gateway(
    port: int, responder: Responder = never_respond, mac: str = G
) -> AsyncIterator[ScriptedGateway]:
    """Connect a gateway while the block runs."""
    gateway = ScriptedGateway(port, mac, responder)
    await asyncio.to_thread(gateway.start)
    try:
        yield gateway
    finally:
        await asyncio.to_thread(gateway.stop)
