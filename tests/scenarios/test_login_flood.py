"""Floods of connections without valid credentials, which must not keep other clients from logging in."""

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
from meshfleet.rest.accounts import Role
from meshfleet.rest.paths import LOGIN_PATH
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
OTHER_ADDRESS = "127.0.0.2"
"""Source address of the clients with valid credentials."""

RATE = 1700
SECONDS = 6
LIMIT = 5
"""Failed connections that are allowed per second. Even a slow machine could respond to many more."""


async def log_in_over_mqtt(service: ServiceProcess, credentials: Credentials) -> None:
    address = service.mqtt["mqtt"]
    client = RawClient(*await asyncio.open_connection(*address, local_addr=(OTHER_ADDRESS, 0)))
    client.send(build_connect(credentials))
    assert (await client.expect(Connack)).code == ConnectReturnCode.ACCEPTED
    await client.close()


async def log_in_over_rest(service: ServiceProcess, credentials: Credentials) -> None:
    transport = httpx.AsyncHTTPTransport(local_address=OTHER_ADDRESS, verify=NO_TRUSTED_AUTHORITIES)
    async with httpx.AsyncClient(base_url=service.url, transport=transport, timeout=TEST_TIMEOUT) as client:
        response = await client.post(
            LOGIN_PATH, json={"username": credentials.user, "password": credentials.password}
        )
    assert response.status_code == 200, response.text


async def measure(logins: Mapping[str, Callable[[], Awaitable[None]]]) -> dict[str, float]:
    """Log in by every method in turn. Return the milliseconds that each took."""
    durations = {}
    for name, log_in in logins.items():
        started = time.perf_counter()
        await log_in()
        durations[name] = (time.perf_counter() - started) * 1000
    return durations


def print_durations(title: str, rounds: list[dict[str, float]]) -> None:
    for name in rounds[0]:
        times = sorted(each[name] for each in rounds)
        median, p95, maximum = statistics.median(times), times[int(len(times) * 0.95)], times[-1]
        summary = f"median {median:.1f} ms, 95 % {p95:.1f} ms, maximum {maximum:.1f} ms"
        print(f"{title}: {len(times)} x {name}: {summary}")  # noqa: T201 # read with `pytest -s`


@pytest.mark.rule("broker-29")
async def test_valid_logins_succeed_while_a_flood_of_invalid_ones_is_refused(tmp_path: Path) -> None:
    with ServiceProcess(
        tmp_path, *loopback_options("--mqtt"), "--limits-failed-connections", str(LIMIT)
    ) as service:
        gateway, user = service.claim("02005e000001"), service.add_user("vera", Role.VIEWER)
        logins = {
            "gateway": lambda: log_in_over_mqtt(service, gateway),
            "person (MQTT)": lambda: log_in_over_mqtt(service, user),
            "person (REST)": lambda: log_in_over_rest(service, user),
        }
        print_durations("before", [await measure(logins) for _ in range(20)])
        flood = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.scenarios.login_flood"),
            *map(str, (service.mqtt["mqtt"].port, RATE, RATE * SECONDS)),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        flood_result = asyncio.create_task(flood.communicate())
        rounds = []
        while not flood_result.done():  # measure fails if a login does
            rounds.append(await measure(logins))
        outcome = json.loads((await flood_result)[0])
        print_durations("during", rounds)
        print(outcome)  # noqa: T201 # read with `pytest -s`
        assert flood.returncode == 0
        assert outcome["unread"] + outcome["answered"] == RATE * SECONDS
        # The token bucket starts full. Connections that are in progress at the end of a second are counted
        # later, and no count goes below zero: in the worst case each of the two allows as many again.
        assert outcome["answered"] <= 3 * LIMIT * (outcome["seconds"] + 1)
        assert service.is_ready()
        assert service.stop()[0] == 0
