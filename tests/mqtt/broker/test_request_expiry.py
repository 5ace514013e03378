"""Requests wait for an absent gateway for a short time only, and those with a key not at all."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.broker import load_stored_state
from meshfleet.mqtt.codec.packets import Connack, Puback, Publish
from tests.mqtt.broker.running_broker import D, G, RunningBroker, connect, report, request, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database
    from tests.mqtt.broker.raw_client import RawClient

pytestmark = pytest.mark.anyio

OWN_REQUESTS = f"mt/gateway/{G}/request/#"
ALL_GATEWAYS_FILTER = "mt/gateways/#"
ALL_GATEWAYS = f"mt/gateways/request/{D}/write/8000"

SECRET = b"00112233445566778899aabbccddeeff"

WITH_KEYS = {
    "a key": b'{"id":"1","key":"%b"}',
    "a public key": b'{"id":"1","publicKey":"%b"}',
    "an escaped name": b'{"\\u006b\\u0065\\u0079":"%b"}',
    "a partly escaped name": b'{"publi\\u0063Key":"%b"}',
    "white space": b' \r\n{\t"key" \n : "%b" } ',
    "a key twice": b'{"key":"%b","key":null}',
    "a key that is null at first": b'{"key":null,"key":"%b"}',
    "a key that is an object": b'{"key":{"value":"%b"}}',
    "a truncated object": b'{"id":"1","key":"%b"',
    "data after the end": b'{}{"key":"%b"}',
    "a comma too many": b'{"key":"%b",}',
    "a byte order mark": b'\xef\xbb\xbf{"key":"%b"}',
    "not UTF-8": b'{"x":"\xff","key":"%b"}',
    "another encoding": '{"key":"%b"}'.encode("utf-16"),
    "not an object": b'[{"key":"%b"}]',
    "text": b'"key %b"',
    "not JSON": b"key=%b",
    "deep nesting": b'{"x":' + b"[" * 5000 + b"]" * 5000 + b',"key":"%b"}',
    "deep nesting without an end": b"[" * 60_000 + b"%b",
    "a long value before the key": b'{"x":"' + b"y" * 70_000 + b'","key":"%b"}',
    "a nested key": b'{"data":{"key":"%b"}}',
    "a deeply nested key": b'{"data":[{"x":{"publicKey":"%b"}}]}',
}
"""Payloads that contain a key, or in which one cannot be ruled out."""


def with_secret(pattern: bytes) -> bytes:
    return pattern.replace(b"%b", SECRET).replace("%b".encode("utf-16-le"), SECRET)


async def connect_gateway(server: RunningBroker) -> RawClient:
    """Connect a gateway with a persistent session and subscribe it to requests."""
    prefix = f"{server.prefix}/" if server.prefix else ""
    return await server.subscriber(G, prefix + OWN_REQUESTS, prefix + ALL_GATEWAYS_FILTER, clean=False)


async def create_absent_gateway(server: RunningBroker) -> None:
    """Connect a gateway as `connect_gateway` does, and disconnect it."""
    gateway = await connect_gateway(server)
    gateway.abort()
    await server.until(lambda: len(server.broker.connections) == 0)


async def reconnect_gateway(server: RunningBroker) -> list[bytes]:
    """Connect the gateway again, and return the payloads that it receives."""
    gateway = await server.gateway(clean=False)
    return [packet.payload for packet in await gateway.receive_until_pong() if isinstance(packet, Publish)]


async def publish(server: RunningBroker, topic: str, payload: bytes, *, retain: bool = False) -> None:
    """Publish as an operator, and wait for the acknowledgement."""
    operator = await server.client("operator")
    operator.send(Publish(topic, payload, 1, retain=retain, packet_id=1))
    assert await operator.expect(Puback) == Puback(1)
    await operator.close()
    await server.until(lambda: "operator" not in "".join(map(str, server.broker.accounts())))


async def read_database_bytes(server: RunningBroker, directory: Path) -> bytes:
    """Return all bytes of the database files, after everything was committed."""
    await server.broker.publish(report(), b"{}")  # its commit includes changes that no client waits for
    return await asyncio.to_thread(_read_files, directory)


def _read_files(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.glob("meshfleet.sqlite*"))


@pytest.mark.rule("request-30")
@each_row("topic", [request(), ALL_GATEWAYS, f"mt/gateway/{G}/request/of/a/later/version"])
@with_fresh_broker
async def test_a_request_waits_for_its_gateway(server: RunningBroker, topic: str) -> None:
    await create_absent_gateway(server)
    await server.broker.publish(topic, b'{"id":"1"}')
    server.clock.move(seconds=50)
    assert await reconnect_gateway(server) == [b'{"id":"1"}']


@pytest.mark.rule("request-30")
@each_row("topic", [request(), ALL_GATEWAYS, f"mt/gateway/{G}/request/of/a/later/version"])
@with_fresh_broker
async def test_an_expired_request_is_dropped(server: RunningBroker, topic: str) -> None:
    await create_absent_gateway(server)
    await server.broker.publish(topic, b'{"id":"old"}')
    server.clock.move(seconds=50)
    await server.broker.publish(topic, b'{"id":"young"}')
    server.clock.move(seconds=10)
    assert await reconnect_gateway(server) == [b'{"id":"young"}']


@pytest.mark.rule("request-30")
async def test_expired_requests_are_deleted_while_their_gateway_is_absent(server: RunningBroker) -> None:
    await create_absent_gateway(server)
    await server.broker.publish(request(), b'{"id":"1"}')
    assert len((await server.database.read(load_stored_state)).messages) == 1
    server.clock.move(seconds=61)
    server.broker.sessions.delete_expired(server.clock())
    assert server.broker.quotas.queued_bytes == 0
    await server.broker.publish(report(), b"{}")
    assert (await server.database.read(load_stored_state)).messages == []


@pytest.mark.rule("request-30")
@pytest.mark.parametrize(("seconds", "count"), [(50, 1), (61, 0)])
async def test_requests_expire_while_the_service_is_stopped(
    server: RunningBroker, seconds: float, count: int
) -> None:
    await create_absent_gateway(server)
    await server.broker.publish(request(), b"{}")
    await server.stop()
    server.clock.move(seconds=seconds)
    await server.start()
    assert len(await reconnect_gateway(server)) == count


@pytest.mark.rule("request-30")
@each_row(
    ("epoch", "is_set", "seconds", "count"),
    [(-3600, 0, 61, 0), (3600, 0, 50, 1), (0, -3600, 0, 0), (0, 3600, 0, 0)],
)
@with_fresh_broker
async def test_the_age_of_a_request_does_not_depend_on_the_monotonic_clock_of_a_process(
    server: RunningBroker, epoch: float, is_set: float, seconds: float, count: int
) -> None:
    await create_absent_gateway(server)
    await server.broker.publish(request(), b"{}")
    await server.stop()
    server.clock.start_again(seconds=epoch)
    server.clock.set(seconds=is_set)  # its age is then unknown, and it must not be delivered late
    server.clock.move(seconds=seconds)
    await server.start()
    assert len(await reconnect_gateway(server)) == count
    await server.broker.publish(report(), b"{}")
    assert len((await server.database.read(load_stored_state)).messages) == count


@pytest.mark.rule("request-30")
async def test_an_expired_unacknowledged_request_is_not_sent_again(
    server: RunningBroker,
) -> None:
    gateway = await connect_gateway(server)
    await server.broker.publish(request(), b"{}")
    assert (await gateway.expect(Publish)).payload == b"{}"
    gateway.abort()
    await server.until(lambda: len(server.broker.connections) == 0)
    server.clock.move(seconds=61)
    assert await reconnect_gateway(server) == []


@pytest.mark.rule("request-30")
async def test_only_requests_expire(server: RunningBroker) -> None:
    (await server.subscriber("viewer", "mt/gateway/+/device/#", clean=False)).abort()
    await server.until(lambda: len(server.broker.connections) == 0)
    await server.broker.publish(report(), b'{"key":"of a report"}')
    server.clock.move(seconds=3600)
    server.broker.sessions.delete_expired(server.clock())
    viewer = await server.client("viewer", clean=False)
    assert [type(packet) for packet in await viewer.receive_until_pong()] == [Publish]


@pytest.mark.rule("request-33")
@each_row("pattern", [pytest.param(row, id=name) for name, row in WITH_KEYS.items()])
@with_fresh_broker
async def test_a_request_with_a_key_reaches_its_gateway_and_is_never_persisted(
    server: RunningBroker, tmp_path: Path, pattern: bytes
) -> None:
    payload = with_secret(pattern)
    gateway = await connect_gateway(server)
    await publish(server, request(), payload)
    assert (await gateway.expect(Publish)).payload == payload
    assert SECRET not in await read_database_bytes(server, tmp_path)
    assert (await server.database.read(load_stored_state)).messages == []
    gateway.abort()
    await server.until(lambda: len(server.broker.connections) == 0)
    assert server.broker.quotas.queued_bytes == 0
    assert await reconnect_gateway(server) == []


@pytest.mark.rule("request-33")
@each_row("pattern", [pytest.param(row, id=name) for name, row in WITH_KEYS.items()])
@with_fresh_broker
async def test_a_request_with_a_key_does_not_wait_for_an_absent_gateway(
    server: RunningBroker, tmp_path: Path, pattern: bytes
) -> None:
    await create_absent_gateway(server)
    await publish(server, request(), with_secret(pattern))
    await publish(server, ALL_GATEWAYS, with_secret(pattern))
    assert SECRET not in await read_database_bytes(server, tmp_path)
    assert server.broker.quotas.queued_bytes == 0
    await server.restart()
    assert await reconnect_gateway(server) == []


@pytest.mark.rule("request-33")
async def test_persisted_payloads_can_be_found_in_the_database_files(
    server: RunningBroker, tmp_path: Path
) -> None:
    await create_absent_gateway(server)
    await publish(server, request(), b'{"id":"%b"}' % SECRET)  # an id is not a key
    assert SECRET in await read_database_bytes(server, tmp_path)


@pytest.mark.rule("request-33")
async def test_a_request_with_a_key_does_not_wait_for_queued_requests(server: RunningBroker) -> None:
    gateway = await connect_gateway(server)
    for _ in range(server.limits.in_flight + 1):
        await server.broker.publish(request(), b"{}", qos=1)
    await server.broker.publish(request(), b'{"key":"now"}')
    received = [
        packet.payload for packet in await gateway.receive_until_pong() if isinstance(packet, Publish)
    ]
    assert received == [b"{}"] * server.limits.in_flight + [b'{"key":"now"}']


@pytest.mark.rule("request-33")
async def test_a_request_with_a_key_is_not_resent_after_a_take_over(server: RunningBroker) -> None:
    first = await connect_gateway(server)
    await server.broker.publish(request(), b'{"key":"once"}')
    await server.broker.publish(request(), b'{"id":"again"}')
    assert len(await first.receive_until_pong()) == 2
    second = await server.raw_client()
    second.send(connect(G, clean=False))
    assert await second.expect(Connack) == Connack(session_present=True)
    received = [packet for packet in await second.receive_until_pong() if isinstance(packet, Publish)]
    assert [(packet.payload, packet.dup) for packet in received] == [(b'{"id":"again"}', True)]


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_request_is_delivered_and_not_retained(server: RunningBroker, qos: int) -> None:
    gateway = await connect_gateway(server)
    operator = await server.client("operator")
    operator.send(Publish(request(), b"{}", qos, retain=True, packet_id=1 if qos else 0))
    assert not (await gateway.expect(Publish)).retain
    await operator.receive_until_pong()
    assert len(server.broker.retained) == 0
    assert (await server.database.read(load_stored_state)).retained == {}
    other = await server.subscriber(G, OWN_REQUESTS, client_id=G.upper())
    assert await other.receive_until_pong() == []


@pytest.mark.rule("request-30", "request-33")
@each_row("prefix", ["site", "a/b", "a.c", "(x|y)", "mt/gateway"])
async def test_requests_below_a_topic_prefix_are_treated_alike(server: RunningBroker, prefix: str) -> None:
    server.prefix = prefix
    await server.renew()
    await create_absent_gateway(server)
    for topic in (request(), ALL_GATEWAYS):
        await publish(server, f"{prefix}/{topic}", b'{"key":"1"}', retain=True)
        await publish(server, f"{prefix}/{topic}", b'{"id":"1"}', retain=True)
    assert len(server.broker.retained) == 0
    assert await reconnect_gateway(server) == [b'{"id":"1"}'] * 2
    await server.broker.publish(f"{prefix}/{request()}", b"{}")
    server.clock.move(seconds=61)
    assert await reconnect_gateway(server) == []


async def test_a_topic_without_the_prefix_is_not_a_request_topic(sqlite_database: Database) -> None:
    async with RunningBroker(sqlite_database, prefix="site") as server:
        await server.broker.publish(request(), b'{"key":"1"}', retain=True)
        await server.broker.publish(f"axb/{request()}", b'{"key":"1"}', retain=True)
        assert len(server.broker.retained) == 2


async def test_a_changed_maximum_age_holds_for_new_requests(server: RunningBroker) -> None:
    await create_absent_gateway(server)
    await server.broker.publish(request(), b'{"id":"before"}')
    server.broker.set_request_max_age(5)
    await server.broker.publish(request(), b'{"id":"after"}')
    server.clock.move(seconds=10)
    assert await reconnect_gateway(server) == [b'{"id":"before"}']
