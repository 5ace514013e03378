"""The publishing ends of `bench.gateway`, each a process with a CPU time of its own.

python -m bench.gateway_ends paho PORT COUNT
python -m bench.gateway_ends fleet PORT GATEWAYS DEVICES RATE SECONDS

Both print one JSON object.
"""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from contextlib import suppress
from itertools import cycle, islice

import httpx
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from meshfleet.cli.connections import allow_connections
from meshfleet.gateway import ByRate, Clock, Fleet, Gateway, Settings, Site, generate
from meshfleet.link import Address, Options, run
from meshfleet.wire.ids import Mac

Figures = dict[str, float]

SETTLED = 61.0
"""Simulated seconds that pass before anything is measured: in its first minute every device introduces
itself with all its properties, which are the cheapest of reports."""


def paho(port: int, count: int) -> Figures:
    """Publish ready-made reports, one after the other."""
    messages = Gateway(*_one(0), Clock(1_790_000_000_000)).advance(SETTLED)
    client = Client(CallbackAPIVersion.VERSION2)
    client.max_inflight_messages_set(1000)
    client.connect("127.0.0.1", port)
    client.loop_start()
    cpu, wall = time.process_time(), time.monotonic()
    sent = [
        client.publish(message.topic, message.payload, qos=1) for message in islice(cycle(messages), count)
    ]
    sent[-1].wait_for_publish()
    figures = _figures(time.process_time() - cpu, time.monotonic() - wall, count)
    client.disconnect()
    return figures


async def fleet(port: int, gateways: int, devices: int, rate: int, seconds: int) -> Figures:
    """Run a fleet at a rate; measured once all are connected."""
    clock = Clock(0)
    async with httpx.AsyncClient() as http:
        some = Fleet(ByRate(clock, rate), http=http, options=Options())
        for n in range(gateways):
            gateway = Gateway(*_one(n, devices), clock)
            gateway.advance(SETTLED)
            some.add(gateway, Address(host="127.0.0.1", port=port))
        running = asyncio.create_task(some.run())
        await some.is_complete.wait()
        cpu, wall, made = time.process_time(), time.monotonic(), some.reports
        await asyncio.sleep(seconds)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        figures = _figures(cpu, wall, some.reports - made)
        figures["connected"] = sum(uplink.is_connected for uplink in some.uplinks)
        figures["dropped"] = sum(uplink.dropped for uplink in some.uplinks)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return figures


def _one(n: int, devices: int = 50) -> tuple[Settings, Site]:
    mac = Mac(f"{0x02005E000000 + n:012x}")
    return Settings(mac=mac), generate(mac, devices=devices, seed=1)


def _figures(cpu: float, wall: float, count: int) -> Figures:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "cpu_us": round(cpu / count * 1e6, 2),
        "per_s": round(count / wall),
        "MiB": round(peak),
    }


def main() -> None:
    """Run one end."""
    role, *numbers = sys.argv[1:]
    given = [int(number) for number in numbers]
    if role == "paho":
        figures = paho(*given)
    else:
        allow_connections(given[1])
        figures = run(fleet(*given))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
