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

from meshfleet.wire.times import write_millis
from tests.broker.raw import PATIENCE
from tests.broker.stage import PASSWORD, G

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from paho.mqtt.client import MQTTMessage

    Manner = Callable[["Asked"], "list[Said]"]
    """What a gateway says to a request."""
    ByItself = Callable[["Asked"], "list[Said] | None"]
    """What it says to a request that the service sends by itself; None: it is another one."""


class Asked(NamedTuple):
    """A request as it came."""

    topic: str
    body: dict[str, Any]
    qos: int
    retain: bool

    @property
    def end(self) -> str:
        """The device, the operation, and the identifier if there is one."""
        return self.topic.partition("/request/")[2]

    def answer(self, **fields: Any) -> Said:
        """The proper answer, with other fields where a test wants others."""
        now = write_millis(time.time_ns() // 1_000_000)
        given = {"id": self.body["id"], "time": now, "status": 0, **fields}
        return Said(self.topic.replace("/request/", "/response/"), json.dumps(given).encode())


class Said(NamedTuple):
    """What a gateway publishes."""

    topic: str
    payload: bytes


def nothing(_: Asked) -> list[Said]:
    """Never answer."""
    return []


class Gateway:
    """Connected as a gateway, with a manner of its own."""

    def __init__(
        self,
        port: int,
        mac: str,
        manner: Manner,
        *,
        password: str = PASSWORD.decode(),
        by_itself: ByItself = lambda _: None,
    ) -> None:
        self._port = port
        self.manner = manner
        self._by_itself = by_itself
        self.mac = mac
        self.asked: list[Asked] = []
        """All requests that came, but for those that the service sends by itself."""
        self._answers: Queue[int] = Queue()
        self._client = Client(CallbackAPIVersion.VERSION2, mac, reconnect_on_failure=False)
        self._client.username_pw_set(mac, password)
        self._client.on_message = self._take
        self._client.on_connect = lambda _, __, ___, code, ____: self._answers.put(code.value)
        self._client.on_subscribe = lambda _, __, ___, codes, ____: self._answers.put(codes[0].value)

    def start(self) -> None:
        """Connect, and listen to requests."""
        self._client.connect("127.0.0.1", self._port)
        self._client.loop_start()
        assert self._answers.get(timeout=PATIENCE) == 0
        self._client.subscribe(f"mt/gateway/{self.mac}/request/#", 1)
        assert self._answers.get(timeout=PATIENCE) == 1

    def stop(self) -> None:
        """Take leave."""
        self._client.disconnect()
        self._client.loop_stop()

    def say(self, *said: Said) -> None:
        """Publish, whoever asked."""
        for each in said:
            self._client.publish(each.topic, each.payload, qos=1)

    def report(self, topic: str, **fields: Any) -> None:
        """Publish, and wait until the broker has it for good."""
        sent = self._client.publish(topic, json.dumps(fields).encode(), qos=1)
        sent.wait_for_publish(PATIENCE)
        assert sent.is_published()

    def _take(self, _: object, __: object, message: MQTTMessage) -> None:
        asked = Asked(message.topic, json.loads(message.payload), message.qos, message.retain)
        said = self._by_itself(asked)
        if said is None:
            self.asked.append(asked)
            said = self.manner(asked)
        self.say(*said)


@asynccontextmanager
async def gateway(port: int, manner: Manner = nothing, mac: str = G) -> AsyncIterator[Gateway]:
    """A gateway that is connected while a block runs."""
    made = Gateway(port, mac, manner)
    await asyncio.to_thread(made.start)
    try:
        yield made
    finally:
        await asyncio.to_thread(made.stop)
