"""One connection: how it begins, what the broker may not do, and how a silent broker is noticed."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from meshfleet.errors.mqtt import (
    BrokerUnreachable,
    ConnectionLost,
    ConnectionRefused,
    LinkError,
    SubscriptionRefused,
)
from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.client import BrokerAddress, MqttClient, Will
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import (
    Connack,
    Connect,
    ConnectReturnCode,
    OversizedPublish,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Pubrec,
    Suback,
    Subscribe,
    Unsuback,
)
from tests.eventually import RETRY_TIMEOUTS
from tests.mqtt.client.scripted_broker import (
    NO_RECONNECT,
    PING_INTERVALS,
    QUICK_OPTIONS,
    Peer,
    ScriptedBroker,
    answered_pings,
    wait_until,
    with_timeout,
)
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.anyio, pytest.mark.both_loops]

WILL = Will("gone", b"\x00\xff", qos=1, retain=True)


@each_row(
    ("clean", "will", "user", "keep_alive"),
    [
        (False, None, None, 60),
        (True, WILL, None, 0),
        (True, None, ("u", None), 1),
        (False, WILL, ("ü", "pä:/@"), 65_535),
    ],
)
async def test_the_first_packet_says_who_we_are(
    *, clean: bool, will: Will | None, user: tuple[str, str | None] | None, keep_alive: int
) -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client(clean=clean, will=will, user=user, keep_alive=keep_alive):
            await broker.accept()
        name, password = user or (None, None)
        secret = None if password is None else password.encode()
        assert broker.peers[0].received[0] == Connect("ours", clean, keep_alive, will, name, secret)


@each_row("code", [code for code in ConnectReturnCode if code])
async def test_a_refusal_tells_who_refuses_and_why(code: ConnectReturnCode) -> None:
    async with ScriptedBroker(Connack(code=code)) as broker:
        with pytest.raises(ConnectionRefused) as caught:
            await with_timeout(broker.create_client(user=("theuser", "t0psecret")).__aenter__())
        refusal = caught.value
        assert (refusal.broker, refusal.return_code) == (str(broker.address), code)
        assert (
            str(refusal)
            == f"{broker.address} refuses the connection: {refusal.message} (return code {code:d})"
        )
        assert len(refusal.message.split()) > 1
        assert "secret" not in repr(refusal)
        await wait_until(lambda: broker.peers[0].gone)


async def test_what_follows_a_refusal_is_not_heard() -> None:
    async with (
        ScriptedBroker() as broker,
        broker.create_client(backoff=replace(QUICK_OPTIONS.backoff, initial=0.001)) as link,
    ):
        peer = await broker.accept()
        publishing = asyncio.create_task(link.publish("t", b""))
        (message,) = await peer.publishes(1)
        broker.connack = None
        peer.close()
        for _ in range(2):
            refusing = await broker.accept()
            await refusing.expect(Connect)
            refusing.send(
                Connack(code=ConnectReturnCode.NOT_AUTHORIZED), Puback(message.packet_id), Publish("t", b"no")
            )
        broker.connack = Connack()
        peer = await broker.accept()
        assert await peer.publishes(1) == [replace(message, dup=True)]
        peer.acknowledge([message])
        await with_timeout(publishing)
        peer.send(Publish("t", b"yes"))
        assert (await with_timeout(link.receive())).messages == [Publish("t", b"yes")]


@each_row(
    ("first", "words"),
    [
        (Publish("a", b""), "PUBLISH instead of CONNACK"),
        (Pingresp(), "PINGRESP instead of CONNACK"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "protocol violation by the broker"),
        (b"\x20\x02\x00\x06", "CONNACK return code: 6 is reserved"),
        (b"\x20\x02\x01\x05", "CONNACK session present"),
        (b"\x34\x05\x00\x01a\x00\x01", "PUBLISH qos: 2 is higher than accepted"),
    ],
)
async def test_a_broker_that_does_not_begin_with_connack_is_none(first: Packet | bytes, words: str) -> None:
    async with ScriptedBroker(connack=None) as broker:
        entering = asyncio.create_task(broker.create_client().__aenter__())
        peer = await broker.accept()
        await peer.expect(Connect)
        peer.send(first, Publish("a", b"nor is this heard"))
        with pytest.raises(BrokerUnreachable, match=words) as caught:
            await entering
        assert str(broker.address) in str(caught.value)
        await wait_until(lambda: peer.gone)


async def test_a_session_that_should_be_clean_and_is_not_is_refused() -> None:
    async with ScriptedBroker(Connack(session_present=True)) as broker:
        with pytest.raises(LinkError, match="kept a session although a clean session was requested"):
            await with_timeout(broker.create_client(clean=True).__aenter__())  # [MQTT-3.2.2-1]
        await wait_until(lambda: broker.peers[0].gone)


async def test_a_connection_that_ends_with_its_first_packets_is_none() -> None:
    async with ScriptedBroker(connack=None) as broker:
        entering = asyncio.create_task(broker.create_client().__aenter__())
        peer = await broker.accept()
        await peer.expect(Connect)
        peer.send(Connack(), b"HTTP/1.1 400 Bad Request\r\n\r\n")
        with pytest.raises(ConnectionLost, match="protocol violation by the broker"):
            await with_timeout(entering)
        await wait_until(lambda: peer.gone)


ENDS: list[Callable[[Peer], None]] = [Peer.close, Peer.reset]


@each_row("end", ENDS)
@each_row("reads", [True, False])
async def test_a_broker_that_ends_the_connection_instead_of_an_answer_is_unreachable(
    end: Callable[[Peer], None], *, reads: bool
) -> None:
    async with ScriptedBroker(connack=None) as broker:
        entering = asyncio.create_task(broker.create_client().__aenter__())
        peer = await broker.accept()
        if reads:
            await peer.expect(Connect)
        peer.send(b"\x20")
        end(peer)
        with pytest.raises(BrokerUnreachable, match=r"clos|reset"):
            await entering


@pytest.mark.parametrize(
    ("end", "words"), [(Peer.close, "the broker closed the connection"), (Peer.reset, "reset")]
)
async def test_a_connection_that_ends_later_tells_how(end: Callable[[Peer], None], words: str) -> None:
    async with ScriptedBroker() as broker, broker.create_client(backoff=NO_RECONNECT) as link:
        asking = asyncio.create_task(link.subscribe("a"))
        peer = await broker.accept()
        await peer.expect(Subscribe)
        end(peer)
        await wait_until(lambda: link.connection_error)
        assert isinstance(link.connection_error, ConnectionLost)
        assert words in str(link.connection_error)
        asking.cancel()


async def test_a_broker_that_never_answers_is_unreachable() -> None:
    async with ScriptedBroker(connack=None) as broker:
        for limit in RETRY_TIMEOUTS:
            with pytest.raises(BrokerUnreachable, match=f"did not respond within {limit:g} seconds"):
                await with_timeout(broker.create_client(timeout=limit).__aenter__())
            await wait_until(lambda: all(peer.gone for peer in broker.peers))
            if broker.peers:
                break
        assert broker.peers


async def test_nobody_at_the_address_is_said_in_words() -> None:
    async with ScriptedBroker() as broker:
        link = broker.create_client()
    with pytest.raises(BrokerUnreachable, match="Connection refused"):
        await with_timeout(link.__aenter__())


@each_row(
    "link",
    [
        lambda address: MqttClient(address, ""),
        lambda address: MqttClient(address, "nul\0"),
        lambda address: MqttClient(address, "x", options=replace(QUICK_OPTIONS, keep_alive=65_536)),
        lambda address: MqttClient(address, "x", will=Will("a/#", b"")),
        lambda address: MqttClient(address, "x", will=Will("a", b"", qos=3)),
        lambda address: MqttClient(replace(address, password="p"), "x"),  # noqa: S106 # it is none
    ],
)
async def test_an_introduction_that_breaks_the_rules_is_the_callers_mistake(
    link: Callable[[BrokerAddress], MqttClient],
) -> None:
    async with ScriptedBroker() as broker:
        with pytest.raises(MalformedPacket, match=r"^CONNECT "):
            await with_timeout(link(broker.address).__aenter__())
        assert not broker.peers


@each_row(
    ("packet", "words"),
    [
        (Connack(), "the broker sent an unexpected CONNACK"),
        (Suback(60_001, (0,)), "the broker sent an unexpected SUBACK"),
        (Unsuback(1), "the broker sent an unexpected UNSUBACK"),
        (Pubrec(1), "the broker sent an unexpected PUBREC"),
        (
            Publish("a", b"", qos=2, packet_id=1),
            "protocol violation by the broker: PUBLISH qos: 2 is higher than accepted",
        ),
        (Pingreq(), "protocol violation by the broker: packet: no packet in this direction starts with 0xc0"),
        (b"\x00\x00", "protocol violation by the broker"),
        (b"\x30\x03\x00\x01#", "protocol violation by the broker: PUBLISH topic"),
        (
            b"\x90\x80\x80\x80\x01",
            "protocol violation by the broker: packet: 2097152 bytes are more than 1000",
        ),
    ],
)
@each_row("times", [1, 100])
async def test_a_broker_that_breaks_the_rules_is_left_and_told_about(
    packet: Packet | bytes, words: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        ScriptedBroker() as broker,
        broker.create_client(backoff=NO_RECONNECT, max_packet_bytes=1000) as link,
    ):
        peer = await broker.accept()
        raw = packet if isinstance(packet, bytes) else encode_packet(packet)
        peer.send(*[Pingresp()] * times, *[raw] * times)
        await wait_until(lambda: link.connection_error)
        assert isinstance(link.connection_error, ConnectionLost)
        assert words in str(link.connection_error)
        await wait_until(lambda: peer.gone)
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_a_message_too_large_arrives_without_its_payload_and_the_connection_goes_on() -> None:
    async with ScriptedBroker() as broker, broker.create_client(max_packet_bytes=1000) as link:
        peer = await broker.accept()
        peer.send(Publish("big", bytes(2000), qos=1, packet_id=7), Publish("small", b"x"))
        got: list[Publish] = []
        while len(got) < 2:
            batch = await with_timeout(link.receive())
            batch.acknowledge()
            got += batch.messages
        assert got == [OversizedPublish("big", b"", 1, packet_id=7, size=2000), Publish("small", b"x")]
        assert await peer.next() == Puback(7)


@each_row(
    ("qos", "codes", "refused"),
    [
        (1, (1, 1), ()),
        (1, (0, 1), ("a",)),
        (1, (128, 128), ("a", "b")),
        (0, (0, 128), ("b",)),
        (0, (0, 0), ()),
    ],
)
async def test_what_is_granted_lower_than_asked_is_refused(
    qos: int, codes: tuple[int, ...], refused: tuple[str, ...]
) -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        asking = asyncio.create_task(link.subscribe("a", "b", qos=qos))
        asked = await peer.grant(*codes)
        assert asked.filters == (("a", qos), ("b", qos))
        assert asked.packet_id > 60_000
        if refused:
            with pytest.raises(SubscriptionRefused) as caught:
                await asking
            assert caught.value.filters == refused
        else:
            await asking


@each_row("wrong", [Suback(1, (1,)), Suback(1, (1, 1, 1)), Unsuback(1)])
async def test_an_answer_that_does_not_fit_the_question_ends_the_connection(wrong: Suback | Unsuback) -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        asking = asyncio.create_task(link.subscribe("a", "b"))
        asked = await peer.expect(Subscribe)
        peer.send(replace(wrong, packet_id=asked.packet_id))
        again = await broker.accept()
        await again.grant()
        await with_timeout(asking)
        assert peer.gone


async def test_acknowledgements_of_unknown_messages_are_ignored() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as link:
        peer = await broker.accept()
        peer.send(Puback(1), Puback(65_535), Publish("t", b"x"))
        assert (await with_timeout(link.receive())).messages == [Publish("t", b"x")]
        assert link.connection_error is None


async def test_a_quiet_connection_is_kept_by_pings() -> None:
    for interval in PING_INTERVALS:
        async with ScriptedBroker() as broker, broker.create_client(ping_interval=interval) as link:
            peer = await broker.accept()
            if await answered_pings(peer, 3):
                assert (link.connection_error, len(broker.peers)) == (None, 1)
                return
    pytest.fail("the link ended a connection whose pings were answered")


async def test_a_program_that_was_busy_for_long_does_not_blame_the_broker() -> None:
    for interval in PING_INTERVALS:
        async with ScriptedBroker() as broker, broker.create_client(ping_interval=interval) as link:
            peer = await broker.accept()
            await peer.expect(Pingreq)
            time.sleep(2 * interval)  # noqa: ASYNC251 # nothing else runs, so the next check comes late
            if await answered_pings(peer, 2):
                assert (link.connection_error, len(broker.peers)) == (None, 1)
                return
    pytest.fail("the link ended a connection because the program was busy")


async def test_a_broker_that_does_not_answer_pings_is_dead() -> None:
    """The only test that waits for the interval that follows from the shortest keep-alive."""
    async with ScriptedBroker() as broker, broker.create_client(keep_alive=1, backoff=NO_RECONNECT) as link:
        peer = await broker.accept()
        await peer.expect(Pingreq)
        await wait_until(lambda: link.connection_error)
        assert "no packet received from the broker for 0.333 seconds" in str(link.connection_error)
        await wait_until(lambda: peer.gone)


async def test_without_keep_alive_nobody_is_pinged() -> None:
    async with ScriptedBroker() as broker, broker.create_client(keep_alive=0) as link:
        peer = await broker.accept()
        peer.send(Publish("t", b""))
        await with_timeout(link.receive())
    assert not any(isinstance(packet, Pingreq) for packet in peer.received)
