"""CONNECT and its CONNACK."""

from __future__ import annotations

import asyncio
from string import ascii_letters, digits

import pytest

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker_limits import BrokerLimits
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import (
    Connack,
    Connect,
    ConnectReturnCode,
    Disconnect,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Will,
)
from tests.mqtt.broker.running_broker import REPORTS, D, G, RunningBroker, connect, report, with_fresh_broker
from tests.mqtt.codec.streams import SHORT, add_fixed_header
from tests.row_tables import each_row

pytestmark = pytest.mark.anyio

MARKER = Publish(report(kind="event/8300"), b"marker", 1, packet_id=99)

NOT_FIRST = {
    **{name: bytes.fromhex(raw) for name, raw, _ in SHORT if name != "CONNECT"},
    **{f"PUBLISH at {qos}": encode_packet(Publish(report(), b"{}", qos, packet_id=qos)) for qos in (0, 1, 2)},
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "TLS": bytes.fromhex("16030101000100"),
}

BROKEN = {
    "a reserved first byte": f"11{add_fixed_header('10', '00044d515454 04 02 0000 000161')[2:]}",
    "a reserved flag": add_fixed_header("10", "00044d515454 04 03 0000 000161"),
    "a will QoS without a will": add_fixed_header("10", "00044d515454 04 0a 0000 000161"),
    "a will retain flag without a will": add_fixed_header("10", "00044d515454 04 22 0000 000161"),
    "a will at QoS 3": add_fixed_header("10", "00044d515454 04 1e 0000 000161 000174 000177"),
    "a will without a topic": add_fixed_header("10", "00044d515454 04 06 0000 000161 0000 000177"),
    "a will with a wildcard": add_fixed_header("10", "00044d515454 04 06 0000 000161 00012b 000177"),
    "a truncated will": add_fixed_header("10", "00044d515454 04 06 0000 000161 000174"),
    "a password without a user name": add_fixed_header("10", "00044d515454 04 42 0000 000161 000170"),
    "a truncated user name": add_fixed_header("10", "00044d515454 04 82 0000 000161"),
    "a truncated password": add_fixed_header("10", "00044d515454 04 c2 0000 000161 000175"),
    "a truncated client id": add_fixed_header("10", "00044d515454 04 02 0000 000261"),
    "a client id that is not UTF-8": add_fixed_header("10", "00044d515454 04 02 0000 0001ff"),
    "no client id at all": add_fixed_header("10", "00044d515454 04 02 0000"),
    "a byte too many": add_fixed_header("10", "00044d515454 04 02 0000 000161 00"),
    "no protocol name": add_fixed_header("10", "0000 04 02 003c 000161"),
    "another protocol": add_fixed_header("10", "00044d515453 04 02 003c 000161"),
    "a protocol name in lower case": add_fixed_header("10", "00046d717474 04 02 003c 000161"),
    "an empty packet": "1000",
    "a length of five bytes": "10ffffffff01",
    "a length beyond the limit": "10ffffff7f",
}

VERSIONS = {
    "MQTT 3.1": "00064d5149736470 03 02 003c 000161",
    "level 3": "00044d515454 03 02 003c 000161",
    "MQTT 5": "00044d515454 05 02 003c 00 000161",
    "a bridge": "00044d515454 84 02 003c 000161",
}


def without_clean_flag(packet: Connect) -> bytes:
    """Return the bytes of a CONNECT without its clean session flag, whether that is allowed or not."""
    raw = bytearray(encode_packet(packet))
    raw[9] &= ~0x02
    return bytes(raw)


REJECTED = {
    "empty, not clean": without_clean_flag(connect("viewer", client_id="")),
    "empty, not clean, a wrong password": without_clean_flag(
        connect("viewer", client_id="", password=b"wrong")
    ),
    "too long": encode_packet(connect("viewer", client_id="x" * 257)),
    "a gateway without one": encode_packet(connect(G, client_id="")),
    "a gateway with another MAC": encode_packet(connect(G, client_id=D)),
    "a gateway with a mixed spelling": encode_packet(connect("02005e0000ab", client_id="02005E0000ab")),
    "a gateway with a space": encode_packet(connect(G, client_id=f"{G} ")),
}


@each_row("first", [pytest.param(row, id=name) for name, row in NOT_FIRST.items()])
async def test_a_connection_that_begins_with_another_packet_is_closed(
    server: RunningBroker, first: bytes
) -> None:
    client = await server.raw_client()
    client.send(first, connect(G))
    assert await client.receive_until_closed() == []
    assert client.bytes == b""
    assert len(server.broker.sessions) == 0
    assert server.consumer.messages == []


@pytest.mark.parametrize("user", ["viewer", "operator"])
async def test_a_second_connect_closes_the_connection(server: RunningBroker, user: str) -> None:
    client = await server.client("viewer")
    client.send(connect(user), Pingreq())
    assert await client.receive_until_closed() == []
    assert len(server.broker.sessions) == 0


async def test_a_second_connect_immediately_after_the_first_closes_the_connection(
    server: RunningBroker,
) -> None:
    client = await server.raw_client()
    client.send(connect("viewer"), connect("viewer"), Pingreq())
    assert await client.receive_until_closed() == [Connack()]
    assert len(server.broker.connections) == 0


@each_row("raw", [pytest.param(row, id=name) for name, row in BROKEN.items()])
async def test_a_connect_that_violates_a_rule_is_closed_without_a_connack(
    server: RunningBroker, raw: str
) -> None:
    client = await server.raw_client()
    client.send(bytes.fromhex(raw))
    assert await client.receive_until_closed() == []
    assert client.bytes == b""


@each_row("body", [pytest.param(row, id=name) for name, row in VERSIONS.items()])
async def test_another_version_gets_return_code_1_and_is_closed(server: RunningBroker, body: str) -> None:
    client = await server.raw_client()
    client.send(bytes.fromhex(add_fixed_header("10", body)), connect("viewer"), Pingreq())
    await client.receive_until_closed()
    assert client.bytes == bytes.fromhex("20020001")
    assert len(server.broker.sessions) == 0


async def test_a_client_id_of_1_to_23_letters_and_digits_is_accepted(server: RunningBroker) -> None:
    characters = ascii_letters + digits
    for client_id in [*characters, characters[:23], characters[23:46], characters[39:]]:
        client = await server.raw_client()
        client.send(connect("viewer", client_id=client_id), Disconnect())
        assert await client.receive_until_closed() == [Connack()]


async def test_clients_with_an_empty_client_id_get_unique_ones(server: RunningBroker) -> None:
    one = await server.subscriber("viewer", REPORTS, client_id="")
    other = await server.client("viewer", client_id="")
    gateway = await server.gateway()
    gateway.send(MARKER)
    assert (await one.expect(Publish)).payload == b"marker"
    assert await one.receive_until_pong() == await other.receive_until_pong() == []
    assert len({session.client_id for session in server.broker.sessions}) == 3


@each_row("packet", [pytest.param(row, id=name) for name, row in REJECTED.items()])
async def test_a_rejected_client_id_gets_return_code_2_and_is_closed(
    server: RunningBroker, packet: bytes
) -> None:
    client = await server.raw_client()
    client.send(packet, Pingreq())
    await client.receive_until_closed()
    assert client.bytes == bytes.fromhex("20020002")
    assert len(server.broker.sessions) == 0


@each_row("clean", [True, False])
@each_row("cleaned_before", [True, False])
@with_fresh_broker
async def test_a_client_that_connects_again_ends_its_older_connection(
    server: RunningBroker, *, cleaned_before: bool, clean: bool
) -> None:
    old = await server.gateway(clean=cleaned_before)
    new = await server.gateway(clean=clean)
    assert await old.receive_until_closed() == []
    assert await new.receive_until_pong() == []
    assert len(server.broker.connections) == len(server.broker.sessions) == 1


async def test_a_gateway_may_connect_with_its_mac_in_lower_and_upper_case_at_once(
    server: RunningBroker,
) -> None:
    lower = await server.gateway()
    upper = await server.client(G, client_id=G.upper())
    assert await lower.receive_until_pong() == await upper.receive_until_pong() == []


async def test_a_valid_connect_gets_return_code_0(server: RunningBroker) -> None:
    client = await server.client("viewer")
    await client.receive_until_pong()
    assert client.bytes == bytes.fromhex("20020000 d000")


@each_row(
    ("refused", "code"),
    [
        (connect(G, password=b"wrong"), ConnectReturnCode.BAD_CREDENTIALS),
        (connect(G, password=None), ConnectReturnCode.BAD_CREDENTIALS),
        (Connect(G), ConnectReturnCode.BAD_CREDENTIALS),
        (connect(G, client_id=D), ConnectReturnCode.IDENTIFIER_REJECTED),
        (connect(G, will=Will(report(D), b"")), ConnectReturnCode.NOT_AUTHORIZED),
    ],
)
@with_fresh_broker
async def test_packets_after_a_refused_connect_are_ignored(
    server: RunningBroker, refused: Connect, code: ConnectReturnCode
) -> None:
    viewer = await server.subscriber("viewer", REPORTS)
    delivered: list[Publish] = []
    server.broker.subscribe(REPORTS, delivered.append)
    unauthenticated = await server.raw_client()
    messages = [Publish(report(), b"{}", qos, retain=True, packet_id=qos) for qos in (0, 1, 2)]
    unauthenticated.send(refused, Subscribe(7, ((f"mt/gateway/{G}/#", 1),)), *messages, Pingreq())
    assert await unauthenticated.receive_until_closed() == [Connack(code=code)]
    gateway = await server.gateway()
    gateway.send(MARKER)
    assert (await viewer.expect(Publish)).payload == b"marker"
    assert await gateway.expect(Puback) == Puback(99)
    assert [message.payload for message in delivered] == [b"marker"]
    assert [message.payload for message in server.consumer.messages] == [b"marker"]
    assert len(server.broker.retained) == 0


async def test_the_first_packet_of_the_broker_is_a_connack(server: RunningBroker) -> None:
    gateway = await server.raw_client()
    message = Publish(report(), b"{}", 1, packet_id=2)
    gateway.send(connect(G, clean=False), Subscribe(1, ((f"mt/gateway/{G}/#", 1),)), message)
    assert await gateway.expect(Connack) == Connack()
    assert {type(await gateway.receive()) for _ in range(3)} == {Suback, Puback, Publish}
    gateway.send(Disconnect())
    await gateway.receive_until_closed()
    await server.broker.publish(f"mt/gateway/{G}/request/{D}/read/8000", b"{}")
    again = await server.raw_client()
    again.send(connect(G, clean=False), Pingreq())
    assert await again.expect(Connack) == Connack(session_present=True)
    assert [(await again.expect(Publish)).topic for _ in range(2)] == [
        report(),
        f"mt/gateway/{G}/request/{D}/read/8000",
    ]
    await again.expect(Pingresp)


async def test_nothing_is_sent_before_a_connack_that_waits_for_the_database(server: RunningBroker) -> None:
    server.consumer.open.clear()
    gateway = await server.raw_client()
    gateway.send(connect(G, clean=False), Pingreq())
    await server.until(lambda: len(server.broker.sessions) == 1)
    first = asyncio.create_task(gateway.expect(Connack))
    neighbor = await server.client("viewer")
    assert await neighbor.receive_until_pong() == []
    assert not first.done()
    server.consumer.open.set()
    assert await first == Connack()
    await gateway.expect(Pingresp)


@pytest.mark.parametrize("limits", [BrokerLimits(connections_per_account=2)])
@each_row("clean", [True, False])
@each_row(
    ("options", "error", "code"),
    [
        ({"password": b"wrong"}, None, ConnectReturnCode.BAD_CREDENTIALS),
        ({"will": Will(report(), b"")}, None, ConnectReturnCode.NOT_AUTHORIZED),
        ({}, DatabaseUnavailable("gone"), ConnectReturnCode.SERVER_UNAVAILABLE),
        ({}, None, ConnectReturnCode.SERVER_UNAVAILABLE),  # the account already has two connections
    ],
)
@with_fresh_broker
async def test_a_refused_client_gets_the_return_code_and_nothing_else(
    server: RunningBroker,
    options: dict[str, object],
    error: Exception | None,
    code: ConnectReturnCode,
    *,
    clean: bool,
) -> None:
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    viewer.send(Disconnect())
    await viewer.receive_until_closed()
    gateway = await server.gateway()
    gateway.send(MARKER)
    await gateway.expect(Puback)
    others = [await server.client("viewer", client_id=f"other-{number}") for number in range(2)]
    server.authenticator.failures += [error] if error else []

    refused = await server.raw_client()
    refused.send(connect("viewer", clean=clean, **options), Pingreq())
    await refused.receive_until_closed()
    assert refused.bytes == bytes([0x20, 2, 0, code])

    for other in others:
        other.send(Disconnect())
        await other.receive_until_closed()
    back = await server.raw_client()
    back.send(connect("viewer", clean=False))
    assert await back.expect(Connack) == Connack(session_present=True)
    assert (await back.expect(Publish)).payload == b"marker"


@pytest.mark.parametrize("limits", [BrokerLimits(connections_per_account=1)])
async def test_an_account_at_its_limit_may_replace_its_own_connection(server: RunningBroker) -> None:
    old = await server.client("viewer")
    new = await server.client("viewer")
    assert await old.receive_until_closed() == []
    assert await new.receive_until_pong() == []


@pytest.mark.parametrize("limits", [BrokerLimits(connections=2), BrokerLimits(connections_per_address=2)])
async def test_a_connection_beyond_the_limit_is_closed_and_a_freed_slot_is_used_again(
    server: RunningBroker,
) -> None:
    await server.client("viewer-1")
    leaving = await server.client("viewer-2")
    turned_away = await server.raw_client()
    assert await turned_away.receive_until_closed() == []
    leaving.send(Disconnect())
    await leaving.receive_until_closed()
    assert await (await server.client("viewer-3")).receive_until_pong() == []


@pytest.mark.parametrize("limits", [BrokerLimits(sessions_per_account=1)])
async def test_persistent_sessions_are_counted_per_account(server: RunningBroker) -> None:
    await server.client("viewer", client_id="a", clean=False)
    refused = await server.raw_client()
    refused.send(connect("viewer", client_id="b", clean=False))
    assert await refused.receive_until_closed() == [Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)]
    await server.client("viewer", client_id="b")
    await server.client("viewer-2", client_id="b", clean=False)
    await server.client("viewer", client_id="a", clean=False)
