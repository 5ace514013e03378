"""One client id, several connections: there is one at a time, and nothing goes to the wrong one."""

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


async def at_the_door(stage: RunningBroker, count: int, *, clean: bool) -> list[RawClient]:
    """So many connections of one gateway that all wait to be admitted; each has a will with its number."""
    stage.authenticator.holds = True
    clients: list[RawClient] = []
    for number in range(count):
        client = await stage.raw_client()
        client.send(connect(G, clean=clean, will=Will(report(), b"%d" % number, 1)))
        await stage.until(lambda: len(stage.authenticator.waiting) == len(clients) + 1)
        clients.append(client)
    return clients


@each_row("together", [True, False])
@each_row("clean", [True, False])
@each_row("order", list(permutations(range(3))))
@with_fresh_broker
async def test_who_came_last_stays_in_whatever_order_they_are_admitted(
    stage: RunningBroker, order: tuple[int, ...], *, clean: bool, together: bool
) -> None:
    clients = await at_the_door(stage, 3, clean=clean)
    stage.authenticator.holds = False
    viewer = await stage.subscriber("viewer", REPORTS)
    let_in = [number for place, number in enumerate(order) if all(number > each for each in order[:place])]
    for number in order:
        stage.authenticator.waiting[number].set()
        if not together and number in let_in:
            await clients[number].expect(Connack)
    *gone, last = range(3)
    for number in gone:
        assert {type(packet) for packet in await clients[number].receive_until_closed()} <= {Connack}
    if together:
        await clients[last].expect(Connack)
    await expect_messages(viewer, *[b"%d" % number for number in let_in if number != last])
    assert await clients[last].receive_until_pong() == []
    assert len(stage.broker.connections) == len(stage.broker.sessions) == 2


@pytest.mark.parametrize("clean", [True, False])
async def test_connects_that_come_at_once_leave_one_connection(stage: RunningBroker, *, clean: bool) -> None:
    clients = [await stage.raw_client() for _ in range(20)]
    for client in clients:
        client.send(connect(G, clean=clean), Subscribe(1, ((f"mt/gateway/{G}/#", 1),)))
    await stage.until(lambda: stage.broker.connect_handler.admitted_count == len(clients))
    (kept,) = stage.broker.sessions
    await stage.until(lambda: len(kept.subscriptions) == 1)
    await stage.broker.publish(request(), b"{}")
    served = [client for client in clients if await gets_a_message(client)]
    assert len(served) == 1
    assert {type(packet) for packet in await served[0].receive_until_pong()} <= {Suback}


async def gets_a_message(client: RawClient) -> bool:
    """Whether a message comes before the connection ends."""
    while (packet := await client.receive()) is not None:
        if isinstance(packet, Publish):
            return True
    return False


async def test_a_take_over_while_the_first_is_being_admitted(stage: RunningBroker) -> None:
    (first,) = await at_the_door(stage, 1, clean=False)
    stage.authenticator.holds = False
    second = await stage.gateway(clean=False)
    assert await second.receive_until_pong() == []
    first.send(Pingreq())
    stage.authenticator.waiting[0].set()
    assert await first.receive_until_closed() == []  # it came first, and is no longer its client
    assert await second.receive_until_pong() == []
    assert len(stage.broker.connections) == 1


async def test_a_take_over_while_the_session_of_the_first_is_being_written_down(stage: RunningBroker) -> None:
    stage.consumer.open.clear()
    first = await stage.raw_client()
    first.send(connect(G, clean=False), Subscribe(1, ((f"mt/gateway/{G}/#", 1),)))
    await stage.until(lambda: len(stage.broker.sessions) == 1)
    second = await stage.raw_client()
    second.send(connect(G, clean=False), Pingreq())
    assert await first.receive_until_closed() == []
    stage.consumer.open.set()
    assert isinstance(await second.receive(), Connack)
    await second.receive()
    await stage.broker.publish(request(), b"{}")
    assert await second.receive_until_pong() == []  # what the first asked for was never carried out
    assert len((await load_stored(stage)).sessions) == 1


async def test_a_clean_connect_while_the_session_of_the_first_is_being_written_down(
    stage: RunningBroker,
) -> None:
    stage.consumer.open.clear()
    first = await stage.raw_client()
    first.send(connect(G, clean=False))
    await stage.until(lambda: len(stage.broker.sessions) == 1)
    second = await stage.raw_client()
    second.send(connect(G))
    assert await first.receive_until_closed() == []
    stage.consumer.open.set()
    assert await second.expect(Connack) == Connack()
    assert (await load_stored(stage)).sessions == {}


@each_row("clean", [True, False])
@each_row(
    "asked",
    [
        Publish(report(), b"old", 1, packet_id=7),
        Publish(report(), b"old", 2, packet_id=7),
        Subscribe(7, ((f"mt/gateway/{G}/request/#", 1),)),
        Unsubscribe(7, (f"mt/gateway/{G}/request/#",)),
        Pubrel(7),
    ],
)
@with_fresh_broker
async def test_an_answer_goes_to_the_connection_that_asked_or_nowhere(
    stage: RunningBroker, asked: Packet, *, clean: bool
) -> None:
    old = await stage.gateway(clean=clean)
    stage.consumer.open.clear()
    old.send(Publish(report(), b"before", 1, packet_id=6), asked)
    await stage.until(lambda: _is_read(stage))
    new = await stage.gateway(clean=clean)
    stage.consumer.open.set()
    await stage.until(lambda: len(stage.consumer.messages) > 0)
    new.send(Publish(report(), b"new", 1, packet_id=8))
    assert await new.expect(Puback) == Puback(8)
    assert await new.receive_until_pong() == []
    assert {type(packet) for packet in await old.receive_until_closed()} <= {Suback, Unsuback, Pubcomp}


def _is_read(stage: RunningBroker) -> bool:
    """Whether the broker has heard of the only client what it said."""
    (connection,) = stage.broker.connections
    heard, connection.has_received = connection.has_received, False
    return heard


async def test_a_puback_on_the_older_connection_comes_too_late(stage: RunningBroker) -> None:
    old = await stage.subscriber("viewer", REPORTS, clean=False)
    await publish(await stage.gateway(), b"1")
    message = await old.expect(Publish)
    new = await stage.client("viewer", clean=False)
    old.send(Puback(message.packet_id))
    assert await old.receive_until_closed() == []
    assert (await new.expect(Publish)).dup
    new.abort()
    newest = await stage.client("viewer", clean=False)
    assert (await newest.expect(Publish)).packet_id == message.packet_id


async def test_what_is_published_again_after_a_take_over_is_taken_at_qos_2_once(stage: RunningBroker) -> None:
    message = Publish(report(), b"{}", 2, packet_id=7)
    old = await stage.gateway(clean=False)
    stage.consumer.open.clear()
    old.send(message)
    assert await old.receive_until_pong() == []
    new = await stage.gateway(clean=False)
    new.send(encode_packet(Publish(report(), b"{}", 2, dup=True, packet_id=7)))
    assert await new.receive_until_pong() == []
    stage.consumer.open.set()
    assert await new.expect(Pubrec) == Pubrec(7)
    assert len(stage.consumer.messages) == 1
    assert await old.receive_until_closed() == []


async def test_two_that_fight_over_one_client_id_lose_no_message(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    seen: dict[int, bytes] = {}
    for number in range(50):
        await publish(gateway, b"%d" % number)
        rival = await stage.client("viewer", clean=False)
        for packet in await viewer.receive_until_closed():
            assert isinstance(packet, Publish)
            assert seen.setdefault(packet.packet_id, packet.payload) == packet.payload
        viewer = rival
    come = [packet for packet in await viewer.receive_until_pong() if isinstance(packet, Publish)]
    assert [packet.payload for packet in come] == [b"%d" % number for number in range(50)]
    assert all(packet.dup for packet in come if packet.packet_id in seen)


async def test_clients_that_come_and_go_wildly_leave_nothing(stage: RunningBroker) -> None:
    async def come_and_go(number: int) -> None:
        for turn in range(10):
            client = await stage.raw_client()
            client.send(connect(G, clean=bool((turn + number) % 2), will=Will(report(G, D), b"{}", turn % 3)))
            if turn % 3:
                await client.receive()
            (client.abort, client.reset, client.send_eof)[turn % 3]()

    await asyncio.gather(*[come_and_go(number) for number in range(8)])
    await stage.until(lambda: len(stage.broker.connections) == 0)
    gateway = await stage.gateway()
    assert await gateway.receive_until_pong() == []
    assert len(stage.broker.sessions) == len(stage.broker.connections) == 1
    assert stage.broker.quotas.queued_bytes == 0
    await publish(gateway, b"last")
    assert (await load_stored(stage)).sessions == {}
