"""One connection: handshake, protocol violations of the broker, and keep alive."""

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
    MqttError,
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
    answer_pings,
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
async def test_the_first_packet_is_a_connect_with_the_options(
    *, clean: bool, will: Will | None, user: tuple[str, str | None] | None, keep_alive: int
) -> None:
    async with ScriptedBroker() as broker:
        async with broker.create_client(clean=clean, will=will, user=user, keep_alive=keep_alive):
            await broker.accept()
        name, password = user or (None, None)
        secret = None if password is None else password.encode()
        assert broker.peers[0].received[0] == Connect("ours", clean, keep_alive, will, name, secret)


@each_row("code", [code for code in ConnectReturnCode if code])
async def test_a_refusal_names_the_broker_and_the_reason(code: ConnectReturnCode) -> None:
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


async def test_packets_after_a_refusal_are_ignored() -> None:
    async with (
        ScriptedBroker() as broker,
        broker.create_client(backoff=replace(QUICK_OPTIONS.backoff, initial=0.001)) as client,
    ):
        peer = await broker.accept()
        publishing = asyncio.create_task(client.publish("t", b""))
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
        assert (await with_timeout(client.receive())).messages == [Publish("t", b"yes")]


@each_row(
    ("first", "reason"),
    [
        (Publish("a", b""), "PUBLISH instead of CONNACK"),
        (Pingresp(), "PINGRESP instead of CONNACK"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "protocol violation by the broker"),
        (b"\x20\x02\x00\x06", "CONNACK return code: 6 is reserved"),
        (b"\x20\x02\x01\x05", "CONNACK session present"),
        (b"\x34\x05\x00\x01a\x00\x01", "PUBLISH qos: 2 is higher than accepted"),
    ],
)
async def test_a_broker_whose_first_packet_is_not_connack_is_unreachable(
    first: Packet | bytes, reason: str
) -> None:
    async with ScriptedBroker(connack=None) as broker:
        entering = asyncio.create_task(broker.create_client().__aenter__())
        peer = await broker.accept()
        await peer.expect(Connect)
        peer.send(first, Publish("a", b"ignored"))
        with pytest.raises(BrokerUnreachable, match=reason) as caught:
            await entering
        assert str(broker.address) in str(caught.value)
        await wait_until(lambda: peer.gone)


async def test_session_present_after_a_clean_connect_is_an_error() -> None:
    async with ScriptedBroker(Connack(session_present=True)) as broker:
        with pytest.raises(MqttError, match="kept a session although a clean session was requested"):
            await with_timeout(broker.create_client(clean=True).__aenter__())  # [MQTT-3.2.2-1]
        await wait_until(lambda: broker.peers[0].gone)


async def test_a_violation_right_after_connack_fails_the_first_connection() -> None:
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
async def test_a_broker_that_closes_before_connack_is_unreachable(
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
    ("end", "reason"), [(Peer.close, "the broker closed the connection"), (Peer.reset, "reset")]
)
async def test_connection_error_says_how_a_connection_ended(end: Callable[[Peer], None], reason: str) -> None:
    async with ScriptedBroker() as broker, broker.create_client(backoff=NO_RECONNECT) as client:
        subscribing = asyncio.create_task(client.subscribe("a"))
        peer = await broker.accept()
        await peer.expect(Subscribe)
        end(peer)
        await wait_until(lambda: client.connection_error)
        assert isinstance(client.connection_error, ConnectionLost)
        assert reason in str(client.connection_error)
        subscribing.cancel()


async def test_a_broker_that_never_sends_connack_is_unreachable() -> None:
    async with ScriptedBroker(connack=None) as broker:
        for limit in RETRY_TIMEOUTS:
            with pytest.raises(BrokerUnreachable, match=f"did not respond within {limit:g} seconds"):
                await with_timeout(broker.create_client(timeout=limit).__aenter__())
            await wait_until(lambda: all(peer.gone for peer in broker.peers))
            if broker.peers:
                break
        assert broker.peers


async def test_an_address_without_a_listener_is_unreachable() -> None:
    async with ScriptedBroker() as broker:
        client = broker.create_client()
    with pytest.raises(BrokerUnreachable, match="Connection refused"):
        await with_timeout(client.__aenter__())


@each_row(
    "create_client",
    [
        lambda address: MqttClient(address, ""),
        lambda address: MqttClient(address, "nul\0"),
        lambda address: MqttClient(address, "x", options=replace(QUICK_OPTIONS, keep_alive=65_536)),
        lambda address: MqttClient(address, "x", will=Will("a/#", b"")),
        lambda address: MqttClient(address, "x", will=Will("a", b"", qos=3)),
        lambda address: MqttClient(replace(address, password="p"), "x"),  # noqa: S106 # not a real password
    ],
)
async def test_an_invalid_connect_raises_malformed_packet(
    create_client: Callable[[BrokerAddress], MqttClient],
) -> None:
    async with ScriptedBroker() as broker:
        with pytest.raises(MalformedPacket, match=r"^CONNECT "):
            await with_timeout(create_client(broker.address).__aenter__())
        assert not broker.peers


@each_row(
    ("packet", "reason"),
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
async def test_a_protocol_violation_of_the_broker_ends_the_connection(
    packet: Packet | bytes, reason: str, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        ScriptedBroker() as broker,
        broker.create_client(backoff=NO_RECONNECT, max_packet_bytes=1000) as client,
    ):
        peer = await broker.accept()
        raw = packet if isinstance(packet, bytes) else encode_packet(packet)
        peer.send(*[Pingresp()] * times, *[raw] * times)
        await wait_until(lambda: client.connection_error)
        assert isinstance(client.connection_error, ConnectionLost)
        assert reason in str(client.connection_error)
        await wait_until(lambda: peer.gone)
    assert not [record for record in caplog.records if record.name == "asyncio"]


async def test_an_oversized_message_arrives_without_its_payload() -> None:
    async with ScriptedBroker() as broker, broker.create_client(max_packet_bytes=1000) as client:
        peer = await broker.accept()
        peer.send(Publish("big", bytes(2000), qos=1, packet_id=7), Publish("small", b"x"))
        received: list[Publish] = []
        while len(received) < 2:
            batch = await with_timeout(client.receive())
            batch.acknowledge()
            received += batch.messages
        assert received == [OversizedPublish("big", b"", 1, packet_id=7, size=2000), Publish("small", b"x")]
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
async def test_a_filter_granted_at_a_lower_qos_is_refused(
    qos: int, codes: tuple[int, ...], refused: tuple[str, ...]
) -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        subscribing = asyncio.create_task(client.subscribe("a", "b", qos=qos))
        request = await peer.grant(*codes)
        assert request.filters == (("a", qos), ("b", qos))
        assert request.packet_id > 60_000
        if refused:
            with pytest.raises(SubscriptionRefused) as caught:
                await subscribing
            assert caught.value.filters == refused
        else:
            await subscribing


@each_row("wrong", [Suback(1, (1,)), Suback(1, (1, 1, 1)), Unsuback(1)])
async def test_a_response_that_does_not_match_its_request_ends_the_connection(
    wrong: Suback | Unsuback,
) -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        subscribing = asyncio.create_task(client.subscribe("a", "b"))
        request = await peer.expect(Subscribe)
        peer.send(replace(wrong, packet_id=request.packet_id))
        again = await broker.accept()
        await again.grant()
        await with_timeout(subscribing)
        assert peer.gone


async def test_acknowledgements_of_unknown_messages_are_ignored() -> None:
    async with ScriptedBroker() as broker, broker.create_client() as client:
        peer = await broker.accept()
        peer.send(Puback(1), Puback(65_535), Publish("t", b"x"))
        assert (await with_timeout(client.receive())).messages == [Publish("t", b"x")]
        assert client.connection_error is None


async def test_an_idle_connection_is_kept_open_by_pings() -> None:
    for interval in PING_INTERVALS:
        async with ScriptedBroker() as broker, broker.create_client(ping_interval=interval) as client:
            peer = await broker.accept()
            if await answer_pings(peer, 3) and client.connection_error is None and len(broker.peers) == 1:
                return
    pytest.fail("the client ended a connection whose pings got responses")


async def test_a_blocked_event_loop_does_not_end_the_connection() -> None:
    for interval in PING_INTERVALS:
        async with ScriptedBroker() as broker, broker.create_client(ping_interval=interval) as client:
            peer = await broker.accept()
            await peer.expect(Pingreq)
            time.sleep(2 * interval)  # noqa: ASYNC251 # blocks the loop, so that the next check is late
            if await answer_pings(peer, 2) and client.connection_error is None and len(broker.peers) == 1:
                return
    pytest.fail("the client ended a connection because the program was busy")


async def test_a_connection_without_ping_responses_is_ended() -> None:
    """Wait for the interval of the shortest keep alive, as no other test does."""
    async with ScriptedBroker() as broker, broker.create_client(keep_alive=1, backoff=NO_RECONNECT) as client:
        peer = await broker.accept()
        await peer.expect(Pingreq)
        await wait_until(lambda: client.connection_error)
        assert "no packet received from the broker for 0.333 seconds" in str(client.connection_error)
        await wait_until(lambda: peer.gone)


async def test_without_keep_alive_no_ping_is_sent() -> None:
    async with ScriptedBroker() as broker, broker.create_client(keep_alive=0) as client:
        peer = await broker.accept()
        peer.send(Publish("t", b""))
        await with_timeout(client.receive())
    assert not any(isinstance(packet, Pingreq) for packet in peer.received)
