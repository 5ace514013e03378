"""Reports go on when brokers, connections and programs come and go."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from meshfleet.client.mesh.mesh import Mesh
from meshfleet.errors import GatewayTimeout
from meshfleet.errors.mqtt import BrokerUnreachable
from meshfleet.mqtt.client import BrokerAddress
from meshfleet.protocol.codes import Kind
from tests.client.mesh.gateways import LONG, collect_reports, gateway_on
from tests.client.mesh.test_reports import heartbeat, listening, say, seqs
from tests.eventually import eventually_async
from tests.mqtt.client.proxy import Proxy, unique_name
from tests.servers import Mosquitto
from tests.servers import ServerAddress as Place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime
    from pathlib import Path

    from meshfleet.protocol.ids import Mac

pytestmark = pytest.mark.anyio


@pytest.fixture
def lasting(tmp_path: Path) -> Iterator[Mosquitto]:
    """A broker that remembers sessions and messages when it is stopped properly."""
    with Mosquitto(tmp_path, "persistence true", "max_queued_messages 0", "set_tcp_nodelay true") as broker:
        yield broker


def url(mosquitto: Mosquitto) -> str:
    return f"mqtt://127.0.0.1:{mosquitto.address.port}"


async def hear_until(mesh: Mesh, seq: int, session: str | None) -> list[int]:
    return seqs(await collect_reports(mesh.reports(session=session), lambda heard: seqs(heard)[-1:] == [seq]))


async def leave_a_session(broker: str, session: str) -> None:
    """Let the broker know a session that has heard everything so far but its last report."""
    async with Mesh(broker) as mesh:
        reports = mesh.reports(session=session)
        await listening(mesh, broker, reports)
        await reports.aclose()


async def test_what_comes_while_the_program_is_away_waits_for_it(broker: str) -> None:
    session = unique_name("session")
    await leave_a_session(broker, session)
    await say(broker, *map(heartbeat, range(100)))
    async with Mesh(broker) as mesh:
        heard = await hear_until(mesh, 99, session)
    assert [seq for seq in heard if seq != 255] == list(range(100))


async def test_only_what_was_not_followed_by_another_comes_again(broker: str) -> None:
    session = unique_name("session")
    await leave_a_session(broker, session)
    await say(broker, *map(heartbeat, range(10)))
    async with Mesh(broker) as mesh:
        first = await hear_until(mesh, 3, session)
        assert first[-4:] == [0, 1, 2, 3]
        assert await hear_until(mesh, 3, session) == [3]
    async with Mesh(broker) as mesh:
        assert await hear_until(mesh, 9, session) == [3, 4, 5, 6, 7, 8, 9]


async def test_a_session_that_is_ended_keeps_nothing(broker: str) -> None:
    session = unique_name("session")
    await leave_a_session(broker, session)
    async with Mesh(broker) as mesh:
        await mesh.end_session(session)
        await say(broker, *map(heartbeat, range(10)))
        reports = mesh.reports(session=session)
        first = await listening(mesh, broker, reports)
        assert seqs([first.result()]) == [255]
        await reports.aclose()


async def test_a_session_is_read_once_at_a_time(broker: str) -> None:
    session = unique_name("session")
    async with Mesh(broker) as mesh:
        reports = mesh.reports(session=session)
        await listening(mesh, broker, reports)
        with pytest.raises(ValueError, match="is already being read"):
            await anext(mesh.reports(session=session))
        await reports.aclose()
        await collect_reports(mesh.reports(session=session), 1)


async def test_a_session_brings_nothing_that_is_no_longer_wanted(broker: str) -> None:
    session = unique_name("session")
    await leave_a_session(broker, session)
    await say(broker, *map(heartbeat, range(10)))
    async with gateway_on(broker, mode="raw"), Mesh(broker) as mesh:
        heard = await collect_reports(mesh.reports(session=session, kinds=Kind.RSSI), 3)
    assert {each.kind for each in heard} == {Kind.RSSI}


async def test_nothing_is_lost_when_the_connection_breaks_in_mid_iteration(broker: str) -> None:
    session, place = unique_name("session"), BrokerAddress.parse(broker)
    await leave_a_session(broker, session)
    async with Proxy(Place(place.host, place.port)) as proxy, Mesh(str(proxy.address)) as mesh:
        listener = asyncio.create_task(hear_until(mesh, 199, session))
        for start in range(0, 200, 50):
            await say(broker, *map(heartbeat, range(start, start + 50)))
            await proxy.cut()
        numbers = [seq for seq in await listener if seq != 255]
    # What was not acknowledged comes again; nothing is missing, and nothing new comes too early.
    assert list(dict.fromkeys(numbers)) == list(range(200))


@pytest.mark.parametrize("keeps", [True, False])
async def test_reports_go_on_when_the_broker_restarts(lasting: Mosquitto, *, keeps: bool) -> None:
    session = unique_name("session") if keeps else None
    async with Mesh(url(lasting)) as mesh, gateway_on(url(lasting)) as gateway:
        reports = mesh.reports(session=session)
        async with asyncio.timeout(2 * LONG):
            for _ in range(10):
                await anext(reports)
            await asyncio.to_thread(lasting.stop)
            await asyncio.to_thread(lasting.start)
            restarted = await answered(mesh, gateway.mac)
            while (await anext(reports)).body.time <= restarted:
                pass
        await reports.aclose()


async def test_requests_go_on_when_the_broker_restarts(lasting: Mosquitto) -> None:
    async with Mesh(url(lasting)) as mesh, gateway_on(url(lasting)) as gateway:
        for _ in range(2):
            await answered(mesh, gateway.mac)
            await asyncio.to_thread(lasting.stop)
            asking = asyncio.create_task(answered(mesh, gateway.mac))
            await asyncio.to_thread(lasting.start)
            await asking
        assert mesh.pending == 0


async def answered(mesh: Mesh, gateway: Mac) -> datetime:
    """Ask until the gateway is back as well, which has a clean session and so misses what it is asked before.

    Gives when it answered.
    """

    async def ask() -> datetime | None:
        with suppress(GatewayTimeout, BrokerUnreachable):
            return (await mesh.read(gateway, gateway, "8000", timeout=0.5)).time
        return None

    return await eventually_async(ask, "an answer", patience=LONG)
