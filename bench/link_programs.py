"""The programs at both ends of the broker in `bench.link`, each a process with a CPU time of its own.

python -m bench.link_programs ROLE PORT COUNT RATE      prints one JSON object; RATE 0 is flat out
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any, Final

import uvloop
from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.mqtt.client import BrokerAddress, MessageBatch, MqttClient, MqttOptions, Publish
from meshfleet.protocol.reports import REPORT_DECODERS
from meshfleet.protocol.topics import TopicCodec

GATEWAYS, DEVICES = 10, 50
PAYLOAD: Final = b'{"time":"2026-11-15T10:07:20.585Z","seq":41,"value":46.6}'
ROWS, SECONDS = 1000, 0.05
"""A consumer commits, and acknowledges, after so many reports or so long."""

Metrics = dict[str, float]


class MessageMeter:
    """What a number of messages costs from now on."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._cpu, self._wall = time.process_time(), time.monotonic()

    def metrics(self) -> Metrics:
        """CPU for each message, and how many there were a second."""
        cpu, wall = time.process_time() - self._cpu, time.monotonic() - self._wall
        return {"cpu_us": cpu / self._count * 1e6, "per_s": self._count / wall}


class BatchConsumer:
    """Decodes topic and payload of each report and keeps them until the commit, which here forgets them."""

    def __init__(self, count: int) -> None:
        self._parse: Callable[[str], Any] = TopicCodec().parse
        self._rows: list[tuple[Any, Any]] = []
        self._count = self._left = count
        self._committed = 0.0
        self.meter = MessageMeter(count)

    def add(self, messages: Iterable[Publish | MQTTMessage]) -> None:
        """Decode reports. The first of them starts the meter."""
        if not self._committed:
            self._committed = time.monotonic()
            self.meter = MessageMeter(self._count)
        parse, append = self._parse, self._rows.append
        for message in messages:
            topic = parse(message.topic)
            append((topic, REPORT_DECODERS[topic.kind](message.payload)))  # type: ignore[arg-type] # paho: or bytearray

    def commit(self) -> bool:
        """Forget what has been taken, if it is enough or has waited long enough; whether it was."""
        now = time.monotonic()
        if len(self._rows) < ROWS and now - self._committed < SECONDS and len(self._rows) < self._left:
            return False
        self._left -= len(self._rows)
        self._rows.clear()
        self._committed = now
        return True

    @property
    def done(self) -> bool:
        """Whether all have come."""
        return self._left <= 0


def build_topics() -> list[str]:
    """Every device of every gateway, one gateway after the other."""
    return [
        f"mt/gateway/d0cf5e{gateway:06x}/device/d0cf5e{gateway:02x}{device:04x}/measurement-decoded/temperature"
        for gateway in range(GATEWAYS)
        for device in range(DEVICES)
    ]


async def receive(port: int, count: int, _: float) -> Metrics:
    """Ours."""
    consumer = BatchConsumer(count)
    held: list[MessageBatch] = []
    async with MqttClient(BrokerAddress(host="127.0.0.1", port=port), "consumer") as link:
        await link.subscribe("mt/#")
        print("ready", flush=True)
        async for batch in link:
            held.append(batch)
            consumer.add(batch.messages)
            if consumer.commit():
                for each in held:
                    each.acknowledge()
                held.clear()
            if consumer.done:
                break
    return consumer.meter.metrics()


def receive_paho(port: int, count: int, _: float) -> Metrics:
    """The same on paho-mqtt with manual acknowledgements."""
    consumer = BatchConsumer(count)
    held: list[MQTTMessage] = []
    client = Client(CallbackAPIVersion.VERSION2, "consumer", clean_session=False, manual_ack=True)

    def on_message(_client: Client, _data: object, message: MQTTMessage) -> None:
        held.append(message)
        consumer.add((message,))
        if consumer.commit():
            for each in held:
                client.ack(each.mid, each.qos)
            held.clear()

    client.on_message = on_message
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.connect("127.0.0.1", port)
    client.subscribe("mt/#", 1)
    while not consumer.done:
        client.loop()
    figures = consumer.meter.metrics()
    client.disconnect()
    return figures


async def publish(port: int, count: int, rate: float) -> Metrics:
    """Publish over a connection for each gateway: at a rate, in pieces of a hundredth of a second."""
    names, share = build_topics(), count // GATEWAYS
    piece = int(rate / GATEWAYS / 100) if rate else 500
    began = asyncio.get_running_loop().time() + 0.5

    async def gateway(number: int) -> None:
        mine = names[number * DEVICES : (number + 1) * DEVICES]
        async with MqttClient(
            BrokerAddress(host="127.0.0.1", port=port), f"gateway-{number}", clean=True
        ) as link:
            for done in range(0, share, piece):
                if rate:
                    due = began + (done // piece + number / GATEWAYS) / 100
                    await asyncio.sleep(due - asyncio.get_running_loop().time())
                size = min(piece, share - done)
                await link.publish_all([Publish(mine[i % DEVICES], PAYLOAD, 1) for i in range(size)])

    meter = MessageMeter(count)
    async with asyncio.TaskGroup() as tasks:
        for number in range(GATEWAYS):
            tasks.create_task(gateway(number))
    return meter.metrics()


async def publish_one_by_one(port: int, count: int, _: float) -> Metrics:
    """Publish each message by a call of its own, a hundred at a time."""
    names = build_topics()
    async with MqttClient(BrokerAddress(host="127.0.0.1", port=port), "publisher", clean=True) as link:
        meter = MessageMeter(count)
        for done in range(0, count, 100):
            await asyncio.gather(*(link.publish(names[(done + i) % 500], PAYLOAD) for i in range(100)))
        return meter.metrics()


def publish_paho(port: int, count: int, _: float) -> Metrics:
    """The same on paho-mqtt, as fast as its window lets it."""
    names = build_topics()
    client = Client(CallbackAPIVersion.VERSION2, "publisher")
    client.max_inflight_messages_set(1000)
    client.connect("127.0.0.1", port)
    client.loop_start()
    meter = MessageMeter(count)
    for done in range(0, count, 500):
        for sent in [client.publish(names[(done + i) % 500], PAYLOAD, 1) for i in range(500)]:
            sent.wait_for_publish()
    figures = meter.metrics()
    client.disconnect()
    client.loop_stop()
    return figures


async def idle(port: int, count: int, _: float) -> Metrics:
    """Open connections that do nothing, and see what memory they take."""
    address, options = BrokerAddress(host="127.0.0.1", port=port), MqttOptions(keep_alive=600, timeout=60)
    links = [MqttClient(address, f"warm-{number}", clean=True, options=options) for number in range(100)]
    await asyncio.gather(*(link.__aenter__() for link in links))  # what is shared by all is there now
    before = _resident()
    links += [MqttClient(address, f"idle-{number}", clean=True, options=options) for number in range(count)]
    for begin in range(100, len(links), 100):
        await asyncio.gather(*(link.__aenter__() for link in links[begin : begin + 100]))
    await asyncio.gather(*(link.subscribe(f"mt/{n}/#") for n, link in enumerate(links)))
    after = _resident()
    connected = sum(link.connection_error is None for link in links) - 100
    cpu = time.process_time()
    await asyncio.sleep(10)
    cpu = time.process_time() - cpu
    await asyncio.gather(*(link.close() for link in links))
    return {"connections": connected, "KiB_each": (after - before) / count / 1024, "cpu_percent": cpu * 10}


def _resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


Role = Callable[[int, int, float], Coroutine[Any, Any, Metrics]]
ASYNC: dict[str, Role] = {
    "receive": receive,
    "publish": publish,
    "publish-one-by-one": publish_one_by_one,
    "idle": idle,
}
BLOCKING = {"receive-paho": receive_paho, "publish-paho": publish_paho}


def main() -> None:
    """Play a role; with `-uvloop` at its end on that loop."""
    role, port, count, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    if role in BLOCKING:
        figures = BLOCKING[role](port, count, rate)
    else:
        run = uvloop.run if role.endswith("-uvloop") else asyncio.run
        figures = run(ASYNC[role.removesuffix("-uvloop")](port, count, rate))
    print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
