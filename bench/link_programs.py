"""Publishers and receivers of `bench.link`, each in its own process so that its CPU time can be measured.

python -m bench.link_programs ROLE PORT COUNT RATE      prints one JSON object; RATE 0 is full speed
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
"""Number of reports, and seconds, after which a consumer commits and acknowledges."""

Metrics = dict[str, float]


class MessageMeter:
    """Meter of CPU time per message, started at its creation."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._cpu, self._wall = time.process_time(), time.monotonic()

    def metrics(self) -> Metrics:
        """Return the CPU time per message, and the messages per second."""
        cpu, wall = time.process_time() - self._cpu, time.monotonic() - self._wall
        return {"cpu_us": cpu / self._count * 1e6, "per_s": self._count / wall}


class BatchConsumer:
    """Consumer that decodes topic and payload of each report, and drops them at the commit."""

    def __init__(self, count: int) -> None:
        self._parse: Callable[[str], Any] = TopicCodec().parse
        self._rows: list[tuple[Any, Any]] = []
        self._count = self._remaining = count
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
            append((topic, REPORT_DECODERS[topic.kind](message.payload)))  # type: ignore[arg-type] # paho may give a bytearray

    def commit(self) -> bool:
        """Drop the decoded reports if they are enough or old enough. Return whether that was so."""
        now = time.monotonic()
        if len(self._rows) < ROWS and now - self._committed < SECONDS and len(self._rows) < self._remaining:
            return False
        self._remaining -= len(self._rows)
        self._rows.clear()
        self._committed = now
        return True

    @property
    def done(self) -> bool:
        """Whether all reports were received."""
        return self._remaining <= 0


def build_topics() -> list[str]:
    """Return the topics of all devices, gateway by gateway."""
    return [
        f"mt/gateway/d0cf5e{gateway:06x}/device/d0cf5e{gateway:02x}{device:04x}/measurement-decoded/temperature"
        for gateway in range(GATEWAYS)
        for device in range(DEVICES)
    ]


async def receive(port: int, count: int, _: float) -> Metrics:
    """Receive with the project's MQTT client."""
    consumer = BatchConsumer(count)
    unacknowledged: list[MessageBatch] = []
    async with MqttClient(BrokerAddress(host="127.0.0.1", port=port), "consumer") as link:
        await link.subscribe("mt/#")
        print("ready", flush=True)
        async for batch in link:
            unacknowledged.append(batch)
            consumer.add(batch.messages)
            if consumer.commit():
                for each in unacknowledged:
                    each.acknowledge()
                unacknowledged.clear()
            if consumer.done:
                break
    return consumer.meter.metrics()


def receive_paho(port: int, count: int, _: float) -> Metrics:
    """Receive with paho-mqtt and manual acknowledgments."""
    consumer = BatchConsumer(count)
    unacknowledged: list[MQTTMessage] = []
    client = Client(CallbackAPIVersion.VERSION2, "consumer", clean_session=False, manual_ack=True)

    def on_message(_client: Client, _data: object, message: MQTTMessage) -> None:
        unacknowledged.append(message)
        consumer.add((message,))
        if consumer.commit():
            for each in unacknowledged:
                client.ack(each.mid, each.qos)
            unacknowledged.clear()

    client.on_message = on_message
    client.on_subscribe = lambda *_: print("ready", flush=True)
    client.connect("127.0.0.1", port)
    client.subscribe("mt/#", 1)
    while not consumer.done:
        client.loop()
    metrics = consumer.meter.metrics()
    client.disconnect()
    return metrics


async def publish(port: int, count: int, rate: float) -> Metrics:
    """Publish over one connection per gateway; with a rate, in chunks of a hundredth of a second."""
    names, share = build_topics(), count // GATEWAYS
    chunk = int(rate / GATEWAYS / 100) if rate else 500
    start = asyncio.get_running_loop().time() + 0.5

    async def publish_for_gateway(number: int) -> None:
        topics = names[number * DEVICES : (number + 1) * DEVICES]
        async with MqttClient(
            BrokerAddress(host="127.0.0.1", port=port), f"gateway-{number}", clean=True
        ) as link:
            for done in range(0, share, chunk):
                if rate:
                    due = start + (done // chunk + number / GATEWAYS) / 100
                    await asyncio.sleep(due - asyncio.get_running_loop().time())
                size = min(chunk, share - done)
                await link.publish_all([Publish(topics[i % DEVICES], PAYLOAD, 1) for i in range(size)])

    meter = MessageMeter(count)
    async with asyncio.TaskGroup() as tasks:
        for number in range(GATEWAYS):
            tasks.create_task(publish_for_gateway(number))
    return meter.metrics()


async def publish_one_by_one(port: int, count: int, _: float) -> Metrics:
    """Publish each message with its own call, a hundred concurrently."""
    names = build_topics()
    async with MqttClient(BrokerAddress(host="127.0.0.1", port=port), "publisher", clean=True) as link:
        meter = MessageMeter(count)
        for done in range(0, count, 100):
            await asyncio.gather(*(link.publish(names[(done + i) % 500], PAYLOAD) for i in range(100)))
        return meter.metrics()


def publish_paho(port: int, count: int, _: float) -> Metrics:
    """Publish with paho-mqtt, as fast as its in-flight window allows."""
    names = build_topics()
    client = Client(CallbackAPIVersion.VERSION2, "publisher")
    client.max_inflight_messages_set(1000)
    client.connect("127.0.0.1", port)
    client.loop_start()
    meter = MessageMeter(count)
    for done in range(0, count, 500):
        for sent in [client.publish(names[(done + i) % 500], PAYLOAD, 1) for i in range(500)]:
            sent.wait_for_publish()
    metrics = meter.metrics()
    client.disconnect()
    client.loop_stop()
    return metrics


async def idle(port: int, count: int, _: float) -> Metrics:
    """Open idle connections, and measure their memory."""
    address, options = BrokerAddress(host="127.0.0.1", port=port), MqttOptions(keep_alive=600, timeout=60)
    links = [MqttClient(address, f"warm-{number}", clean=True, options=options) for number in range(100)]
    await asyncio.gather(*(link.__aenter__() for link in links))  # shared memory is allocated now
    before = _resident_bytes()
    links += [MqttClient(address, f"idle-{number}", clean=True, options=options) for number in range(count)]
    for begin in range(100, len(links), 100):
        await asyncio.gather(*(link.__aenter__() for link in links[begin : begin + 100]))
    await asyncio.gather(*(link.subscribe(f"mt/{n}/#") for n, link in enumerate(links)))
    after = _resident_bytes()
    connected = sum(link.connection_error is None for link in links) - 100
    cpu = time.process_time()
    await asyncio.sleep(10)
    cpu = time.process_time() - cpu
    await asyncio.gather(*(link.close() for link in links))
    return {"connections": connected, "KiB_each": (after - before) / count / 1024, "cpu_percent": cpu * 10}


def _resident_bytes() -> int:
    """Return the resident memory of this process in bytes."""
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
    """Run the role named on the command line; with the suffix `-uvloop`, on uvloop."""
    role, port, count, rate = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    if role in BLOCKING:
        metrics = BLOCKING[role](port, count, rate)
    else:
        run = uvloop.run if role.endswith("-uvloop") else asyncio.run
        metrics = run(ASYNC[role.removesuffix("-uvloop")](port, count, rate))
    print(json.dumps(metrics), flush=True)


if __name__ == "__main__":
    main()
