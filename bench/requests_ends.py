"""The gateways of `bench.requests`, all of them one process.

python -m bench.requests_ends emulated PORT GATEWAYS DEVICES
python -m bench.requests_ends mute PORT GATEWAYS 0

Emulated ones are complete. Mute ones take requests, acknowledge them as MQTT asks, and never answer. Both
print "ready" when all are connected, and run until a line comes in.
"""

from __future__ import annotations

import asyncio
import sys
import threading

import httpx

from bench.broker_clients import gateway
from meshfleet.gateway import ByClock, Clock, Fleet, Gateway, Settings, generate
from meshfleet.link import Address, Link, Options, run
from meshfleet.wire.ids import Mac
from meshfleet.wire.topics import Topics


async def emulated(port: int, gateways: int, devices: int) -> None:
    """Run gateways with devices."""
    clock = Clock(0)
    async with httpx.AsyncClient() as http:
        fleet = Fleet(ByClock(clock), http=http, options=Options())
        for mac in map(Mac, map(gateway, range(gateways))):
            fleet.add(
                Gateway(Settings(mac=mac), generate(mac, devices=devices, seed=1), clock), _where(port, mac)
            )
        running = asyncio.create_task(fleet.run())
        await fleet.is_complete.wait()
        await _until_told()
        running.cancel()
        await asyncio.wait({running})


async def mute(port: int, gateways: int, _devices: int) -> None:
    """Connect gateways that never say a word."""
    async with asyncio.TaskGroup() as tasks:
        ready = [asyncio.Event() for _ in range(gateways)]
        links = [tasks.create_task(_take(port, Mac(gateway(n)), ready[n])) for n in range(gateways)]
        for each in ready:
            await each.wait()
        await _until_told()
        for link in links:
            link.cancel()


async def _take(port: int, mac: Mac, ready: asyncio.Event) -> None:
    async with Link(_where(port, mac), mac, options=Options(keep_alive=600)) as link:
        await link.subscribe(Topics().requests(mac))
        ready.set()
        async for batch in link:
            batch.acknowledge()


async def _until_told() -> None:
    print("ready", flush=True)
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    threading.Thread(
        target=lambda: (sys.stdin.readline(), loop.call_soon_threadsafe(told.set)), daemon=True
    ).start()
    await told.wait()


def _where(port: int, mac: Mac) -> Address:
    return Address(host="127.0.0.1", port=port, user=mac, password=f"secret-{mac}")


def main() -> None:
    """Run one kind of them."""
    role, *numbers = sys.argv[1:]
    run((emulated if role == "emulated" else mute)(*map(int, numbers)))


if __name__ == "__main__":
    main()
