"""Report sessions across restarts of brokers and programs and lost connections."""

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
from tests.client.mesh.test_reports import heartbeat, publish, seqs, wait_until_subscribed
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
def persistent_broker(tmp_path: Path) -> Iterator[Mosquitto]:
    """Run a broker that keeps sessions and messages over a clean restart."""
    with Mosquitto(tmp_path, "persistence true", "max_queued_messages 0", "set_tcp_nodelay true") as broker:
        yield broker


def url_of(mosquitto: Mosquitto) -> str:
    return f"mqtt://127.0.0.1:{mosquitto.address.port}"


async def receive_until(mesh: Mesh, seq: int, session: str | None) -> list[int]:
    return seqs(
        await collect_reports(mesh.reports(session=session), lambda received: seqs(received)[-1:] == [seq])
    )


async def create_session(broker: str, session: str) -> None:
    """Create a session that has acknowledged every report so far but its last one."""
    async with Mesh(broker) as mesh:
        reports = mesh.reports(session=session)
        await wait_until_subscribed(mesh, broker, reports)
        await reports.aclose()


async def test_reports_are_queued_while_the_program_is_not_connected(broker: str) -> None:
    session = unique_name("session")
    await create_session(broker, session)
    await publish(broker, *map(heartbeat, range(100)))
    async with Mesh(broker) as mesh:
        received = await receive_until(mesh, 99, session)
    assert [seq for seq in received if seq != 255] == list(range(100))


async def test_only_the_last_unacknowledged_report_is_delivered_again(broker: str) -> None:
    session = unique_name("session")
    await create_session(broker, session)
    await publish(broker, *map(heartbeat, range(10)))
    async with Mesh(broker) as mesh:
        first = await receive_until(mesh, 3, session)
        assert first[-4:] == [0, 1, 2, 3]
        assert await receive_until(mesh, 3, session) == [3]
    async with Mesh(broker) as mesh:
        assert await receive_until(mesh, 9, session) == [3, 4, 5, 6, 7, 8, 9]


async def test_an_ended_session_keeps_no_reports(broker: str) -> None:
    session = unique_name("session")
    await create_session(broker, session)
    async with Mesh(broker) as mesh:
        await mesh.end_session(session)
        await publish(broker, *map(heartbeat, range(10)))
        reports = mesh.reports(session=session)
        first = await wait_until_subscribed(mesh, broker, reports)
        assert seqs([first.result()]) == [255]
        await reports.aclose()


async def test_a_session_can_be_read_by_one_iterator_at_a_time(broker: str) -> None:
    session = unique_name("session")
    async with Mesh(broker) as mesh:
        reports = mesh.reports(session=session)
        await wait_until_subscribed(mesh, broker, reports)
        with pytest.raises(ValueError, match="is already being read"):
            await anext(mesh.reports(session=session))
        await reports.aclose()
        await collect_reports(mesh.reports(session=session), 1)


async def test_a_session_delivers_no_reports_that_its_new_filter_excludes(broker: str) -> None:
    session = unique_name("session")
    await create_session(broker, session)
    await publish(broker, *map(heartbeat, range(10)))
    async with gateway_on(broker, mode="raw"), Mesh(broker) as mesh:
        received = await collect_reports(mesh.reports(session=session, kinds=Kind.RSSI), 3)
    assert {each.kind for each in received} == {Kind.RSSI}


async def test_no_report_is_lost_when_the_connection_breaks_during_an_iteration(broker: str) -> None:
    session, address = unique_name("session"), BrokerAddress.parse(broker)
    await create_session(broker, session)
    async with Proxy(Place(address.host, address.port)) as proxy, Mesh(str(proxy.address)) as mesh:
        receiving = asyncio.create_task(receive_until(mesh, 199, session))
        for start in range(0, 200, 50):
            await publish(broker, *map(heartbeat, range(start, start + 50)))
            await proxy.cut()
        numbers = [seq for seq in await receiving if seq != 255]
    # Unacknowledged reports are delivered again; none is missing, and none arrives out of order.
    assert list(dict.fromkeys(numbers)) == list(range(200))


@pytest.mark.parametrize("keeps_session", [True, False])
async def test_reports_continue_after_a_restart_of_the_broker(
    persistent_broker: Mosquitto, *, keeps_session: bool
) -> None:
    session = unique_name("session") if keeps_session else None
    async with Mesh(url_of(persistent_broker)) as mesh, gateway_on(url_of(persistent_broker)) as gateway:
        reports = mesh.reports(session=session)
        async with asyncio.timeout(2 * LONG):
            for _ in range(10):
                await anext(reports)
            await asyncio.to_thread(persistent_broker.stop)
            await asyncio.to_thread(persistent_broker.start)
            restarted = await read_until_answered(mesh, gateway.mac)
            while (await anext(reports)).body.time <= restarted:
                pass
        await reports.aclose()


async def test_requests_continue_after_a_restart_of_the_broker(persistent_broker: Mosquitto) -> None:
    async with Mesh(url_of(persistent_broker)) as mesh, gateway_on(url_of(persistent_broker)) as gateway:
        for _ in range(2):
            await read_until_answered(mesh, gateway.mac)
            await asyncio.to_thread(persistent_broker.stop)
            reading = asyncio.create_task(read_until_answered(mesh, gateway.mac))
            await asyncio.to_thread(persistent_broker.start)
            await reading
        assert mesh.pending == 0


async def read_until_answered(mesh: Mesh, gateway: Mac) -> datetime:
    """Repeat a read until the gateway is connected again, and return the time of the response.

    The gateway has a clean session, so it misses requests that are sent before.
    """

    async def try_read() -> datetime | None:
        with suppress(GatewayTimeout, BrokerUnreachable):
            return (await mesh.read(gateway, gateway, "8000", timeout=0.5)).time
        return None

    return await eventually_async(try_read, "a response", patience=LONG)
