"""A flood of connections without valid credentials does not keep others from logging in."""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from meshfleet.wire.mqtt.packets import Accept, Connack
from meshfleet.wire.rest import LOGIN, Role
from tests.broker.raw import Raw
from tests.cli.outside import PATIENCE
from tests.scenarios.serving import Service, loopback
from tests.servers import TRUSTING_NOBODY
from tests.service.mqtt.site import connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tests.service.mqtt.house import Credentials

pytestmark = [pytest.mark.anyio, pytest.mark.part("long")]

ROOT = Path(__file__).parent.parent.parent
ELSEWHERE = "127.0.0.2"
"""The address of those who have valid credentials."""

RATE = 1700
SECONDS = 6
LIMIT = 5
"""Connections that may fail per second. Even a slow machine would answer many more."""


async def log_in_by_mqtt(service: Service, who: Credentials) -> None:
    place = service.mqtt["mqtt"]
    client = Raw(*await asyncio.open_connection(*place, local_addr=(ELSEWHERE, 0)))
    client.send(connect(who))
    assert (await client.expect(Connack)).code == Accept.ACCEPTED
    await client.close()


async def log_in_by_rest(service: Service, who: Credentials) -> None:
    transport = httpx.AsyncHTTPTransport(local_address=ELSEWHERE, verify=TRUSTING_NOBODY)
    async with httpx.AsyncClient(base_url=service.url, transport=transport, timeout=PATIENCE) as client:
        answer = await client.post(LOGIN, json={"username": who.user, "password": who.password})
    assert answer.status_code == 200, answer.text


async def measure(logins: Mapping[str, Callable[[], Awaitable[None]]]) -> dict[str, float]:
    """Log in in every way, one after the other. Return how many milliseconds each took."""
    took = {}
    for name, log_in in logins.items():
        began = time.perf_counter()
        await log_in()
        took[name] = (time.perf_counter() - began) * 1000
    return took


def show(what: str, taken: list[dict[str, float]]) -> None:
    for name in taken[0]:
        times = sorted(each[name] for each in taken)
        middle, late, most = statistics.median(times), times[int(len(times) * 0.95)], times[-1]
        figures = f"median {middle:.1f} ms, 95 % {late:.1f} ms, most {most:.1f} ms"
        print(f"{what}: {len(times)} x {name}: {figures}")  # noqa: T201 # read with `pytest -s`


@pytest.mark.rule("broker-29")
async def test_others_log_in_while_a_flood_without_valid_credentials_is_turned_away(tmp_path: Path) -> None:
    with Service(tmp_path, *loopback("--mqtt"), "--limits-failed-connections", str(LIMIT)) as service:
        gateway, person = service.claim("02005e000001"), service.person("vera", Role.VIEWER)
        logins = {
            "gateway": lambda: log_in_by_mqtt(service, gateway),
            "person (MQTT)": lambda: log_in_by_mqtt(service, person),
            "person (REST)": lambda: log_in_by_rest(service, person),
        }
        show("before", [await measure(logins) for _ in range(20)])
        flood = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.scenarios.flood"),
            *map(str, (service.mqtt["mqtt"].port, RATE, RATE * SECONDS)),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        ending = asyncio.create_task(flood.communicate())
        taken = []
        while not ending.done():  # each login is checked: all of them succeed
            taken.append(await measure(logins))
        told = json.loads((await ending)[0])
        show("during", taken)
        print(told)  # noqa: T201 # read with `pytest -s`
        assert flood.returncode == 0
        assert told["unread"] + told["answered"] == RATE * SECONDS
        # A bucket that starts full. Connections that are under way at the end of a second are counted later,
        # and no count goes below zero: in the worst case each of the two allows as many once more.
        assert told["answered"] <= 3 * LIMIT * (told["seconds"] + 1)
        assert service.is_ready()
        assert service.stop()[0] == 0
