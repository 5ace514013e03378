"""The gateways of `bench.jobs`, all of them one process: they report at a pace, and answer what jobs ask.

python -m bench.jobs_gateways PORT GATEWAYS DEVICES RATE

DEVICES of each gateway report, RATE reports a second come from all together, each at QoS 1. Updates begin at
once and never end: their transfers are slow. It prints "ready" when all are connected. After a line `begin`
it counts anew, after a line `look` it counts on; both print what came since the last `begin`, as one JSON
object.
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

_PERCENT: Final = 10.0
"""Seconds in which a transfer comes on by one percent."""

_VERSION: Final = "2.4.0"
_PLACE: Final = 4
"""Where the device stands in a topic; operation and identifier are behind it."""

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, Any]).decode


class GatewayStats(msgspec.Struct):
    """What gateways have seen since they were told to begin."""

    acknowledged: int
    ms_p50: float
    ms_p99: float
    ms_max: float
    """From a report to its acknowledgement; the longest one may still be on its way."""
    starts: int
    """Commands to begin an update."""
    starts_seconds: float
    """From the first of them to the last."""
    polls: int
    """Questions how far an update is."""
    others: int
    """Requests of which these gateways know nothing."""
    cpu: float
    """Seconds of CPU time of all gateways."""


class GatewayStatsCollector:
    """What all gateways see."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Count anew."""
        self.lags: list[float] = []
        self.starts: list[float] = []
        self.polls = self.others = 0
        self._cpu = time.process_time()

    def snapshot(self, waiting: float) -> GatewayStats:
        """All together; `waiting` is for how long the oldest report waits that is not acknowledged."""
        lags = sorted([*self.lags, waiting])
        return GatewayStats(
            acknowledged=len(self.lags),
            ms_p50=lags[len(lags) // 2] * 1e3,
            ms_p99=lags[len(lags) * 99 // 100] * 1e3,
            ms_max=lags[-1] * 1e3,
            starts=len(self.starts),
            starts_seconds=self.starts[-1] - self.starts[0] if self.starts else 0.0,
            polls=self.polls,
            others=self.others,
            cpu=time.process_time() - self._cpu,
        )


class GatewayConnection(asyncio.Protocol):
    """A gateway that is connected and has subscribed."""

    def __init__(self, number: int, devices: int, notes: GatewayStatsCollector) -> None:
        self._notes = notes
        self._parser = PacketParser(FROM_SERVERS)
        self._transport: asyncio.Transport | None = None
        self._ids = cycle(range(1, len(IDS) + 1))
        self._reports: Sequence[tuple[Report]] = [(each,) for each in build_reports(number, devices)]
        self._reported = 0
        self._on_way: dict[int, float] = {}
        """When reports left that are not acknowledged."""
        self._updates: dict[str, tuple[float, dict[str, Any]]] = {}
        """When the update of a device began, and to which image."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the way back."""
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Nobody may go before the end."""
        raise RuntimeError("the broker has closed the connection of a gateway") from exc

    def data_received(self, data: bytes) -> None:
        """Take acknowledgements, and answer requests."""
        now, replies = time.monotonic(), list[bytes]()
        for packet in self._parser.feed(data):
            if isinstance(packet, Publish):
                replies.append(encode_packet(Puback(packet.packet_id)))
                replies += self._answer(packet, now)
            elif isinstance(packet, Puback) and (sent := self._on_way.pop(packet.packet_id, None)):
                self._notes.lags.append(now - sent)
        self._write(b"".join(replies))

    def report(self, now: bytes) -> None:
        """Send the next report."""
        turn, place = divmod(self._reported, len(self._reports))
        number = next(self._ids)
        self._on_way[number] = time.monotonic()
        self._write(encode_reports(self._reports[place], (IDS[number - 1],), turn=turn, time=now))
        self._reported += 1

    def waiting(self) -> float:
        """For how long the oldest report waits that is not acknowledged."""
        return time.monotonic() - min(self._on_way.values()) if self._on_way else 0.0

    def _answer(self, packet: Publish, now: float) -> list[bytes]:
        device, operation, *identifier = packet.topic.split("/")[_PLACE:]
        asked = _decode(packet.payload)
        if "id" not in asked:  # the acknowledgement of a sample
            return []
        answer = self._carry_out(device, "/".join((operation, *identifier)), asked.get("value"), now)
        payload = _encode({"time": format_now().decode(), "id": asked["id"], **answer})
        topic = packet.topic.replace("/request/", "/response/", 1)
        return [encode_packet(Publish(topic, payload, 1, packet_id=next(self._ids)))]

    def _carry_out(self, device: str, what: str, value: Any, now: float) -> Mapping[str, Any]:
        match what:
            case Operation.APIVERSION:
                return {"status": Status.OK, "version": _VERSION}
            case "write-decoded/start-firmware-update":
                self._notes.starts.append(now)
                self._updates[device] = (now, {name: value[name] for name in ("modelNumber", "version")})
                return {"status": Status.OK}
            case "read-decoded/firmware-update-state" if device in self._updates:
                self._notes.polls += 1
                since, image = self._updates[device]
                percent = min(int((now - since) / _PERCENT), 99)
                told = {"state": "transferring", "percent": percent, "error": 0, **image}
                return {"status": Status.OK, "value": told}
            case "write-decoded/firmware-update-control":
                return {"status": Status.OK}
            case _:
                self._notes.others += 1
                return {"status": Status.FAILED}

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None:
            self._transport.write(data)


async def _report(ends: Sequence[GatewayConnection], rate: int) -> None:
    """Report for ever, one gateway after the other."""
    began, sent, turns = time.monotonic(), 0, cycle(ends)
    while True:
        await asyncio.sleep(TICK_SECONDS)
        due, now = int((time.monotonic() - began) * rate), format_now()
        for end in islice(turns, due - sent):
            end.report(now)
        sent = due


async def _serve_commands(ends: Sequence[GatewayConnection], notes: GatewayStatsCollector) -> None:
    """Do as lines say, until there are no more."""
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def read() -> None:
        while line := sys.stdin.readline():
            loop.call_soon_threadsafe(lines.put_nowait, line)

    threading.Thread(target=read, daemon=True).start()
    print("ready", flush=True)
    while True:
        line = await lines.get()
        seen = notes.snapshot(max(end.waiting() for end in ends))
        if line == "begin\n":
            notes.reset()
        print(msgspec.json.encode(seen).decode(), flush=True)


async def _main() -> None:
    port, gateways, devices, rate = map(int, sys.argv[1:])
    names, notes = [gateway_mac(number) for number in range(gateways)], GatewayStatsCollector()
    sockets = connect_all(port, names)
    wanted = (encode_packet(Subscribe(1, ((f"mt/gateway/{name}/request/#", 1),))) for name in names)
    exchange_all(sockets, wanted, answer=encode_packet(Suback(1, (1,))))
    loop, ends = (
        asyncio.get_running_loop(),
        [GatewayConnection(number, devices, notes) for number in range(gateways)],
    )
    for end, each in zip(ends, sockets, strict=True):
        each.settimeout(0)
        await loop.create_connection(lambda end=end: end, sock=each)  # type: ignore[misc] # as it is now
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(_report(ends, rate))
        tasks.create_task(_serve_commands(ends, notes))


if __name__ == "__main__":
    run_program(_main())
