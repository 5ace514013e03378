"""The network is cut anywhere or stalls; the client reconnects, and no message is lost."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.mqtt import BrokerUnreachable, ConnectionClosed, ConnectionLost, Undelivered
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttClient, MqttOptions, Publish
from meshfleet.mqtt.codec.packets import Puback, Suback
from tests.mqtt.client.proxy import (
    FAST_RECONNECT,
    TIMEOUT,
    Cut,
    Proxy,
    connect_with_short_timeout,
    receive_messages,
    receive_messages_until,
    to_address,
    unique_name,
)
from tests.row_tables import each_row
from tests.servers import Mosquitto, ServerAddress, free_port

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


pytestmark = pytest.mark.anyio

AT_ONCE = MqttOptions(backoff=ExponentialBackoff(initial=0.001, maximum=0.002))


@pytest.fixture
def topic() -> str:
    return unique_name("t")[:10]


async def publish_numbers(client: MqttClient, topic: str, stop: asyncio.Event) -> list[bytes]:
    """Publish number after number, then `end`. Return the numbers that the broker acknowledged."""
    acknowledged: list[bytes] = []
    while not stop.is_set():
        await client.publish(topic, b"%d" % len(acknowledged))
        acknowledged.append(b"%d" % len(acknowledged))
    await client.publish(topic, b"end")
    return acknowledged


def cuts_up(bytes_: int) -> list[Cut]:
    return [Cut(up=count) for count in range(bytes_)]


def cuts_down(bytes_: int) -> list[Cut]:
    return [Cut(down=count) for count in range(bytes_)]


@pytest.mark.parametrize(
    "cuts", [cuts_up(120), cuts_down(120)], ids=["while the client sends", "while the broker sends"]
)
async def test_cuts_after_every_number_of_bytes_lose_nothing(
    server_address: ServerAddress, topic: str, cuts: Sequence[Cut]
) -> None:
    stop = asyncio.Event()
    async with (
        Proxy(server_address) as proxy,
        MqttClient(proxy.address, unique_name("c")[:10], options=AT_ONCE) as client,
    ):
        await client.subscribe(topic)
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(publish_numbers(client, topic, stop))
            receiving = tasks.create_task(receive_messages_until(client, b"end"))
            proxy.plan(*cuts)
            await proxy.cut()
            await proxy.until(lambda: not proxy.planned and proxy.connections[-1].over)
            stop.set()
        reached = [(len(each.up), len(each.down)) for each in proxy.connections if each.cut != Cut()]
        sent = {
            (each.payload, each.packet_id)
            for connection in proxy.connections
            for each in connection.client_packets(Publish)
        }
    assert list(dict.fromkeys(message.payload for message in receiving.result())) == publishing.result()
    assert all(
        cut.up in {None, up} and cut.down in {None, down}
        for cut, (up, down) in zip(cuts, reached, strict=True)
    )
    payloads = {payload for payload, _ in sent}
    assert len(payloads) == len(sent), "a message changed its packet identifier"
    assert len({packet_id for _, packet_id in sent}) == len(sent), "two messages shared a packet identifier"


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_clean_session_is_subscribed_again_after_any_number_of_cuts(
    server_address: ServerAddress, topic: str, direction: str
) -> None:
    async with (
        Proxy(server_address) as proxy,
        MqttClient(proxy.address, unique_name("c")[:10], clean=True, options=AT_ONCE) as subscriber,
        MqttClient(to_address(server_address), unique_name("publisher"), clean=True) as publisher,
    ):
        await subscriber.subscribe(topic, f"{topic}/+")
        first = proxy.connections[0]
        total = {"up": len(first.up), "down": len(first.down)}[direction]
        proxy.plan(*(Cut(**{direction: count}) for count in range(total)))
        await proxy.cut()
        await proxy.until(
            lambda: len(proxy.connections) == total + 2 and proxy.connections[-1].broker_packets(Suback)
        )
        await publisher.publish(f"{topic}/a", b"heard")
        assert [message.payload for message in await receive_messages(subscriber, 1)] == [b"heard"]
        assert proxy.connections[-1].up.startswith(first.up)


@each_row("down", [4, 5, 6, 8])
async def test_a_subscription_that_is_cut_before_its_suback_is_sent_again(
    server_address: ServerAddress, topic: str, down: int
) -> None:
    async with Proxy(server_address) as proxy:
        proxy.plan(Cut(down=down))  # a CONNACK has four bytes, a SUBACK five
        async with MqttClient(
            proxy.address, unique_name("subscriber"), clean=True, options=FAST_RECONNECT
        ) as client:
            async with asyncio.timeout(TIMEOUT):
                await client.subscribe(topic)
            await client.publish(topic, b"heard")
            assert [message.payload for message in await receive_messages(client, 1)] == [b"heard"]
        assert len(proxy.connections) == 2


@each_row("cut", [Cut(up=0), Cut(up=9), Cut(down=0), Cut(down=1), Cut(down=3)])
async def test_a_broker_whose_connack_is_cut_off_is_unreachable(
    server_address: ServerAddress, cut: Cut
) -> None:
    async with Proxy(server_address) as proxy:
        proxy.plan(cut)
        with pytest.raises(BrokerUnreachable, match=f"^{proxy.address}: .+"):
            await MqttClient(proxy.address, unique_name("c"), clean=True).__aenter__()
        async with MqttClient(proxy.address, unique_name("c"), clean=True) as client:
            assert client.connection_error is None


@pytest.mark.parametrize(
    "cuts",
    [
        [Cut(up=n) for n in range(1_000, 2_000_000, 400_000)],
        [Cut(down=n) for n in range(1_000, 2_000_000, 400_000)],
    ],
    ids=["while the client sends", "while the broker sends"],
)
async def test_large_messages_survive_a_cut_in_the_middle(
    server_address: ServerAddress, topic: str, cuts: Sequence[Cut]
) -> None:
    large = [bytes((number,)) * 300_000 for number in range(10)]
    async with (
        Proxy(server_address) as proxy,
        MqttClient(proxy.address, unique_name("c"), options=AT_ONCE) as client,
    ):
        await client.subscribe(topic)
        proxy.plan(*cuts)
        await proxy.cut()
        async with asyncio.TaskGroup() as tasks:
            receiving = tasks.create_task(receive_messages_until(client, b"end"))
            await client.publish_all([Publish(topic, payload, 1) for payload in large])
            await proxy.until(lambda: not proxy.planned)
            await client.publish(topic, b"end")
    assert list(dict.fromkeys(message.payload for message in receiving.result())) == large


async def test_pending_publishes_return_after_a_cut(server_address: ServerAddress, topic: str) -> None:
    async with (
        Proxy(server_address) as proxy,
        MqttClient(proxy.address, unique_name("publisher"), options=FAST_RECONNECT) as publisher,
        MqttClient(to_address(server_address), unique_name("subscriber")) as subscriber,
        asyncio.TaskGroup() as tasks,
    ):
        await subscriber.subscribe(topic)
        proxy.stall()
        pending = [tasks.create_task(publisher.publish(topic, b"%d" % number)) for number in range(100)]
        await asyncio.sleep(0)
        await proxy.cut()
        proxy.resume()
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*pending)
        assert [message.payload for message in await receive_messages(subscriber, 100)] == [
            b"%d" % number for number in range(100)
        ]


@pytest.mark.parametrize(
    ("up", "down"),
    [(True, True), (True, False), (False, True)],
    ids=["both directions", "up", "down"],
)
async def test_a_stalled_network_is_detected(
    server_address: ServerAddress, topic: str, *, up: bool, down: bool
) -> None:
    options = MqttOptions(keep_alive=1, timeout=2.0, backoff=ExponentialBackoff(initial=0.01, maximum=0.05))
    async with (
        Proxy(server_address) as proxy,
        MqttClient(proxy.address, unique_name("c"), options=options) as client,
    ):
        await client.subscribe(topic)
        proxy.stall(up=up, down=down)
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(client.publish(topic, b"held up"))
            await proxy.until(lambda: len(proxy.connections) > 1)
            assert isinstance(client.connection_error, ConnectionLost | BrokerUnreachable)
            assert not publishing.done()
            proxy.resume()
            async with asyncio.timeout(TIMEOUT):
                await publishing
        await client.publish(topic, b"end")
        assert {message.payload for message in await receive_messages_until(client, b"end")} == {b"held up"}


async def test_an_idle_connection_is_kept_open(server_address: ServerAddress) -> None:
    """Accept any connection: a broker that is delayed for a moment loses one."""
    async with (
        Proxy(server_address) as proxy,
        MqttClient(proxy.address, unique_name("c"), options=MqttOptions(keep_alive=1)),
    ):
        await proxy.until(
            lambda: any(bytes(each.down).count(b"\xd0\x00") > 1 for each in proxy.connections)  # PINGRESP
        )


async def test_closing_while_the_network_is_stalled_raises_undelivered(
    server_address: ServerAddress, topic: str
) -> None:
    async with Proxy(server_address) as proxy:
        client = await connect_with_short_timeout(proxy.address)
        proxy.stall()
        pending = [asyncio.create_task(client.publish(topic, b"lost")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Undelivered, match="3 messages"):
            await client.close()
        for outcome in await asyncio.gather(*pending, return_exceptions=True):
            assert isinstance(outcome, Undelivered)


async def test_closing_while_the_broker_is_stopped_raises_undelivered(tmp_path: Path, topic: str) -> None:
    with Mosquitto(tmp_path) as broker:
        async with Proxy(broker.address) as proxy:
            client = await connect_with_short_timeout(proxy.address)
            proxy.stall(up=False)
            pending = asyncio.create_task(client.publish(topic, b"lost"))
            await proxy.until(lambda: proxy.connections[-1].client_packets(Publish))
            await asyncio.to_thread(broker.stop)
            await proxy.cut()
            with pytest.raises(Undelivered, match="one message"):
                await client.close()
            with pytest.raises(Undelivered):
                await pending
            with pytest.raises(ConnectionClosed):
                await client.publish(topic, b"too late")


async def test_a_publisher_that_waits_for_the_window_is_refused_at_close(
    server_address: ServerAddress, topic: str
) -> None:
    async with Proxy(server_address) as proxy:
        client = await connect_with_short_timeout(proxy.address, MqttOptions(window=10))
        proxy.stall()
        pending = asyncio.create_task(client.publish_all([Publish(topic, b"lost", 1)] * 30))
        await asyncio.sleep(0)
        with pytest.raises(Undelivered, match="10 messages"):
            await client.close()
        with pytest.raises(ConnectionClosed):
            await pending
        del pending
        gc.collect()  # an error that was never retrieved would be logged now, and fail the test


async def test_a_batch_may_be_acknowledged_while_the_client_closes(
    server_address: ServerAddress, topic: str
) -> None:
    async with Proxy(server_address) as proxy:
        client = await connect_with_short_timeout(proxy.address)
        await client.subscribe(topic)
        await client.publish(topic, b"late")
        async with asyncio.timeout(TIMEOUT):
            batch = await client.receive()
        proxy.stall(up=False)  # the close of the broker is held back
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(client.close())
            await proxy.until(lambda: proxy.connections[-1].up.endswith(b"\xe0\x00"))  # DISCONNECT
            batch.acknowledge()
        assert proxy.connections[-1].client_packets(Puback) == []


async def test_an_address_without_a_listener_is_an_error_at_once() -> None:
    nowhere = BrokerAddress(host="127.0.0.1", port=free_port())
    with pytest.raises(BrokerUnreachable, match=f"^{nowhere}: Connection refused"):
        await MqttClient(nowhere, unique_name("c")).__aenter__()


async def test_retry_first_connect_waits_for_a_broker_that_starts_later(tmp_path: Path, topic: str) -> None:
    broker = Mosquitto(tmp_path)
    options = MqttOptions(retry_first_connect=True, backoff=ExponentialBackoff(initial=0.01, maximum=0.05))
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            MqttClient(to_address(broker.address), unique_name("c"), options=options) as client,
            asyncio.TaskGroup() as tasks,
        ):
            assert "Connection refused" in str(client.connection_error)
            subscribing = tasks.create_task(client.subscribe(topic))
            await asyncio.to_thread(broker.start)
            await subscribing
            assert client.connection_error is None
            await client.publish(topic, b"at last")
            assert [message.payload for message in await receive_messages(client, 1)] == [b"at last"]
    finally:
        broker.stop()


async def test_a_client_that_waits_for_its_first_connection_can_be_closed() -> None:
    nowhere = BrokerAddress(host="127.0.0.1", port=free_port())
    async with (
        asyncio.timeout(TIMEOUT),
        MqttClient(nowhere, unique_name("c"), options=MqttOptions(retry_first_connect=True)) as client,
    ):
        waiting = asyncio.create_task(client.publish("a", b"never"))
        await asyncio.sleep(0)
    with pytest.raises(ConnectionClosed):
        await waiting
