"""Another client on the same topics, of another make: paho-mqtt."""

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
    """Asks one gateway, and hears all that it says."""

    def __init__(self, port: int, gateway: str) -> None:
        self._port = port
        self._gateway = gateway
        self._received: list[MQTTMessage] = []
        self._granted: Queue[int] = Queue()
        self._client = Client(CallbackAPIVersion.VERSION2, unique_name("passer-by"))
        self._client.on_message = lambda _, __, message: self._received.append(message)
        self._client.on_subscribe = lambda _, __, ___, codes, ____: self._granted.put(codes[0].value)

    def start(self) -> None:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        for way in ("response", "device"):
            self._client.subscribe(f"mt/gateway/{self._gateway}/{way}/#", 1)
            assert self._granted.get(timeout=TIMEOUT) == 1

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def request(self, end: str, request_id: str) -> str:
        """Send a request; gives its id."""
        body = json.dumps({"id": request_id}).encode()
        self._client.publish(f"mt/gateway/{self._gateway}/request/{end}", body, qos=1)
        return request_id

    def response_ids(self) -> list[str]:
        """The ids of all responses, in their order."""
        return [json.loads(each.payload)["id"] for each in list(self._received) if "/response/" in each.topic]

    def report_topics(self) -> list[str]:
        """The topics of all reports, in their order."""
        return [each.topic for each in list(self._received) if "/device/" in each.topic]


@asynccontextmanager
async def connected_paho_client(port: int, gateway: str) -> AsyncIterator[PahoClient]:
    """Somebody who is connected while a block runs."""
    made = PahoClient(port, gateway)
    await asyncio.to_thread(made.start)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.stop)
