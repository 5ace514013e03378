"""The publishing ends of `bench.gateway`, each a process with a CPU time of its own.

python -m bench.gateway_programs paho PORT COUNT
python -m bench.gateway_programs fleet PORT GATEWAYS DEVICES RATE SECONDS

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

from meshfleet.cli.file_limits import require_connections
from meshfleet.emulator import (
    EmulatedFleet,
    EmulatorSettings,
    GatewayEmulator,
    ReportRatePace,
    SimulatedClock,
    Site,
    generate_site,
)
from meshfleet.mqtt.client import BrokerAddress, MqttOptions, run_program
from meshfleet.protocol.ids import Mac

Metrics = dict[str, float]

WARM_UP_SECONDS = 61.0
"""Simulated seconds that pass before anything is measured: in its first minute every device introduces
itself with all its properties, which are the cheapest of reports."""


def paho(port: int, count: int) -> Metrics:
    """Publish ready-made reports, one after the other."""
    messages = GatewayEmulator(*_build_gateway(0), SimulatedClock(1_790_000_000_000)).advance(WARM_UP_SECONDS)
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


async def fleet(port: int, gateways: int, devices: int, rate: int, seconds: int) -> Metrics:
    """Run a fleet at a rate; measured once all are connected."""
    clock = SimulatedClock(0)
    async with httpx.AsyncClient() as http:
        some = EmulatedFleet(ReportRatePace(clock, rate), http=http, options=MqttOptions())
        for n in range(gateways):
            gateway = GatewayEmulator(*_build_gateway(n, devices), clock)
            gateway.advance(WARM_UP_SECONDS)
            some.add(gateway, BrokerAddress(host="127.0.0.1", port=port))
        running = asyncio.create_task(some.run())
        await some.all_connected.wait()
        cpu, wall, made = time.process_time(), time.monotonic(), some.report_count
        await asyncio.sleep(seconds)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        figures = _figures(cpu, wall, some.report_count - made)
        figures["connected"] = sum(uplink.is_connected for uplink in some.uplinks)
        figures["dropped"] = sum(uplink.dropped for uplink in some.uplinks)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return figures


def _build_gateway(n: int, devices: int = 50) -> tuple[EmulatorSettings, Site]:
    mac = Mac(f"{0x02005E000000 + n:012x}")
    return EmulatorSettings(mac=mac), generate_site(mac, devices=devices, seed=1)


def _figures(cpu: float, wall: float, count: int) -> Metrics:
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
        require_connections(given[1])
        figures = run_program(fleet(*given))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
