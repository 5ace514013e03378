"""Another client on the same topics, of another make: paho-mqtt."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from queue import Queue
from typing import TYPE_CHECKING

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from tests.link.proxy import PATIENCE, fresh

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from paho.mqtt.client import MQTTMessage


class PasserBy:
    """Asks one gateway, and hears all that it says."""

    def __init__(self, port: int, gateway: str) -> None:
        self._port = port
        self._gateway = gateway
        self._heard: list[MQTTMessage] = []
        self._granted: Queue[int] = Queue()
        self._client = Client(CallbackAPIVersion.VERSION2, fresh("passer-by"))
        self._client.on_message = lambda _, __, message: self._heard.append(message)
        self._client.on_subscribe = lambda _, __, ___, codes, ____: self._granted.put(codes[0].value)

    def start(self) -> None:
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        for way in ("response", "device"):
            self._client.subscribe(f"mt/gateway/{self._gateway}/{way}/#", 1)
            assert self._granted.get(timeout=PATIENCE) == 1

    def stop(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def ask(self, end: str, request_id: str) -> str:
        """Send a request; gives its id."""
        body = json.dumps({"id": request_id}).encode()
        self._client.publish(f"mt/gateway/{self._gateway}/request/{end}", body, qos=1)
        return request_id

    def answered(self) -> list[str]:
        """The ids of all responses, in their order."""
        return [json.loads(each.payload)["id"] for each in list(self._heard) if "/response/" in each.topic]

    def reported(self) -> list[str]:
        """The topics of all reports, in their order."""
        return [each.topic for each in list(self._heard) if "/device/" in each.topic]


@asynccontextmanager
async def passer_by(port: int, gateway: str) -> AsyncIterator[PasserBy]:
    """Somebody who is connected while a block runs."""
    made = PasserBy(port, gateway)
    await asyncio.to_thread(made.start)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.stop)
