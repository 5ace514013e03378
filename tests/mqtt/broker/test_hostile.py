"""Whatever a client sends, nothing breaks but its own connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.encoder import DISCONNECT, PINGREQ, encode_packet
from meshfleet.mqtt.codec.packets import (
    SUBACK_FAILURE,
    Connack,
    Connect,
    Pingresp,
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
from tests.mqtt.broker.running_broker import PASSWORD, REPORTS, D, G, RunningBroker, connect, report, request
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from meshfleet.db import Database
    from tests.mqtt.broker.raw_client import RawClient

pytestmark = pytest.mark.anyio

MINE = f"mt/gateway/{G}/#"

PACKETS = {
    "connect": encode_packet(
        Connect(G, clean=False, keep_alive=60, will=Will(report(), b"{}", 1), user=G, password=PASSWORD)
    ),
    "publish": encode_packet(Publish(report(), b'{"time":1}', 1, packet_id=7)),
    "publish at 0": encode_packet(Publish(report(), b"{}")),
    "publish at 2": encode_packet(Publish(report(), b"{}", 2, retain=True, packet_id=8)),
    "puback": encode_packet(Puback(7)),
    "pubrec": encode_packet(Pubrec(7)),
    "pubrel": encode_packet(Pubrel(8)),
    "pubcomp": encode_packet(Pubcomp(7)),
    "subscribe": encode_packet(Subscribe(1, ((MINE, 1), (f"meshtech/diagnostics/{G}/+", 0)))),
    "unsubscribe": encode_packet(Unsubscribe(2, (MINE,))),
    "ping": PINGREQ,
    "disconnect": DISCONNECT,
}
ALL = b"".join(
    packet for name, packet in PACKETS.items() if name not in {"connect", "pubrec", "pubcomp", "disconnect"}
)


@pytest.fixture
async def stage(sqlite_database: Database, caplog: pytest.LogCaptureFixture) -> AsyncIterator[RunningBroker]:
    """A broker for clients without hurry. It complains of nothing, and in the end nobody is left in it."""
    broken: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context))
    limits = BrokerLimits(publish_rate=10**9, packet_size=10**6, failed_connections=10**6)
    with caplog.at_level(logging.INFO):
        async with RunningBroker(sqlite_database, limits) as running:
            yield running
            for connection in running.broker.connections:
                connection.close("the test ends")
            await running.until(lambda: len(running.broker.connections) == 0)
            assert not running.broker.connections.connected_accounts
            for session in running.broker.sessions:
                assert session.persistent_id is not None
                running.broker.sessions.delete(session)
            assert running.broker.quotas.queued_bytes == 0
    assert broken == []
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []
    assert PASSWORD.decode() not in caplog.text
    sqlite_database.close()


async def neighbour(stage: RunningBroker) -> RawClient:
    """Somebody beside."""
    return await stage.subscriber("viewer", f"mt/gateway/+/device/{D}/heartbeat", qos=0)


async def is_served(stage: RunningBroker, client: RawClient) -> None:
    """The neighbour still gets what it asked for."""
    await stage.broker.publish(report(kind="heartbeat"), b"{}", qos=0)
    got = [packet for packet in await client.receive_until_pong() if isinstance(packet, Publish)]
    assert report(kind="heartbeat") in [packet.topic for packet in got]


async def attack(stage: RunningBroker, data: bytes, *, known: bool, pieces: int = 1) -> None:
    """Send bytes, in pieces, and leave."""
    client = await stage.gateway(clean=False) if known else await stage.raw_client()
    size = -(-len(data) // pieces)
    for at in range(0, len(data), size or 1):
        with contextlib.suppress(RuntimeError):  # of uvloop, when the broker has closed it already
            client.send(data[at : at + size])
        await asyncio.sleep(0)
    await client.close()


def flipped(data: bytes, chance: random.Random) -> bytes:
    """With some bits changed."""
    broken = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        broken[chance.randrange(len(broken))] ^= 1 << chance.randrange(8)
    return bytes(broken)


@each_row("known", [False, True])
async def test_random_bytes_break_nothing(stage: RunningBroker, *, known: bool) -> None:
    chance, beside = random.Random(1), await neighbour(stage)  # noqa: S311 # a fixed seed
    for _ in range(60):
        await attack(
            stage, chance.randbytes(chance.randint(1, 300)), known=known, pieces=chance.randint(1, 5)
        )
    await is_served(stage, beside)


@each_row("known", [False, True])
@each_row("packet", [pytest.param(row, id=name) for name, row in PACKETS.items()])
async def test_flipped_bits_break_nothing(stage: RunningBroker, packet: bytes, *, known: bool) -> None:
    chance, beside = random.Random(2), await neighbour(stage)  # noqa: S311
    for _ in range(15):
        data = flipped(packet, chance) + packet + PINGREQ
        await attack(stage, data, known=known, pieces=chance.randint(1, 4))
    await is_served(stage, beside)


@each_row("known", [False, True])
async def test_a_stream_that_ends_anywhere_breaks_nothing(stage: RunningBroker, *, known: bool) -> None:
    beside = await neighbour(stage)
    whole = ALL if known else PACKETS["connect"] + ALL
    for end in range(1, len(whole), 7):
        await attack(stage, whole[:end], known=known)
    await is_served(stage, beside)


async def test_a_stream_in_single_bytes_is_understood(stage: RunningBroker) -> None:
    client = await stage.raw_client()
    for byte in PACKETS["connect"] + ALL:
        client.send(bytes((byte,)))
        await asyncio.sleep(0)
    assert await client.expect(Connack) == Connack()
    missing: set[object] = {Puback, Pubrec, Pubcomp, Suback, Unsuback}
    while missing:
        packet = await client.receive()
        assert packet is not None
        missing.discard(type(packet))


async def test_thousands_of_tiny_packets_are_all_answered(stage: RunningBroker) -> None:
    beside, client = await neighbour(stage), await stage.gateway()
    client.send(PINGREQ * 5000)
    await is_served(stage, beside)
    for _ in range(5000):
        await client.expect(Pingresp)
    client.send(encode_packet(Publish(report(), b"", 1, packet_id=1)) * 5000)
    await is_served(stage, beside)
    for _ in range(5000):
        await client.expect(Puback)
    assert [message.topic for message in stage.consumer.messages].count(report()) == 5000


@each_row("flood", [[7], list(range(1, 60_000))])
async def test_a_flood_of_acknowledgements_for_nothing_does_nothing(
    stage: RunningBroker, flood: list[int]
) -> None:
    beside, client = await neighbour(stage), await stage.subscriber(G, MINE)
    client.send(
        b"".join(encode_packet(Puback(packet_id)) for packet_id in flood) * (20_000 // len(flood) + 1)
    )
    await is_served(stage, beside)
    await stage.broker.publish(request(), b"{}")
    got = [packet for packet in await client.receive_until_pong() if isinstance(packet, Publish)]
    assert [packet.payload for packet in got if packet.topic == request()] == [b"{}"]


async def test_who_floods_with_acknowledgements_is_slowed(sqlite_database: Database) -> None:
    async with RunningBroker(sqlite_database, BrokerLimits(publish_rate=100)) as stage:
        client = await stage.gateway()
        connection = next(iter(stage.broker.connections))
        beside = await neighbour(stage)
        client.send(encode_packet(Puback(7)) * 10_000)
        await stage.until(lambda: connection.is_over_budget)
        client.send(PINGREQ)
        answer = asyncio.create_task(client.receive())
        for _ in range(10):
            await is_served(stage, beside)
        assert not answer.done(), "it is read from"
        answer.cancel()
    sqlite_database.close()


@each_row("wanted", [REPORTS, MINE, "#", "x"])
async def test_a_thousand_filters_at_once_are_answered_one_by_one(stage: RunningBroker, wanted: str) -> None:
    beside, client = await neighbour(stage), await stage.gateway()
    filters = tuple((f"{wanted[:-1]}{at}" if wanted == MINE else wanted, 0) for at in range(1000))
    for packet_id in (1, 2):
        client.send(Subscribe(packet_id, filters))
        codes = (await client.expect(Suback)).codes
        assert len(codes) == 1000
        assert codes.count(SUBACK_FAILURE) == (1000 - stage.limits.subscriptions if wanted == MINE else 1000)
    client.send(Unsubscribe(3, tuple(each for each, _ in filters)))
    await client.receive_until_pong()
    await is_served(stage, beside)


@each_row("ask", [Subscribe(1, (("x", 0),) * 1001), Unsubscribe(1, ("x",) * 1001)])
async def test_more_filters_at_once_end_a_connection(
    stage: RunningBroker, ask: Subscribe | Unsubscribe
) -> None:
    beside, client = await neighbour(stage), await stage.gateway()
    client.send(ask)
    assert await client.receive_until_closed() == []
    await is_served(stage, beside)


@each_row("level", ["", "+", "x", "\U0001f300"])
async def test_the_deepest_and_longest_names_do_no_harm(stage: RunningBroker, level: str) -> None:
    beside, client = await neighbour(stage), await stage.gateway()
    place = f"mt/gateway/{G}/device/"
    count = (0xFFFF - len(place) - 2) // (len(level.encode()) + 1)
    deep = place + "/".join([level] * count)
    client.send(Subscribe(1, ((f"{deep}/#", 0),)))
    assert (await client.expect(Suback)).codes == (SUBACK_FAILURE,)
    if level != "+":
        for qos, packet_id in ((0, 0), (1, 1), (2, 2)):
            client.send(Publish(deep, b"{}", qos, retain=True, packet_id=packet_id))
        await client.receive_until_pong()
        assert len(stage.broker.retained) == 0
    await is_served(stage, beside)


@each_row("size", [0xFFFF, 0xFFFE])
async def test_the_longest_topic_reaches_who_wants_it(stage: RunningBroker, size: int) -> None:
    viewer, gateway = await stage.subscriber("viewer", REPORTS), await stage.gateway()
    topic = report(kind="").ljust(size, "x")
    gateway.send(Publish(topic, b"{}", 1, packet_id=1))
    assert await gateway.expect(Puback) == Puback(1)
    assert (await viewer.expect(Publish)).topic == topic


async def test_client_ids_cannot_forge_lines_of_the_log(
    stage: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    client = await stage.client("viewer", client_id="x\nforged", clean=False)
    await client.close()
    await stage.until(lambda: len(stage.broker.connections) == 0)
    for _ in range(stage.limits.session_age // 500 + 1):
        stage.clock.move(seconds=500)
        stage.broker.sessions.delete_expired(stage.clock())
    assert len(stage.broker.sessions) == 0
    assert not any("\n" in record.getMessage() for record in caplog.records)


async def test_connecting_and_leaving_again_and_again_leaves_nothing(stage: RunningBroker) -> None:
    beside = await neighbour(stage)
    for at in range(100):
        client = await stage.raw_client()
        client.send(connect(G, clean=bool(at % 3), will=Will(report(), b"{}", at % 2)))
        client.send(Subscribe(1, ((MINE, 1),)), Publish(request(), b"{}"))
        if at % 5:
            await client.receive()
        client.abort()
    await stage.until(lambda: len(stage.broker.connections) == 1)
    assert len(stage.broker.sessions) <= 2
    await is_served(stage, beside)
