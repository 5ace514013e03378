"""A client can send anything and breaks nothing but its own connection."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec import packets
from meshfleet.mqtt.codec.encoder import DISCONNECT, PINGREQ, encode_packet
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
        packets.Connect(
            G, clean=False, keep_alive=60, will=packets.Will(report(), b"{}", 1), user=G, password=PASSWORD
        )
    ),
    "publish": encode_packet(packets.Publish(report(), b'{"time":1}', 1, packet_id=7)),
    "publish at 0": encode_packet(packets.Publish(report(), b"{}")),
    "publish at 2": encode_packet(packets.Publish(report(), b"{}", 2, retain=True, packet_id=8)),
    "puback": encode_packet(packets.Puback(7)),
    "pubrec": encode_packet(packets.Pubrec(7)),
    "pubrel": encode_packet(packets.Pubrel(8)),
    "pubcomp": encode_packet(packets.Pubcomp(7)),
    "subscribe": encode_packet(packets.Subscribe(1, ((MINE, 1), (f"meshtech/diagnostics/{G}/+", 0)))),
    "unsubscribe": encode_packet(packets.Unsubscribe(2, (MINE,))),
    "ping": PINGREQ,
    "disconnect": DISCONNECT,
}
ALL = b"".join(
    packet for name, packet in PACKETS.items() if name not in {"connect", "pubrec", "pubcomp", "disconnect"}
)


@pytest.fixture
async def server(sqlite_database: Database, caplog: pytest.LogCaptureFixture) -> AsyncIterator[RunningBroker]:
    """Run a broker with high limits. In the end no error was logged and nothing is left in it."""
    loop_errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
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
    assert loop_errors == []
    assert [record for record in caplog.records if record.levelno > logging.WARNING] == []
    assert PASSWORD.decode() not in caplog.text


async def connect_viewer(server: RunningBroker) -> RawClient:
    """Connect a viewer that must not be affected by an attack."""
    return await server.subscriber("viewer", f"mt/gateway/+/device/{D}/heartbeat", qos=0)


async def check_served(server: RunningBroker, client: RawClient) -> None:
    """Check that a client still receives the messages of its subscription."""
    await server.broker.publish(report(kind="heartbeat"), b"{}", qos=0)
    received = [packet for packet in await client.receive_until_pong() if isinstance(packet, packets.Publish)]
    assert report(kind="heartbeat") in [packet.topic for packet in received]


async def attack(server: RunningBroker, data: bytes, *, is_authenticated: bool, pieces: int = 1) -> None:
    """Send bytes in pieces, and disconnect."""
    client = await server.gateway(clean=False) if is_authenticated else await server.raw_client()
    size = -(-len(data) // pieces)
    for start in range(0, len(data), size or 1):
        # uvloop raises it if the broker has closed the connection already.
        with contextlib.suppress(RuntimeError):
            client.send(data[start : start + size])
        await asyncio.sleep(0)
    await client.close()


def flip_bits(data: bytes, rng: random.Random) -> bytes:
    """Return the data with some bits changed."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


@each_row("is_authenticated", [False, True])
async def test_random_bytes_break_nothing(server: RunningBroker, *, is_authenticated: bool) -> None:
    rng, viewer = random.Random(1), await connect_viewer(server)  # noqa: S311 # a fixed seed
    for _ in range(60):
        await attack(
            server,
            rng.randbytes(rng.randint(1, 300)),
            is_authenticated=is_authenticated,
            pieces=rng.randint(1, 5),
        )
    await check_served(server, viewer)


@each_row("is_authenticated", [False, True])
@each_row("packet", [pytest.param(row, id=name) for name, row in PACKETS.items()])
async def test_flipped_bits_break_nothing(
    server: RunningBroker, packet: bytes, *, is_authenticated: bool
) -> None:
    rng, viewer = random.Random(2), await connect_viewer(server)  # noqa: S311
    for _ in range(15):
        data = flip_bits(packet, rng) + packet + PINGREQ
        await attack(server, data, is_authenticated=is_authenticated, pieces=rng.randint(1, 4))
    await check_served(server, viewer)


@each_row("is_authenticated", [False, True])
async def test_a_stream_that_ends_anywhere_breaks_nothing(
    server: RunningBroker, *, is_authenticated: bool
) -> None:
    viewer = await connect_viewer(server)
    stream = ALL if is_authenticated else PACKETS["connect"] + ALL
    for end in range(1, len(stream), 7):
        await attack(server, stream[:end], is_authenticated=is_authenticated)
    await check_served(server, viewer)


async def test_a_packet_stream_in_single_bytes_is_handled(server: RunningBroker) -> None:
    client = await server.raw_client()
    for byte in PACKETS["connect"] + ALL:
        client.send(bytes((byte,)))
        await asyncio.sleep(0)
    assert await client.expect(packets.Connack) == packets.Connack()
    missing: set[object] = {packets.Puback, packets.Pubrec, packets.Pubcomp, packets.Suback, packets.Unsuback}
    while missing:
        packet = await client.receive()
        assert packet is not None
        missing.discard(type(packet))


async def test_thousands_of_tiny_packets_are_all_answered(server: RunningBroker) -> None:
    viewer, client = await connect_viewer(server), await server.gateway()
    client.send(PINGREQ * 5000)
    await check_served(server, viewer)
    for _ in range(5000):
        await client.expect(packets.Pingresp)
    client.send(encode_packet(packets.Publish(report(), b"", 1, packet_id=1)) * 5000)
    await check_served(server, viewer)
    for _ in range(5000):
        await client.expect(packets.Puback)
    assert [message.topic for message in server.consumer.messages].count(report()) == 5000


@each_row("flood", [[7], list(range(1, 60_000))])
async def test_a_flood_of_unexpected_acknowledgements_is_ignored(
    server: RunningBroker, flood: list[int]
) -> None:
    viewer, client = await connect_viewer(server), await server.subscriber(G, MINE)
    client.send(
        b"".join(encode_packet(packets.Puback(packet_id)) for packet_id in flood) * (20_000 // len(flood) + 1)
    )
    await check_served(server, viewer)
    await server.broker.publish(request(), b"{}")
    received = [packet for packet in await client.receive_until_pong() if isinstance(packet, packets.Publish)]
    assert [packet.payload for packet in received if packet.topic == request()] == [b"{}"]


async def test_a_client_that_floods_with_acknowledgements_is_throttled(sqlite_database: Database) -> None:
    async with RunningBroker(sqlite_database, BrokerLimits(publish_rate=100)) as server:
        client = await server.gateway()
        connection = next(iter(server.broker.connections))
        viewer = await connect_viewer(server)
        client.send(encode_packet(packets.Puback(7)) * 10_000)
        await server.until(lambda: connection.is_over_budget)
        client.send(PINGREQ)
        response = asyncio.create_task(client.receive())
        for _ in range(10):
            await check_served(server, viewer)
        assert not response.done(), "the flooding client is still read"
        response.cancel()


@each_row("topic_filter", [REPORTS, MINE, "#", "x"])
async def test_a_thousand_filters_in_one_packet_get_a_code_each(
    server: RunningBroker, topic_filter: str
) -> None:
    viewer, client = await connect_viewer(server), await server.gateway()
    filters = tuple(
        (f"{topic_filter[:-1]}{index}" if topic_filter == MINE else topic_filter, 0) for index in range(1000)
    )
    for packet_id in (1, 2):
        client.send(packets.Subscribe(packet_id, filters))
        codes = (await client.expect(packets.Suback)).codes
        assert len(codes) == 1000
        assert codes.count(packets.SUBACK_FAILURE) == (
            1000 - server.limits.subscriptions if topic_filter == MINE else 1000
        )
    client.send(packets.Unsubscribe(3, tuple(each for each, _ in filters)))
    await client.receive_until_pong()
    await check_served(server, viewer)


@each_row("packet", [packets.Subscribe(1, (("x", 0),) * 1001), packets.Unsubscribe(1, ("x",) * 1001)])
async def test_more_than_a_thousand_filters_in_one_packet_close_the_connection(
    server: RunningBroker, packet: packets.Subscribe | packets.Unsubscribe
) -> None:
    viewer, client = await connect_viewer(server), await server.gateway()
    client.send(packet)
    assert await client.receive_until_closed() == []
    await check_served(server, viewer)


@each_row("level", ["", "+", "x", "\U0001f300"])
async def test_the_deepest_and_longest_names_do_no_harm(server: RunningBroker, level: str) -> None:
    viewer, client = await connect_viewer(server), await server.gateway()
    prefix = f"mt/gateway/{G}/device/"
    count = (0xFFFF - len(prefix) - 2) // (len(level.encode()) + 1)
    deep = prefix + "/".join([level] * count)
    client.send(packets.Subscribe(1, ((f"{deep}/#", 0),)))
    assert (await client.expect(packets.Suback)).codes == (packets.SUBACK_FAILURE,)
    if level != "+":
        for qos, packet_id in ((0, 0), (1, 1), (2, 2)):
            client.send(packets.Publish(deep, b"{}", qos, retain=True, packet_id=packet_id))
        await client.receive_until_pong()
        assert len(server.broker.retained) == 0
    await check_served(server, viewer)


@each_row("size", [0xFFFF, 0xFFFE])
async def test_the_longest_topic_reaches_its_subscriber(server: RunningBroker, size: int) -> None:
    viewer, gateway = await server.subscriber("viewer", REPORTS), await server.gateway()
    topic = report(kind="").ljust(size, "x")
    gateway.send(packets.Publish(topic, b"{}", 1, packet_id=1))
    assert await gateway.expect(packets.Puback) == packets.Puback(1)
    assert (await viewer.expect(packets.Publish)).topic == topic


async def test_client_ids_cannot_forge_log_lines(
    server: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    client = await server.client("viewer", client_id="x\nforged", clean=False)
    await client.close()
    await server.until(lambda: len(server.broker.connections) == 0)
    for _ in range(server.limits.session_age // 500 + 1):
        server.clock.move(seconds=500)
        server.broker.sessions.delete_expired(server.clock())
    assert len(server.broker.sessions) == 0
    assert not any("\n" in record.getMessage() for record in caplog.records)


async def test_repeated_connects_and_disconnects_leave_nothing(server: RunningBroker) -> None:
    viewer = await connect_viewer(server)
    for index in range(100):
        client = await server.raw_client()
        client.send(connect(G, clean=bool(index % 3), will=packets.Will(report(), b"{}", index % 2)))
        client.send(packets.Subscribe(1, ((MINE, 1),)), packets.Publish(request(), b"{}"))
        if index % 5:
            await client.receive()
        client.abort()
    await server.until(lambda: len(server.broker.connections) == 1)
    assert len(server.broker.sessions) <= 2
    await check_served(server, viewer)
