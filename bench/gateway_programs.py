"""Publishers of `bench.gateway`, each in its own process so that its CPU time can be measured.

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
"""Simulated seconds before the measurement: in its first minute every device reports all its properties,
which are the cheapest reports."""


def paho(port: int, count: int) -> Metrics:
    """Publish prepared reports with paho-mqtt."""
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
    metrics = _build_metrics(time.process_time() - cpu, time.monotonic() - wall, count)
    client.disconnect()
    return metrics


async def fleet(port: int, gateways: int, devices: int, rate: int, seconds: int) -> Metrics:
    """Run a fleet at a fixed rate, and measure it once all gateways are connected."""
    clock = SimulatedClock(0)
    async with httpx.AsyncClient() as http:
        emulated_fleet = EmulatedFleet(ReportRatePace(clock, rate), http=http, options=MqttOptions())
        for n in range(gateways):
            gateway = GatewayEmulator(*_build_gateway(n, devices), clock)
            gateway.advance(WARM_UP_SECONDS)
            emulated_fleet.add(gateway, BrokerAddress(host="127.0.0.1", port=port))
        fleet_task = asyncio.create_task(emulated_fleet.run())
        await emulated_fleet.all_connected.wait()
        cpu, wall, reports_before = time.process_time(), time.monotonic(), emulated_fleet.report_count
        await asyncio.sleep(seconds)
        cpu, wall = time.process_time() - cpu, time.monotonic() - wall
        metrics = _build_metrics(cpu, wall, emulated_fleet.report_count - reports_before)
        metrics["connected"] = sum(uplink.is_connected for uplink in emulated_fleet.uplinks)
        metrics["dropped"] = sum(uplink.dropped for uplink in emulated_fleet.uplinks)
        fleet_task.cancel()
        with suppress(asyncio.CancelledError):
            await fleet_task
    return metrics


def _build_gateway(n: int, devices: int = 50) -> tuple[EmulatorSettings, Site]:
    mac = Mac(f"{0x02005E000000 + n:012x}")
    return EmulatorSettings(mac=mac), generate_site(mac, devices=devices, seed=1)


def _build_metrics(cpu: float, wall: float, count: int) -> Metrics:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "cpu_us": round(cpu / count * 1e6, 2),
        "per_s": round(count / wall),
        "MiB": round(peak),
    }


def main() -> None:
    """Run the publisher named by the first argument."""
    role, *arguments = sys.argv[1:]
    numbers = [int(each) for each in arguments]
    if role == "paho":
        metrics = paho(*numbers)
    else:
        require_connections(numbers[1])
        metrics = run_program(fleet(*numbers))
    print(json.dumps(metrics))


if __name__ == "__main__":
    main()
