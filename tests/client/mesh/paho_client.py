"""MQTT client of another implementation (paho-mqtt) on the same topics."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from queue import Queue
from typing import TYPE_CHECKING

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from tests.mqtt.client.proxy import TIMEOUT, unique_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from paho.mqtt.client import MQTTMessage


class PahoClient:
    """Client that sends requests to one gateway, and receives its responses and reports."""

    def __init__(self, port: int, gateway: str) -> None:
        self._port = port
        self._gateway = gateway
        self._received: list[MQTTMessage] = []
        self._granted: Queue[int] = Queue()
        self._client = Client(CallbackAPIVersion.VERSION2, unique_name("other-client"))
        self._client.on_message = lambda _, __, message: self._received.append(message)
        self._client.on_subscribe = lambda _, __, ___, codes, ____: self._granted.put(codes[0].value)

    def start(self) -> None:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        for direction in ("response", "device"):
            self._client.subscribe(f"mt/gateway/{self._gateway}/{direction}/#", 1)
            assert self._granted.get(timeout=TIMEOUT) == 1

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def request(self, suffix: str, request_id: str) -> str:
        """Send a request and return its id."""
        body = json.dumps({"id": request_id}).encode()
        self._client.publish(f"mt/gateway/{self._gateway}/request/{suffix}", body, qos=1)
        return request_id

    def response_ids(self) -> list[str]:
        """Return the ids of all received responses, in order."""
        return [
            json.loads(message.payload)["id"]
            for message in list(self._received)
            if "/response/" in message.topic
        ]

    def report_topics(self) -> list[str]:
        """Return the topics of all received reports, in order."""
        return [message.topic for message in list(self._received) if "/device/" in message.topic]


@asynccontextmanager
async def connected_paho_client(port: int, gateway: str) -> AsyncIterator[PahoClient]:
    """Connect a client while a block runs."""
    client = PahoClient(port, gateway)
    await asyncio.to_thread(client.start)
    try:
        yield client
    finally:
        await asyncio.to_thread(client.stop)
