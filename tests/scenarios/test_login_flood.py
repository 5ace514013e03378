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

from meshfleet.mqtt.codec.packets import Connack, ConnectReturnCode
from meshfleet.rest import LOGIN_PATH, Role
from tests.cli.programs import TEST_TIMEOUT
from tests.mqtt.broker.raw_client import RawClient
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.servers import NO_TRUSTED_AUTHORITIES
from tests.service.embedded_broker.running_broker import build_connect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from tests.service.embedded_broker.mqtt_accounts import Credentials

pytestmark = [pytest.mark.anyio, pytest.mark.part("long")]

ROOT = Path(__file__).parent.parent.parent
ELSEWHERE = "127.0.0.2"
"""The address of those who have valid credentials."""

RATE = 1700
SECONDS = 6
LIMIT = 5
"""Connections that may fail per second. Even a slow machine would answer many more."""


async def log_in_by_mqtt(service: ServiceProcess, who: Credentials) -> None:
    place = service.mqtt["mqtt"]
    client = RawClient(*await asyncio.open_connection(*place, local_addr=(ELSEWHERE, 0)))
    client.send(build_connect(who))
    assert (await client.expect(Connack)).code == ConnectReturnCode.ACCEPTED
    await client.close()


async def log_in_by_rest(service: ServiceProcess, who: Credentials) -> None:
    transport = httpx.AsyncHTTPTransport(local_address=ELSEWHERE, verify=NO_TRUSTED_AUTHORITIES)
    async with httpx.AsyncClient(base_url=service.url, transport=transport, timeout=TEST_TIMEOUT) as client:
        answer = await client.post(LOGIN_PATH, json={"username": who.user, "password": who.password})
    assert answer.status_code == 200, answer.text


async def measure(logins: Mapping[str, Callable[[], Awaitable[None]]]) -> dict[str, float]:
    """Log in in every way, one after the other. Return how many milliseconds each took."""
    took = {}
    for name, log_in in logins.items():
        began = time.perf_counter()
        await log_in()
        took[name] = (time.perf_counter() - began) * 1000
    return took


def print_durations(what: str, taken: list[dict[str, float]]) -> None:
    for name in taken[0]:
        times = sorted(each[name] for each in taken)
        middle, late, most = statistics.median(times), times[int(len(times) * 0.95)], times[-1]
        figures = f"median {middle:.1f} ms, 95 % {late:.1f} ms, most {most:.1f} ms"
        print(f"{what}: {len(times)} x {name}: {figures}")  # noqa: T201 # read with `pytest -s`


@pytest.mark.rule("broker-29")
async def test_others_log_in_while_a_flood_without_valid_credentials_is_turned_away(tmp_path: Path) -> None:
    with ServiceProcess(
        tmp_path, *loopback_options("--mqtt"), "--limits-failed-connections", str(LIMIT)
    ) as service:
        gateway, person = service.claim("02005e000001"), service.add_user("vera", Role.VIEWER)
        logins = {
            "gateway": lambda: log_in_by_mqtt(service, gateway),
            "person (MQTT)": lambda: log_in_by_mqtt(service, person),
            "person (REST)": lambda: log_in_by_rest(service, person),
        }
        print_durations("before", [await measure(logins) for _ in range(20)])
        flood = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.scenarios.login_flood"),
            *map(str, (service.mqtt["mqtt"].port, RATE, RATE * SECONDS)),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        ending = asyncio.create_task(flood.communicate())
        taken = []
        while not ending.done():  # each login is checked: all of them succeed
            taken.append(await measure(logins))
        told = json.loads((await ending)[0])
        print_durations("during", taken)
        print(told)  # noqa: T201 # read with `pytest -s`
        assert flood.returncode == 0
        assert told["unread"] + told["answered"] == RATE * SECONDS
        # A bucket that starts full. Connections that are under way at the end of a second are counted later,
        # and no count goes below zero: in the worst case each of the two allows as many once more.
        assert told["answered"] <= 3 * LIMIT * (told["seconds"] + 1)
        assert service.is_ready()
        assert service.stop()[0] == 0
