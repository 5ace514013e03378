"""Gateways of `bench.jobs`, all in one process: they report at a fixed rate and respond to requests of jobs.

python -m bench.jobs_gateways PORT GATEWAYS DEVICES RATE

DEVICES of each gateway report, at QoS 1 and with RATE reports per second in total. Updates start at once and
never end: their transfers are slow. It prints "ready" when all are connected. The line `begin` resets the
statistics, the line `look` does not; both print the statistics since the last `begin` as one JSON object.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from itertools import cycle, islice
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from bench.broker_clients import connect_all, exchange_all, gateway_mac
from bench.broker_load import TICK_SECONDS
from bench.ingest_load import format_now
from bench.ingest_reports import IDS, Report, build_reports, encode_reports
from meshfleet.mqtt.client import run_program
from meshfleet.mqtt.codec.decoder import FROM_SERVERS
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import Puback, Publish, Suback, Subscribe
from meshfleet.mqtt.codec.parser import PacketParser
from meshfleet.protocol.codes import Operation, Status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SECONDS_PER_PERCENT: Final = 10.0
"""Seconds of a transfer per percent."""

_VERSION: Final = "2.4.0"
_DEVICE_LEVEL: Final = 4
"""Index of the device in the levels of a topic; operation and identifier follow."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class GatewayStats(msgspec.Struct):
    """Statistics of all gateways since the last reset."""

    acknowledged: int
    ms_p50: float
    ms_p99: float
    ms_max: float
    """Milliseconds from a report to its PUBACK; for the maximum also of a report still unacknowledged."""
    starts: int
    """Requests to start an update."""
    starts_seconds: float
    """Seconds from the first to the last of these requests."""
    polls: int
    """Requests for the progress of an update."""
    others: int
    """Other requests, which these gateways do not support."""
    cpu: float
    """CPU time of all gateways, in seconds."""


class GatewayStatsCollector:
    """Collector of the statistics of all gateways."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Reset the statistics."""
        self.latencies: list[float] = []
        self.starts: list[float] = []
        self.polls = self.others = 0
        self._cpu = time.process_time()

    def snapshot(self, waiting: float) -> GatewayStats:
        """Return the statistics; `waiting` is the age of the oldest unacknowledged report in seconds."""
        latencies = sorted([*self.latencies, waiting])
        return GatewayStats(
            acknowledged=len(self.latencies),
            ms_p50=latencies[len(latencies) // 2] * 1e3,
            ms_p99=latencies[len(latencies) * 99 // 100] * 1e3,
            ms_max=latencies[-1] * 1e3,
            starts=len(self.starts),
            starts_seconds=self.starts[-1] - self.starts[0] if self.starts else 0.0,
            polls=self.polls,
            others=self.others,
            cpu=time.process_time() - self._cpu,
        )


class GatewayConnection(asyncio.Protocol):
    """Connection of a gateway that has subscribed to its requests."""

    def __init__(self, number: int, devices: int, stats: GatewayStatsCollector) -> None:
        self._stats = stats
        self._parser = PacketParser(FROM_SERVERS)
        self._transport: asyncio.Transport | None = None
        self._ids = cycle(range(1, len(IDS) + 1))
        self._reports: Sequence[tuple[Report]] = [(each,) for each in build_reports(number, devices)]
        self._reported = 0
        self._sent_at: dict[int, float] = {}
        """Sending times of unacknowledged reports, by packet id."""
        self._updates: dict[str, tuple[float, dict[str, Any]]] = {}
        """Start time and image of the update of each device."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Raise an error: no connection may close before the end."""
        raise RuntimeError("the broker has closed the connection of a gateway") from exc

    def data_received(self, data: bytes) -> None:
        """Record PUBACKs, and respond to requests."""
        now, replies = time.monotonic(), list[bytes]()
        for packet in self._parser.feed(data):
            if isinstance(packet, Publish):
                replies.append(encode_packet(Puback(packet.packet_id)))
                replies += self._respond(packet, now)
            elif isinstance(packet, Puback) and (sent := self._sent_at.pop(packet.packet_id, None)):
                self._stats.latencies.append(now - sent)
        self._write(b"".join(replies))

    def report(self, now: bytes) -> None:
        """Send the next report."""
        turn, index = divmod(self._reported, len(self._reports))
        number = next(self._ids)
        self._sent_at[number] = time.monotonic()
        self._write(encode_reports(self._reports[index], (IDS[number - 1],), turn=turn, time=now))
        self._reported += 1

    def waiting(self) -> float:
        """Return the age of the oldest unacknowledged report in seconds."""
        return time.monotonic() - min(self._sent_at.values()) if self._sent_at else 0.0

    def _respond(self, packet: Publish, now: float) -> list[bytes]:
        device, operation, *identifier = packet.topic.split("/")[_DEVICE_LEVEL:]
        request = _decode(packet.payload)
        if "id" not in request:  # the ack of a sample
            return []
        response = self._execute(device, "/".join((operation, *identifier)), request.get("value"), now)
        payload = _encode({"time": format_now().decode(), "id": request["id"], **response})
        topic = packet.topic.replace("/request/", "/response/", 1)
        return [encode_packet(Publish(topic, payload, 1, packet_id=next(self._ids)))]

    def _execute(self, device: str, operation: str, value: Any, now: float) -> Mapping[str, Any]:
        match operation:
            case Operation.APIVERSION:
                return {"status": Status.OK, "version": _VERSION}
            case "write-decoded/start-firmware-update":
                self._stats.starts.append(now)
                self._updates[device] = (now, {name: value[name] for name in ("modelNumber", "version")})
                return {"status": Status.OK}
            case "read-decoded/firmware-update-state" if device in self._updates:
                self._stats.polls += 1
                since, image = self._updates[device]
                percent = min(int((now - since) / _SECONDS_PER_PERCENT), 99)
                state = {"state": "transferring", "percent": percent, "error": 0, **image}
                return {"status": Status.OK, "value": state}
            case "write-decoded/firmware-update-control":
                return {"status": Status.OK}
            case _:
                self._stats.others += 1
                return {"status": Status.FAILED}

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)


async def _report(gateways: Sequence[GatewayConnection], rate: int) -> None:
    """Send reports forever, the gateways in turns."""
    started, sent, gateways_in_turn = time.monotonic(), 0, cycle(gateways)
    while True:
        await asyncio.sleep(TICK_SECONDS)
        due, now = int((time.monotonic() - started) * rate), format_now()
        for gateway in islice(gateways_in_turn, due - sent):
            gateway.report(now)
        sent = due


async def _serve_commands(gateways: Sequence[GatewayConnection], stats: GatewayStatsCollector) -> None:
    """Execute the commands on standard input."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        while line := sys.stdin.readline():
            loop.call_soon_threadsafe(lines.put_nowait, line)

    threading.Thread(target=read, daemon=True).start()
    print("ready", flush=True)
    while True:
        line = await lines.get()
        snapshot = stats.snapshot(max(gateway.waiting() for gateway in gateways))
        if line == "begin\n":
            stats.reset()
        print(msgspec.json.encode(snapshot).decode(), flush=True)


async def _main() -> None:
    port, gateways, devices, rate = map(int, sys.argv[1:])
    names, stats = [gateway_mac(number) for number in range(gateways)], GatewayStatsCollector()
    sockets = connect_all(port, names)
    subscriptions = (encode_packet(Subscribe(1, ((f"mt/gateway/{name}/request/#", 1),))) for name in names)
    exchange_all(sockets, subscriptions, answer=encode_packet(Suback(1, (1,))))
    loop, connections = (
        asyncio.get_running_loop(),
        [GatewayConnection(number, devices, stats) for number in range(gateways)],
    )
    for gateway, each in zip(connections, sockets, strict=True):
        each.settimeout(0)
        await loop.create_connection(lambda gateway=gateway: gateway, sock=each)  # type: ignore[misc] # bound early
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_report(connections, rate))
        tasks.create_task(_serve_commands(connections, stats))


if __name__ == "__main__":
    run_program(_main())
