"""Client of `bench.requests`: reads at a fixed rate, over REST or directly over MQTT.

python -m bench.requests_load rest PORT TOKEN RATE SECONDS < DEVICES
python -m bench.requests_load mqtt PORT PASSWORD RATE SECONDS < DEVICES

Each line of DEVICES is the MAC of a gateway, a space, and the MAC of a device. A request is sent at its due
time without waiting for others; its latency is the time since then minus the response time reported by the
gateway. Prints one JSON object. The client is minimal, so that its own cost is not measured.
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
"""HTTP connections of the client."""

_TIMEOUT: Final = 30.0


class Target(NamedTuple):
    """Device to read, and its gateway."""

    gateway: str
    device: str


class RestRequester:
    """HTTP connections to the service, each for one request at a time."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._free: asyncio.LifoQueue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.LifoQueue()

    async def connect(self, port: int) -> None:
        """Open the connections."""
        for _ in range(_CONNECTIONS):
            self._free.put_nowait(await asyncio.open_connection("127.0.0.1", port))

    async def read_model(self, target: Target) -> float:
        """Read the model of a device, and return the response time reported by the gateway."""
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
        response = await reader.readexactly(length)
        self._free.put_nowait(connection)
        if not head.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{head!r} {response!r}")
        return _get_response_time(json.loads(response))


class MqttRequester(asyncio.Protocol):
    """Connection to the broker for all requests."""

    def __init__(self) -> None:
        self._parser = PacketParser(FROM_SERVERS)
        self._transport: asyncio.Transport | None = None
        self._waiting: dict[str, asyncio.Future[Any]] = {}
        self._handshake: asyncio.Queue[object] = asyncio.Queue()
        self._number = 0

    async def connect(self, port: int, password: str) -> None:
        """Connect, and subscribe to all responses."""
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_connection(lambda: self, "127.0.0.1", port)
        self._transport.write(encode_packet(Connect("bench", user="admin", password=password.encode())))
        await self._handshake.get()
        self._transport.write(encode_packet(Subscribe(1, (("mt/gateway/+/response/#", 1),))))
        await self._handshake.get()

    async def read_model(self, target: Target) -> float:
        """Read the model of a device, and return the response time reported by the gateway."""
        self._number += 1
        name = str(self._number)
        response = self._waiting[name] = asyncio.get_running_loop().create_future()
        topic = f"mt/gateway/{target.gateway}/request/{target.device}/read/8000"
        payload = f'{{"id":"{name}"}}'.encode()
        if self._transport is None:
            raise RuntimeError("not connected")
        self._transport.write(encode_packet(Publish(topic, payload, 1, packet_id=self._number % 60_000 + 1)))
        return _get_response_time(await response)

    def data_received(self, data: bytes) -> None:
        """Receive responses, and acknowledge them."""
        replies = []
        for packet in self._parser.feed(data):
            if isinstance(packet, Publish):
                replies.append(encode_packet(Puback(packet.packet_id)))
                response = json.loads(packet.payload)
                self._waiting.pop(response["id"]).set_result(response)
            elif isinstance(packet, Connack | Suback):
                self._handshake.put_nowait(packet)
        if replies and self._transport is not None:
            self._transport.write(b"".join(replies))


def _get_response_time(response: dict[str, Any]) -> float:
    if response["status"]:
        raise RuntimeError(f"a device responded with an error: {response}")
    return float(response["responseTime"])


async def run_paced(
    read_model: Callable[[Target], Awaitable[float]], targets: Iterable[Target], rate: int
) -> list[float]:
    """Send a request to each target at a fixed rate. Return the latencies in milliseconds."""
    begin, loop = time.monotonic(), asyncio.get_running_loop()
    latencies: list[float] = []

    async def measure_request(target: Target, due: float) -> None:
        response_time = await read_model(target)
        latencies.append((time.monotonic() - due) * 1000 - response_time)

    async with asyncio.timeout(None) as timeout, asyncio.TaskGroup() as tasks:
        for number, target in enumerate(targets):
            due = begin + number / rate
            await asyncio.sleep(due - time.monotonic())
            tasks.create_task(measure_request(target, due))
        timeout.reschedule(loop.time() + _TIMEOUT)
    return latencies


async def _main() -> dict[str, float]:
    interface, port, secret, rate, seconds = sys.argv[1:]
    targets = [Target(*line.split()) for line in sys.stdin.read().splitlines()]
    read_model: Callable[[Target], Awaitable[float]]
    if interface == "rest":
        rest = RestRequester(secret)
        await rest.connect(int(port))
        read_model = rest.read_model
    else:
        mqtt = MqttRequester()
        await mqtt.connect(int(port), secret)
        read_model = mqtt.read_model
    await run_paced(read_model, islice(cycle(targets), len(targets)), int(rate))
    latencies = sorted(
        await run_paced(read_model, islice(cycle(targets), int(rate) * int(seconds)), int(rate))
    )
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "count": len(latencies),
        "ms_p50": statistics.median(latencies),
        "ms_p99": latencies[len(latencies) * 99 // 100],
        "ms_max": latencies[-1],
        "load_cpu_us": (usage.ru_utime + usage.ru_stime) / len(latencies) * 1e6,
    }


if __name__ == "__main__":
    print(json.dumps(run_program(_main())))
