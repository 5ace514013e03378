"""Several connections with one client id: only the newest stays, and no packet goes to the wrong one."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import (
    Connack,
    Pingreq,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)
from tests.mqtt.broker.messages import expect_messages, load_stored, publish
from tests.mqtt.broker.running_broker import REPORTS, D, G, connect, report, request, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from meshfleet.mqtt.codec.packets import Packet
    from tests.mqtt.broker.raw_client import RawClient
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio


async def send_held_connects(server: RunningBroker, count: int, *, clean: bool) -> list[RawClient]:
    """Open connections of one gateway whose authentication is held; each has a will with its number."""
    server.authenticator.holds = True
    clients: list[RawClient] = []
    for number in range(count):
        client = await server.raw_client()
        client.send(connect(G, clean=clean, will=Will(report(), b"%d" % number, 1)))
        await server.until(lambda: len(server.authenticator.waiting) == len(clients) + 1)
        clients.append(client)
    return clients


@each_row("together", [True, False])
@each_row("clean", [True, False])
@each_row("order", list(permutations(range(3))))
@with_fresh_broker
async def test_the_newest_connection_stays_whatever_order_they_are_authenticated_in(
    server: RunningBroker, order: tuple[int, ...], *, clean: bool, together: bool
) -> None:
    clients = await send_held_connects(server, 3, clean=clean)
    server.authenticator.holds = False
    viewer = await server.subscriber("viewer", REPORTS)
    accepted = [number for index, number in enumerate(order) if all(number > each for each in order[:index])]
    for number in order:
        server.authenticator.waiting[number].set()
        if not together and number in accepted:
            await clients[number].expect(Connack)
    *replaced, last = range(3)
    for number in replaced:
        assert {type(packet) for packet in await clients[number].receive_until_closed()} <= {Connack}
    if together:
        await clients[last].expect(Connack)
    await expect_messages(viewer, *[b"%d" % number for number in accepted if number != last])
    assert await clients[last].receive_until_pong() == []
    assert len(server.broker.connections) == len(server.broker.sessions) == 2


@pytest.mark.parametrize("clean", [True, False])
async def test_simultaneous_connects_leave_one_connection(server: RunningBroker, *, clean: bool) -> None:
    clients = [await server.raw_client() for _ in range(20)]
    for client in clients:
        client.send(connect(G, clean=clean), Subscribe(1, ((f"mt/gateway/{G}/#", 1),)))
    await server.until(lambda: server.broker.connect_handler.admitted_count == len(clients))
    (session,) = server.broker.sessions
    await server.until(lambda: len(session.subscriptions) == 1)
    await server.broker.publish(request(), b"{}")
    served = [client for client in clients if await receives_message(client)]
    assert len(served) == 1
    assert {type(packet) for packet in await served[0].receive_until_pong()} <= {Suback}


async def receives_message(client: RawClient) -> bool:
    """Return whether a message arrives before the connection ends."""
    while (packet := await client.receive()) is not None:
        if isinstance(packet, Publish):
            return True
    return False


async def test_a_client_may_connect_again_while_its_first_connection_is_authenticated(
    server: RunningBroker,
) -> None:
    (first,) = await send_held_connects(server, 1, clean=False)
    server.authenticator.holds = False
    second = await server.gateway(clean=False)
    assert await second.receive_until_pong() == []
    first.send(Pingreq())
    server.authenticator.waiting[0].set()
    assert await first.receive_until_closed() == []  # it is older, so it is closed
    assert await second.receive_until_pong() == []
    assert len(server.broker.connections) == 1


async def test_a_client_may_connect_again_while_its_session_is_committed(
    server: RunningBroker,
) -> None:
    server.consumer.open.clear()
    first = await server.raw_client()
    first.send(connect(G, clean=False), Subscribe(1, ((f"mt/gateway/{G}/#", 1),)))
    await server.until(lambda: len(server.broker.sessions) == 1)
    second = await server.raw_client()
    second.send(connect(G, clean=False), Pingreq())
    assert await first.receive_until_closed() == []
    server.consumer.open.set()
    assert isinstance(await second.receive(), Connack)
    await second.receive()
    await server.broker.publish(request(), b"{}")
    assert await second.receive_until_pong() == []  # the SUBSCRIBE of the first connection was never handled
    assert len((await load_stored(server)).sessions) == 1


async def test_a_client_may_connect_with_a_clean_session_while_its_session_is_committed(
    server: RunningBroker,
) -> None:
    server.consumer.open.clear()
    first = await server.raw_client()
    first.send(connect(G, clean=False))
    await server.until(lambda: len(server.broker.sessions) == 1)
    second = await server.raw_client()
    second.send(connect(G))
    assert await first.receive_until_closed() == []
    server.consumer.open.set()
    assert await second.expect(Connack) == Connack()
    assert (await load_stored(server)).sessions == {}


@each_row("clean", [True, False])
@each_row(
    "packet",
    [
        Publish(report(), b"old", 1, packet_id=7),
        Publish(report(), b"old", 2, packet_id=7),
        Subscribe(7, ((f"mt/gateway/{G}/request/#", 1),)),
        Unsubscribe(7, (f"mt/gateway/{G}/request/#",)),
        Pubrel(7),
    ],
)
@with_fresh_broker
async def test_a_response_is_sent_to_the_requesting_connection_or_not_at_all(
    server: RunningBroker, packet: Packet, *, clean: bool
) -> None:
    old = await server.gateway(clean=clean)
    server.consumer.open.clear()
    old.send(Publish(report(), b"before", 1, packet_id=6), packet)
    await server.until(lambda: _has_received(server))
    new = await server.gateway(clean=clean)
    server.consumer.open.set()
    await server.until(lambda: len(server.consumer.messages) > 0)
    new.send(Publish(report(), b"new", 1, packet_id=8))
    assert await new.expect(Puback) == Puback(8)
    assert await new.receive_until_pong() == []
    assert {type(response) for response in await old.receive_until_closed()} <= {Suback, Unsuback, Pubcomp}


def _has_received(server: RunningBroker) -> bool:
    """Return whether the broker has received a packet of the only client since the last call."""
    (connection,) = server.broker.connections
    has_received, connection.has_received = connection.has_received, False
    return has_received


async def test_a_puback_on_a_replaced_connection_is_ignored(server: RunningBroker) -> None:
    old = await server.subscriber("viewer", REPORTS, clean=False)
    await publish(await server.gateway(), b"1")
    message = await old.expect(Publish)
    new = await server.client("viewer", clean=False)
    old.send(Puback(message.packet_id))
    assert await old.receive_until_closed() == []
    assert (await new.expect(Publish)).dup
    new.abort()
    newest = await server.client("viewer", clean=False)
    assert (await newest.expect(Publish)).packet_id == message.packet_id


async def test_a_qos_2_message_repeated_after_a_take_over_is_handled_once(
    server: RunningBroker,
) -> None:
    message = Publish(report(), b"{}", 2, packet_id=7)
    old = await server.gateway(clean=False)
    server.consumer.open.clear()
    old.send(message)
    assert await old.receive_until_pong() == []
    new = await server.gateway(clean=False)
    new.send(encode_packet(Publish(report(), b"{}", 2, dup=True, packet_id=7)))
    assert await new.receive_until_pong() == []
    server.consumer.open.set()
    assert await new.expect(Pubrec) == Pubrec(7)
    assert len(server.consumer.messages) == 1
    assert await old.receive_until_closed() == []


async def test_two_clients_that_compete_for_one_client_id_lose_no_message(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    seen: dict[int, bytes] = {}
    for number in range(50):
        await publish(gateway, b"%d" % number)
        rival = await server.client("viewer", clean=False)
        for packet in await viewer.receive_until_closed():
            assert isinstance(packet, Publish)
            assert seen.setdefault(packet.packet_id, packet.payload) == packet.payload
        viewer = rival
    received = [packet for packet in await viewer.receive_until_pong() if isinstance(packet, Publish)]
    assert [packet.payload for packet in received] == [b"%d" % number for number in range(50)]
    assert all(packet.dup for packet in received if packet.packet_id in seen)


async def test_clients_that_connect_and_disconnect_rapidly_leave_nothing(server: RunningBroker) -> None:
    async def connect_repeatedly(number: int) -> None:
        for turn in range(10):
            client = await server.raw_client()
            client.send(connect(G, clean=bool((turn + number) % 2), will=Will(report(G, D), b"{}", turn % 3)))
            if turn % 3:
                await client.receive()
            (client.abort, client.reset, client.send_eof)[turn % 3]()

    await asyncio.gather(*[connect_repeatedly(number) for number in range(8)])
    await server.until(lambda: len(server.broker.connections) == 0)
    gateway = await server.gateway()
    assert await gateway.receive_until_pong() == []
    assert len(server.broker.sessions) == len(server.broker.connections) == 1
    assert server.broker.quotas.queued_bytes == 0
    await publish(gateway, b"last")
    assert (await load_stored(server)).sessions == {}
