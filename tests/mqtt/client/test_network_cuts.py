"""The network is cut anywhere, or falls silent; the link comes back, and nothing is lost."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.mqtt import BrokerUnreachable, ConnectionLost, LinkClosed, Undelivered
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttClient, MqttOptions, Publish
from meshfleet.mqtt.codec.packets import Puback, Suback
from tests.mqtt.client.proxy import (
    FAST_RECONNECT,
    TIMEOUT,
    Cut,
    Proxy,
    impatient_link,
    receive_messages,
    receive_messages_until,
    to_address,
    unique_name,
)
from tests.row_tables import each_row
from tests.servers import Mosquitto, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tests.servers import ServerAddress as Place

pytestmark = pytest.mark.anyio

AT_ONCE = MqttOptions(backoff=ExponentialBackoff(initial=0.001, maximum=0.002))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    settings = ("max_inflight_messages 0", "max_queued_messages 0", "set_tcp_nodelay true")  # 0 is no limit
    with Mosquitto(tmp_path_factory.mktemp("mosquitto"), *settings) as broker:
        yield broker.address


@pytest.fixture
def topic() -> str:
    return unique_name("t")[:10]


async def speak(link: MqttClient, topic: str, enough: asyncio.Event) -> list[bytes]:
    """Publish number after number, then a last word; the numbers that the broker has taken."""
    taken: list[bytes] = []
    while not enough.is_set():
        await link.publish(topic, b"%d" % len(taken))
        taken.append(b"%d" % len(taken))
    await link.publish(topic, b"end")
    return taken


def up_to(bytes_: int) -> list[Cut]:
    return [Cut(up=count) for count in range(bytes_)]


def down_to(bytes_: int) -> list[Cut]:
    return [Cut(down=count) for count in range(bytes_)]


@pytest.mark.parametrize(
    "cuts", [up_to(120), down_to(120)], ids=["while we speak", "while the broker speaks"]
)
async def test_a_network_that_is_cut_one_byte_later_each_time_loses_nothing(
    place: Place, topic: str, cuts: Sequence[Cut]
) -> None:
    enough = asyncio.Event()
    async with (
        Proxy(place) as proxy,
        MqttClient(proxy.address, unique_name("c")[:10], options=AT_ONCE) as link,
    ):
        await link.subscribe(topic)
        async with asyncio.TaskGroup() as tasks:
            speaking = tasks.create_task(speak(link, topic, enough))
            listening = tasks.create_task(receive_messages_until(link, b"end"))
            proxy.plan(*cuts)
            await proxy.cut()
            await proxy.until(lambda: not proxy.planned and proxy.connections[-1].over)
            enough.set()
        reached = [(len(each.up), len(each.down)) for each in proxy.connections if each.cut != Cut()]
        sent = {
            (each.payload, each.packet_id)
            for passage in proxy.connections
            for each in passage.client_packets(Publish)
        }
    assert list(dict.fromkeys(message.payload for message in listening.result())) == speaking.result()
    assert all(
        cut.up in {None, up} and cut.down in {None, down}
        for cut, (up, down) in zip(cuts, reached, strict=True)
    )
    payloads = {payload for payload, _ in sent}
    assert len(payloads) == len(sent), "a message changed its id"
    assert len({packet_id for _, packet_id in sent}) == len(sent), "two messages shared an id"


@pytest.mark.parametrize("direction", ["up", "down"])
async def test_a_clean_session_is_subscribed_again_however_often_that_is_cut(
    place: Place, topic: str, direction: str
) -> None:
    async with (
        Proxy(place) as proxy,
        MqttClient(proxy.address, unique_name("c")[:10], clean=True, options=AT_ONCE) as ear,
        MqttClient(to_address(place), unique_name("mouth"), clean=True) as mouth,
    ):
        await ear.subscribe(topic, f"{topic}/+")
        first = proxy.connections[0]
        whole = {"up": len(first.up), "down": len(first.down)}[direction]
        proxy.plan(*(Cut(**{direction: count}) for count in range(whole)))
        await proxy.cut()
        await proxy.until(
            lambda: len(proxy.connections) == whole + 2 and proxy.connections[-1].broker_packets(Suback)
        )
        await mouth.publish(f"{topic}/a", b"heard")
        assert [message.payload for message in await receive_messages(ear, 1)] == [b"heard"]
        assert proxy.connections[-1].up.startswith(first.up)


@each_row("down", [4, 5, 6, 8])
async def test_a_subscription_that_is_cut_before_its_answer_is_asked_again(
    place: Place, topic: str, down: int
) -> None:
    async with Proxy(place) as proxy:
        proxy.plan(Cut(down=down))  # a CONNACK has four bytes, a SUBACK five
        async with MqttClient(proxy.address, unique_name("ear"), clean=True, options=FAST_RECONNECT) as link:
            async with asyncio.timeout(TIMEOUT):
                await link.subscribe(topic)
            await link.publish(topic, b"heard")
            assert [message.payload for message in await receive_messages(link, 1)] == [b"heard"]
        assert len(proxy.connections) == 2


@each_row("cut", [Cut(up=0), Cut(up=9), Cut(down=0), Cut(down=1), Cut(down=3)])
async def test_a_broker_whose_answer_is_cut_off_counts_as_unreachable(place: Place, cut: Cut) -> None:
    async with Proxy(place) as proxy:
        proxy.plan(cut)
        with pytest.raises(BrokerUnreachable, match=f"^{proxy.address}: .+"):
            await MqttClient(proxy.address, unique_name("c"), clean=True).__aenter__()
        async with MqttClient(proxy.address, unique_name("c"), clean=True) as link:
            assert link.connection_error is None


@pytest.mark.parametrize(
    "cuts",
    [
        [Cut(up=n) for n in range(1_000, 2_000_000, 400_000)],
        [Cut(down=n) for n in range(1_000, 2_000_000, 400_000)],
    ],
    ids=["while we speak", "while the broker speaks"],
)
async def test_large_messages_survive_a_cut_in_their_midst(
    place: Place, topic: str, cuts: Sequence[Cut]
) -> None:
    large = [bytes((number,)) * 300_000 for number in range(10)]
    async with Proxy(place) as proxy, MqttClient(proxy.address, unique_name("c"), options=AT_ONCE) as link:
        await link.subscribe(topic)
        proxy.plan(*cuts)
        await proxy.cut()
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(receive_messages_until(link, b"end"))
            await link.publish_all([Publish(topic, payload, 1) for payload in large])
            await proxy.until(lambda: not proxy.planned)
            await link.publish(topic, b"end")
    assert list(dict.fromkeys(message.payload for message in listening.result())) == large


async def test_publishes_that_are_pending_at_a_cut_return_after_it(place: Place, topic: str) -> None:
    async with (
        Proxy(place) as proxy,
        MqttClient(proxy.address, unique_name("mouth"), options=FAST_RECONNECT) as mouth,
        MqttClient(to_address(place), unique_name("ear")) as ear,
        asyncio.TaskGroup() as tasks,
    ):
        await ear.subscribe(topic)
        proxy.stall()
        pending = [tasks.create_task(mouth.publish(topic, b"%d" % number)) for number in range(100)]
        await asyncio.sleep(0)
        await proxy.cut()
        proxy.resume()
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*pending)
        assert [message.payload for message in await receive_messages(ear, 100)] == [
            b"%d" % number for number in range(100)
        ]


@pytest.mark.parametrize(
    ("up", "down"),
    [(True, True), (True, False), (False, True)],
    ids=["both ways", "up", "down"],
)
async def test_a_network_that_falls_silent_is_noticed(
    place: Place, topic: str, *, up: bool, down: bool
) -> None:
    options = MqttOptions(keep_alive=1, timeout=2.0, backoff=ExponentialBackoff(initial=0.01, maximum=0.05))
    async with Proxy(place) as proxy, MqttClient(proxy.address, unique_name("c"), options=options) as link:
        await link.subscribe(topic)
        proxy.stall(up=up, down=down)
        async with asyncio.TaskGroup() as tasks:
            publishing = tasks.create_task(link.publish(topic, b"held up"))
            await proxy.until(lambda: len(proxy.connections) > 1)
            assert isinstance(link.connection_error, ConnectionLost | BrokerUnreachable)
            assert not publishing.done()
            proxy.resume()
            async with asyncio.timeout(TIMEOUT):
                await publishing
        await link.publish(topic, b"end")
        assert {message.payload for message in await receive_messages_until(link, b"end")} == {b"held up"}


async def test_an_idle_link_keeps_a_quiet_connection(place: Place) -> None:
    """Any connection will do: a broker that is kept from answering for a moment loses one."""
    async with (
        Proxy(place) as proxy,
        MqttClient(proxy.address, unique_name("c"), options=MqttOptions(keep_alive=1)),
    ):
        await proxy.until(
            lambda: any(bytes(each.down).count(b"\xd0\x00") > 1 for each in proxy.connections)  # PINGRESP
        )


async def test_closing_while_the_network_is_silent_tells_what_is_undelivered(
    place: Place, topic: str
) -> None:
    async with Proxy(place) as proxy:
        link = await impatient_link(proxy.address)
        proxy.stall()
        pending = [asyncio.create_task(link.publish(topic, b"lost")) for _ in range(3)]
        await asyncio.sleep(0)
        with pytest.raises(Undelivered, match="3 messages"):
            await link.close()
        for outcome in await asyncio.gather(*pending, return_exceptions=True):
            assert isinstance(outcome, Undelivered)


async def test_closing_while_the_broker_is_away_tells_what_is_undelivered(tmp_path: Path, topic: str) -> None:
    with Mosquitto(tmp_path) as broker:
        async with Proxy(broker.address) as proxy:
            link = await impatient_link(proxy.address)
            proxy.stall(up=False)
            pending = asyncio.create_task(link.publish(topic, b"lost"))
            await proxy.until(lambda: proxy.connections[-1].client_packets(Publish))
            await asyncio.to_thread(broker.stop)
            await proxy.cut()
            with pytest.raises(Undelivered, match="one message"):
                await link.close()
            with pytest.raises(Undelivered):
                await pending
            with pytest.raises(LinkClosed):
                await link.publish(topic, b"too late")


async def test_a_publisher_with_more_than_fits_is_refused_at_the_close_and_nothing_else_happens(
    place: Place, topic: str
) -> None:
    async with Proxy(place) as proxy:
        link = await impatient_link(proxy.address, MqttOptions(window=10))
        proxy.stall()
        pending = asyncio.create_task(link.publish_all([Publish(topic, b"lost", 1)] * 30))
        await asyncio.sleep(0)
        with pytest.raises(Undelivered, match="10 messages"):
            await link.close()
        with pytest.raises(LinkClosed):
            await pending
        del pending
        gc.collect()  # an error that nobody could fetch would be told now, and fail the test


async def test_a_batch_acknowledged_while_the_link_takes_leave_does_no_harm(place: Place, topic: str) -> None:
    async with Proxy(place) as proxy:
        link = await impatient_link(proxy.address)
        await link.subscribe(topic)
        await link.publish(topic, b"late")
        async with asyncio.timeout(TIMEOUT):
            batch = await link.receive()
        proxy.stall(up=False)  # the broker's good-bye does not come
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(link.close())
            await proxy.until(lambda: proxy.connections[-1].up.endswith(b"\xe0\x00"))  # DISCONNECT
            batch.acknowledge()
        assert proxy.connections[-1].client_packets(Puback) == []


async def test_nobody_at_the_address_is_an_error_at_once() -> None:
    nowhere = BrokerAddress(host="127.0.0.1", port=free_port())
    with pytest.raises(BrokerUnreachable, match=f"^{nowhere}: Connection refused"):
        await MqttClient(nowhere, unique_name("c")).__aenter__()


async def test_the_patient_wait_for_a_broker_that_is_not_there_yet(tmp_path: Path, topic: str) -> None:
    broker = Mosquitto(tmp_path)
    options = MqttOptions(retry_first_connect=True, backoff=ExponentialBackoff(initial=0.01, maximum=0.05))
    try:
        async with (
            asyncio.timeout(TIMEOUT),
            MqttClient(to_address(broker.address), unique_name("c"), options=options) as link,
            asyncio.TaskGroup() as tasks,
        ):
            assert "Connection refused" in str(link.connection_error)
            subscribing = tasks.create_task(link.subscribe(topic))
            await asyncio.to_thread(broker.start)
            await subscribing
            assert link.connection_error is None
            await link.publish(topic, b"at last")
            assert [message.payload for message in await receive_messages(link, 1)] == [b"at last"]
    finally:
        broker.stop()


async def test_the_patient_can_leave_before_the_broker_comes() -> None:
    nowhere = BrokerAddress(host="127.0.0.1", port=free_port())
    async with (
        asyncio.timeout(TIMEOUT),
        MqttClient(nowhere, unique_name("c"), options=MqttOptions(retry_first_connect=True)) as link,
    ):
        waiting = asyncio.create_task(link.publish("a", b"never"))
        await asyncio.sleep(0)
    with pytest.raises(LinkClosed):
        await waiting
