"""Who asks in `bench.requests`: so many reads a second, over REST or straight over MQTT.

python -m bench.requests_load rest PORT TOKEN RATE SECONDS < DEVICES
python -m bench.requests_load mqtt PORT PASSWORD RATE SECONDS < DEVICES

Each line of DEVICES is the MAC of a gateway, a space, and that of a device. A request is due at its moment
whether or not others are answered; what passes from then on is its time, less what the gateway tells that it
took itself. Prints one JSON object. The client is as thin as can be: it must not be what is measured.
"""

from __future__ import annotations

import asyncio
import json
import resource
import statistics
import sys
import time
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from meshfleet.mqtt.client import run_program
from meshfleet.mqtt.codec.decoder import FROM_SERVERS
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Connack, Connect, Puback, Publish, Suback, Subscribe
from meshfleet.mqtt.codec.parser import PacketParser

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

_CONNECTIONS: Final = 64
"""Of a client over HTTP."""

_PATIENCE: Final = 30.0


class Target(NamedTuple):
    """What is asked of whom: a device, through its gateway."""

    gateway: str
    device: str


class RestRequester:
    """Connections to the service, each for one request at a time."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._free: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.LifoQueue()

    async def connect(self, port: int) -> None:
        """Open them."""
        for _ in range(_CONNECTIONS):
            self._free.put_nowait(await asyncio.open_connection("127.0.0.1", port))

    async def read_model(self, target: Target) -> float:
        """Read the model of a device."""
        reader, writer = connection = await self._free.get()
        body = b'{"operation":"read","identifier":"8000"}'
        writer.write(
            f"POST /api/v1/devices/bmac-{target.device}/requests HTTP/1.1\r\nHost: localhost\r\n"
            f"Authorization: Bearer {self._token}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode("ascii")
            + body
        )
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n", 1)[0])
        answer = await reader.readexactly(length)
        self._free.put_nowait(connection)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head!r} {answer!r}")
        return _took(json.loads(answer))


class MqttRequester(asyncio.Protocol):
    """One connection to the broker, for all requests."""

    def __init__(self) -> None:
        self._parser = PacketParser(FROM_SERVERS)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._greeted: asyncio.Queue[object] = asyncio.Queue()
        self._number = 0

    async def connect(self, port: int, password: str) -> None:
        """Come in, and listen to all answers."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", port)
        self._transport.write(encode_packet(Connect("bench", user="admin", password=password.encode())))
        await self._greeted.get()
        self._transport.write(encode_packet(Subscribe(1, (("mt/gateway/+/response/#", 1),))))
        await self._greeted.get()

    async def read_model(self, target: Target) -> float:
        """Read the model of a device."""
        self._number += 1
        name = str(self._number)
        answer = self._waiting[name] = asyncio.get_running_loop().create_future()
        topic = f"mt/gateway/{target.gateway}/request/{target.device}/read/8000"
        payload = f'{{"id":"{name}"}}'.encode()
        if self._transport is None:
            raise RuntimeError("nobody is connected")
        self._transport.write(encode_packet(Publish(topic, payload, 1, packet_id=self._number % 60_000 + 1)))
        return _took(await answer)

    def data_received(self, data: bytes) -> None:
        """Take answers, and acknowledge them."""
        replies = []
        for packet in self._parser.feed(data):
            if isinstance(packet, Publish):
                replies.append(encode_packet(Puback(packet.packet_id)))
                answer = json.loads(packet.payload)
                self._waiting.pop(answer["id"]).set_result(answer)
            elif isinstance(packet, Connack | Suback):
                self._greeted.put_nowait(packet)
        if replies and self._transport is not None:
            self._transport.write(b"".join(replies))


def _took(answer: dict[str, Any]) -> float:
    if answer["status"]:
        raise RuntimeError(f"a device does not answer: {answer}")
    return float(answer["responseTime"])


async def run_paced(
    ask: Callable[[Target], Awaitable[float]], targets: Iterable[Target], rate: int
) -> list[float]:
    """Ask all, each at its moment; gives what passed beyond what gateways took, in milliseconds."""
    begin, loop = time.monotonic(), asyncio.get_running_loop()
    took: list[float] = []

    async def one(target: Target, due: float) -> None:
        gateway_took = await ask(target)
        took.append((time.monotonic() - due) * 1000 - gateway_took)

    async with asyncio.timeout(None) as patience, asyncio.TaskGroup() as tasks:
        for number, target in enumerate(targets):
            due = begin + number / rate
            await asyncio.sleep(due - time.monotonic())
            tasks.create_task(one(target, due))
        patience.reschedule(loop.time() + _PATIENCE)
    return took


async def _main() -> dict[str, float]:
    way, port, secret, rate, seconds = sys.argv[1:]
    targets = [Target(*line.split()) for line in sys.stdin.read().splitlines()]
    ask: Callable[[Target], Awaitable[float]]
    if way == "rest":
        rest = RestRequester(secret)
        await rest.connect(int(port))
        ask = rest.read_model
    else:
        mqtt = MqttRequester()
        await mqtt.connect(int(port), secret)
        ask = mqtt.read_model
    await run_paced(ask, islice(cycle(targets), len(targets)), int(rate))
    took = sorted(await run_paced(ask, islice(cycle(targets), int(rate) * int(seconds)), int(rate)))
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "count": len(took),
        "ms_p50": statistics.median(took),
        "ms_p99": took[len(took) * 99 // 100],
        "ms_max": took[-1],
        "load_cpu_us": (usage.ru_utime + usage.ru_stime) / len(took) * 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(run_program(_main())))
