"""Requests wait for an absent gateway for a short while only, and those with a key not at all."""

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

MINE = f"mt/gateway/{G}/request/#"
EVERYBODYS = "mt/gateways/#"
ALL_GATEWAYS = f"mt/gateways/request/{D}/write/8000"

SECRET = b"00112233445566778899aabbccddeeff"

WITH_KEYS = {
    "a key": b'{"id":"1","key":"%b"}',
    "a public key": b'{"id":"1","publicKey":"%b"}',
    "an escaped name": b'{"\\u006b\\u0065\\u0079":"%b"}',
    "a name that is escaped in part": b'{"publi\\u0063Key":"%b"}',
    "white space": b' \r\n{\t"key" \n : "%b" } ',
    "a key twice": b'{"key":"%b","key":null}',
    "a key that is null at first": b'{"key":null,"key":"%b"}',
    "a key that is an object": b'{"key":{"value":"%b"}}',
    "no end": b'{"id":"1","key":"%b"',
    "something behind the end": b'{}{"key":"%b"}',
    "a comma too many": b'{"key":"%b",}',
    "a mark of the byte order": b'\xef\xbb\xbf{"key":"%b"}',
    "no UTF-8": b'{"x":"\xff","key":"%b"}',
    "another encoding": '{"key":"%b"}'.encode("utf-16"),
    "no object": b'[{"key":"%b"}]',
    "text": b'"key %b"',
    "no JSON": b"key=%b",
    "much depth": b'{"x":' + b"[" * 5000 + b"]" * 5000 + b',"key":"%b"}',
    "depth without an end": b"[" * 60_000 + b"%b",
    "much in front": b'{"x":"' + b"y" * 70_000 + b'","key":"%b"}',
    "a key inside": b'{"data":{"key":"%b"}}',
    "a key far inside": b'{"data":[{"x":{"publicKey":"%b"}}]}',
}
"""Each holds a key, or nobody can tell that it does not."""


def with_secret(pattern: bytes) -> bytes:
    return pattern.replace(b"%b", SECRET).replace("%b".encode("utf-16-le"), SECRET)


async def subscribed(stage: RunningBroker) -> RawClient:
    """A gateway with a session that outlasts its connection."""
    front = f"{stage.prefix}/" if stage.prefix else ""
    return await stage.subscriber(G, front + MINE, front + EVERYBODYS, clean=False)


async def absent(stage: RunningBroker) -> None:
    """The same gateway, gone."""
    gateway = await subscribed(stage)
    gateway.abort()
    await stage.until(lambda: len(stage.broker.connections) == 0)


async def back(stage: RunningBroker) -> list[bytes]:
    """What a gateway gets that comes back."""
    gateway = await stage.gateway(clean=False)
    return [packet.payload for packet in await gateway.receive_until_pong() if isinstance(packet, Publish)]


async def publish(stage: RunningBroker, topic: str, payload: bytes, *, retain: bool = False) -> None:
    """Publish as an operator, until it is acknowledged."""
    operator = await stage.client("operator")
    operator.send(Publish(topic, payload, 1, retain=retain, packet_id=1))
    assert await operator.expect(Puback) == Puback(1)
    await operator.close()
    await stage.until(lambda: "operator" not in "".join(map(str, stage.broker.accounts())))


async def written(stage: RunningBroker, folder: Path) -> bytes:
    """All bytes of the database, after everything was committed."""
    await stage.broker.publish(report(), b"{}")  # its commit takes along what nobody waits for
    return await asyncio.to_thread(_bytes, folder)


def _bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.glob("meshfleet.sqlite*"))


@pytest.mark.rule("request-30")
@each_row("topic", [request(), ALL_GATEWAYS, f"mt/gateway/{G}/request/of/a/later/version"])
@with_fresh_broker
async def test_a_request_waits_for_its_gateway(stage: RunningBroker, topic: str) -> None:
    await absent(stage)
    await stage.broker.publish(topic, b'{"id":"1"}')
    stage.clock.move(seconds=50)
    assert await back(stage) == [b'{"id":"1"}']


@pytest.mark.rule("request-30")
@each_row("topic", [request(), ALL_GATEWAYS, f"mt/gateway/{G}/request/of/a/later/version"])
@with_fresh_broker
async def test_a_request_that_is_too_old_is_thrown_away(stage: RunningBroker, topic: str) -> None:
    await absent(stage)
    await stage.broker.publish(topic, b'{"id":"old"}')
    stage.clock.move(seconds=50)
    await stage.broker.publish(topic, b'{"id":"young"}')
    stage.clock.move(seconds=10)
    assert await back(stage) == [b'{"id":"young"}']


@pytest.mark.rule("request-30")
async def test_what_is_too_old_goes_without_anybody_coming_back(stage: RunningBroker) -> None:
    await absent(stage)
    await stage.broker.publish(request(), b'{"id":"1"}')
    assert len((await stage.database.read(load_stored_state)).messages) == 1
    stage.clock.move(seconds=61)
    stage.broker.sessions.delete_expired(stage.clock())
    assert stage.broker.quotas.queued_bytes == 0
    await stage.broker.publish(report(), b"{}")
    assert (await stage.database.read(load_stored_state)).messages == []


@pytest.mark.rule("request-30")
@pytest.mark.parametrize(("seconds", "count"), [(50, 1), (61, 0)])
async def test_the_age_of_a_request_goes_on_while_the_service_is_down(
    stage: RunningBroker, seconds: float, count: int
) -> None:
    await absent(stage)
    await stage.broker.publish(request(), b"{}")
    await stage.stop()
    stage.clock.move(seconds=seconds)
    await stage.start()
    assert len(await back(stage)) == count


@pytest.mark.rule("request-30")
@each_row(
    ("epoch", "is_set", "passed", "count"),
    [(-3600, 0, 61, 0), (3600, 0, 50, 1), (0, -3600, 0, 0), (0, 3600, 0, 0)],
)
@with_fresh_broker
async def test_the_age_of_a_request_does_not_depend_on_the_steady_clock_of_a_process(
    stage: RunningBroker, epoch: float, is_set: float, passed: float, count: int
) -> None:
    await absent(stage)
    await stage.broker.publish(request(), b"{}")
    await stage.stop()
    stage.clock.start_again(seconds=epoch)
    stage.clock.set(seconds=is_set)  # then its age is unknown: it must not be late
    stage.clock.move(seconds=passed)
    await stage.start()
    assert len(await back(stage)) == count
    await stage.broker.publish(report(), b"{}")
    assert len((await stage.database.read(load_stored_state)).messages) == count


@pytest.mark.rule("request-30")
async def test_an_old_request_that_was_sent_and_not_acknowledged_does_not_come_again(
    stage: RunningBroker,
) -> None:
    gateway = await subscribed(stage)
    await stage.broker.publish(request(), b"{}")
    assert (await gateway.expect(Publish)).payload == b"{}"
    gateway.abort()
    await stage.until(lambda: len(stage.broker.connections) == 0)
    stage.clock.move(seconds=61)
    assert await back(stage) == []


@pytest.mark.rule("request-30")
async def test_only_requests_grow_old(stage: RunningBroker) -> None:
    (await stage.subscriber("viewer", "mt/gateway/+/device/#", clean=False)).abort()
    await stage.until(lambda: len(stage.broker.connections) == 0)
    await stage.broker.publish(report(), b'{"key":"of a report"}')
    stage.clock.move(seconds=3600)
    stage.broker.sessions.delete_expired(stage.clock())
    viewer = await stage.client("viewer", clean=False)
    assert [type(packet) for packet in await viewer.receive_until_pong()] == [Publish]


@pytest.mark.rule("request-33")
@each_row("pattern", [pytest.param(row, id=name) for name, row in WITH_KEYS.items()])
@with_fresh_broker
async def test_a_request_with_a_key_reaches_its_gateway_and_is_never_written(
    stage: RunningBroker, tmp_path: Path, pattern: bytes
) -> None:
    payload = with_secret(pattern)
    gateway = await subscribed(stage)
    await publish(stage, request(), payload)
    assert (await gateway.expect(Publish)).payload == payload
    assert SECRET not in await written(stage, tmp_path)
    assert (await stage.database.read(load_stored_state)).messages == []
    gateway.abort()
    await stage.until(lambda: len(stage.broker.connections) == 0)
    assert stage.broker.quotas.queued_bytes == 0
    assert await back(stage) == []


@pytest.mark.rule("request-33")
@each_row("pattern", [pytest.param(row, id=name) for name, row in WITH_KEYS.items()])
@with_fresh_broker
async def test_a_request_with_a_key_does_not_wait_for_an_absent_gateway(
    stage: RunningBroker, tmp_path: Path, pattern: bytes
) -> None:
    await absent(stage)
    await publish(stage, request(), with_secret(pattern))
    await publish(stage, ALL_GATEWAYS, with_secret(pattern))
    assert SECRET not in await written(stage, tmp_path)
    assert stage.broker.quotas.queued_bytes == 0
    await stage.restart()
    assert await back(stage) == []


@pytest.mark.rule("request-33")
async def test_what_is_written_can_be_seen_in_the_file(stage: RunningBroker, tmp_path: Path) -> None:
    await absent(stage)
    await publish(stage, request(), b'{"id":"%b"}' % SECRET)  # an id is no key
    assert SECRET in await written(stage, tmp_path)


@pytest.mark.rule("request-33")
async def test_a_request_with_a_key_does_not_wait_behind_others(stage: RunningBroker) -> None:
    gateway = await subscribed(stage)
    for _ in range(stage.limits.in_flight + 1):
        await stage.broker.publish(request(), b"{}", qos=1)
    await stage.broker.publish(request(), b'{"key":"now"}')
    got = [packet.payload for packet in await gateway.receive_until_pong() if isinstance(packet, Publish)]
    assert got == [b"{}"] * stage.limits.in_flight + [b'{"key":"now"}']


@pytest.mark.rule("request-33")
async def test_what_a_gateway_took_over_from_another_connection_holds_no_key(stage: RunningBroker) -> None:
    first = await subscribed(stage)
    await stage.broker.publish(request(), b'{"key":"once"}')
    await stage.broker.publish(request(), b'{"id":"again"}')
    assert len(await first.receive_until_pong()) == 2
    second = await stage.raw_client()
    second.send(connect(G, clean=False))
    assert await second.expect(Connack) == Connack(session_present=True)
    got = [packet for packet in await second.receive_until_pong() if isinstance(packet, Publish)]
    assert [(packet.payload, packet.dup) for packet in got] == [(b'{"id":"again"}', True)]


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_request_is_delivered_and_not_retained(stage: RunningBroker, qos: int) -> None:
    gateway = await subscribed(stage)
    operator = await stage.client("operator")
    operator.send(Publish(request(), b"{}", qos, retain=True, packet_id=1 if qos else 0))
    assert not (await gateway.expect(Publish)).retain
    await operator.receive_until_pong()
    assert len(stage.broker.retained) == 0
    assert (await stage.database.read(load_stored_state)).retained == {}
    other = await stage.subscriber(G, MINE, client_id=G.upper())
    assert await other.receive_until_pong() == []


@pytest.mark.rule("request-30", "request-33")
@each_row("prefix", ["site", "a/b", "a.c", "(x|y)", "mt/gateway"])
async def test_all_of_this_holds_below_a_prefix(stage: RunningBroker, prefix: str) -> None:
    stage.prefix = prefix
    await stage.renew()
    await absent(stage)
    for topic in (request(), ALL_GATEWAYS):
        await publish(stage, f"{prefix}/{topic}", b'{"key":"1"}', retain=True)
        await publish(stage, f"{prefix}/{topic}", b'{"id":"1"}', retain=True)
    assert len(stage.broker.retained) == 0
    assert await back(stage) == [b'{"id":"1"}'] * 2
    await stage.broker.publish(f"{prefix}/{request()}", b"{}")
    stage.clock.move(seconds=61)
    assert await back(stage) == []


async def test_without_its_prefix_a_topic_is_none_of_a_request(sqlite_database: Database) -> None:
    async with RunningBroker(sqlite_database, prefix="site") as stage:
        await stage.broker.publish(request(), b'{"key":"1"}', retain=True)
        await stage.broker.publish(f"axb/{request()}", b'{"key":"1"}', retain=True)
        assert len(stage.broker.retained) == 2
    sqlite_database.close()
