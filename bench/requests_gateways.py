"""Gateways of `bench.requests`, all in one process.

python -m bench.requests_gateways emulated PORT GATEWAYS DEVICES
python -m bench.requests_gateways mute PORT GATEWAYS 0

Emulated gateways are complete. Mute gateways receive requests, send PUBACKs, and never respond. Both print
"ready" when all are connected, and run until a line arrives on standard input.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import httpx

from bench.broker_clients import gateway_mac
from meshfleet.emulator import (
    EmulatedFleet,
    EmulatorSettings,
    GatewayEmulator,
    RealTimePace,
    SimulatedClock,
    generate_site,
)
from meshfleet.mqtt.client import BrokerAddress, MqttClient, MqttOptions, run_program
from meshfleet.protocol.ids import Mac
from meshfleet.protocol.topics import TopicCodec


async def run_emulated(port: int, gateways: int, devices: int) -> None:
    """Run emulated gateways with devices."""
    clock = SimulatedClock(0)
    async with httpx.AsyncClient() as http:
        fleet = EmulatedFleet(RealTimePace(clock), http=http, options=MqttOptions())
        for mac in map(Mac, map(gateway_mac, range(gateways))):
            fleet.add(
                GatewayEmulator(
                    EmulatorSettings(mac=mac), generate_site(mac, devices=devices, seed=1), clock
                ),
                _broker_address(port, mac),
            )
        fleet_task = asyncio.create_task(fleet.run())
        await fleet.all_connected.wait()
        await _wait_for_stop()
        fleet_task.cancel()
        await asyncio.wait({fleet_task})


async def run_unresponsive(port: int, gateways: int, _devices: int) -> None:
    """Run gateways that never respond."""
    async with asyncio.TaskGroup() as tasks:
        ready = [asyncio.Event() for _ in range(gateways)]
        links = [tasks.create_task(_receive(port, Mac(gateway_mac(n)), ready[n])) for n in range(gateways)]
        for each in ready:
            await each.wait()
        await _wait_for_stop()
        for link in links:
            link.cancel()


async def _receive(port: int, mac: Mac, ready: asyncio.Event) -> None:
    async with MqttClient(_broker_address(port, mac), mac, options=MqttOptions(keep_alive=600)) as link:
        await link.subscribe(TopicCodec().request_filter(mac))
        ready.set()
        async for batch in link:
            batch.acknowledge()


async def _wait_for_stop() -> None:
    print("ready", flush=True)
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(
        target=lambda: (sys.stdin.readline(), loop.call_soon_threadsafe(stop_requested.set)), daemon=True
    ).start()
    await stop_requested.wait()


def _broker_address(port: int, mac: Mac) -> BrokerAddress:
    return BrokerAddress(host="127.0.0.1", port=port, user=mac, password=f"secret-{mac}")


def main() -> None:
    """Run the gateways of the role named on the command line."""
    role, *numbers = sys.argv[1:]
    run_program((run_emulated if role == "emulated" else run_unresponsive)(*map(int, numbers)))


if __name__ == "__main__":
    main()
