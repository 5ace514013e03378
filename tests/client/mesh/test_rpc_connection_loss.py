"""Requests when the connection breaks, packet by packet: a read may come twice, a write never does."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.client.mesh.mesh import Mesh
from meshfleet.errors import GatewayTimeout
from meshfleet.errors.mqtt import BrokerUnreachable, ConnectionLost
from meshfleet.mqtt.codec.packets import Puback, Publish, Unsuback, Unsubscribe
from meshfleet.protocol.codes import AckType
from meshfleet.protocol.ids import Mac
from tests.client.mesh.gateways import DEVICE, GATEWAY, LONG
from tests.eventually import RETRY_TIMEOUTS
from tests.mqtt.client.scripted_broker import ScriptedBroker, wait_until, wait_until_stable, with_timeout

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

    from tests.mqtt.client.scripted_broker import Peer

pytestmark = pytest.mark.anyio

RESPONSES = f"mt/gateway/{GATEWAY}/response/#"


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    async with ScriptedBroker() as playing:
        yield playing


@pytest.fixture
async def mesh(broker: ScriptedBroker) -> AsyncIterator[Mesh]:
    async with Mesh(str(broker.address)) as connected:
        yield connected
        assert connected.pending == 0


def begin(deed: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(deed)


def answer(request: Publish, **fields: object) -> Publish:
    body = {"id": json.loads(request.payload)["id"], "time": "2026-01-01T00:00:00Z", "status": 0, **fields}
    topic = request.topic.replace("/request/", "/response/")
    return Publish(topic, json.dumps(body).encode(), 1, packet_id=1)


async def asked(broker: ScriptedBroker) -> tuple[Peer, Publish]:
    """The next connection, and the request that comes there, behind a subscription to its answer."""
    peer = await broker.accept()
    assert (await peer.grant()).filters == ((RESPONSES, 1),)
    return peer, await peer.expect(Publish)


async def test_the_answers_of_a_gateway_are_subscribed_to_before_it_is_first_asked(
    broker: ScriptedBroker, mesh: Mesh
) -> None:
    reading = begin(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    peer, request = await asked(broker)
    peer.send(Puback(request.packet_id), answer(request, value="2011"))
    assert (await with_timeout(reading)).value == "2011"
    await peer.expect(Puback)
    again = begin(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    request = await peer.expect(Publish)
    peer.send(answer(request, value="2012"))
    assert (
        await with_timeout(again)
    ).value == "2012"  # although the broker has not acknowledged the request yet
    peer.send(Puback(request.packet_id))


@pytest.mark.parametrize("acknowledged", [False, True])
async def test_a_read_is_asked_again_under_the_same_id_after_the_connection_broke(
    broker: ScriptedBroker, mesh: Mesh, *, acknowledged: bool
) -> None:
    reading = begin(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    peer, first = await asked(broker)
    if acknowledged:
        peer.send(Puback(first.packet_id))
    peer.close()
    peer, second = await asked(broker)
    assert (second.topic, second.payload, second.dup) == (first.topic, first.payload, False)
    peer.send(Puback(second.packet_id), answer(second, value="2011"))
    assert (await with_timeout(reading)).value == "2011"


async def test_a_read_at_which_the_connection_breaks_again_and_again_is_given_up(
    broker: ScriptedBroker, mesh: Mesh
) -> None:
    reading = begin(mesh.read(GATEWAY, DEVICE, "8000", timeout=600))
    for _ in range(2):
        peer, _ = await asked(broker)
        peer.close()
    with pytest.raises(ConnectionLost, match="who may not send requests"):
        await with_timeout(reading)
    peer = await broker.accept()
    await peer.grant()
    assert await wait_until_stable(lambda: len(peer.unread)) == 0


async def test_an_answer_that_comes_with_the_end_of_the_connection_counts(
    broker: ScriptedBroker, mesh: Mesh
) -> None:
    reading = begin(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    peer, request = await asked(broker)
    peer.send(answer(request, value="2011"))
    peer.close()
    assert (await with_timeout(reading)).value == "2011"


async def test_a_write_that_the_broker_did_not_acknowledge_is_not_sent_again(
    broker: ScriptedBroker, mesh: Mesh
) -> None:
    writing = begin(mesh.write(GATEWAY, DEVICE, "9802", "00", timeout=600))
    peer, _ = await asked(broker)
    peer.close()
    with pytest.raises(ConnectionLost, match=f"write to gateway {GATEWAY}, which may have been carried out"):
        await with_timeout(writing)
    peer = await broker.accept()
    await peer.grant()
    assert await wait_until_stable(lambda: len(peer.unread)) == 0


async def test_the_answer_to_a_write_may_come_on_the_next_connection(
    broker: ScriptedBroker, mesh: Mesh
) -> None:
    writing = begin(mesh.write(GATEWAY, DEVICE, "tx-power", 4, timeout=LONG))
    peer, request = await asked(broker)
    peer.send(Puback(request.packet_id))
    peer.close()
    peer = await broker.accept()
    await peer.grant()
    assert await wait_until_stable(lambda: len(peer.unread)) == 0
    peer.send(answer(request))
    assert (await with_timeout(writing)).status == 0


async def test_a_write_whose_answer_is_lost_times_out_and_says_what_happened() -> None:
    told = ""
    for limit in RETRY_TIMEOUTS:
        async with ScriptedBroker() as broker, Mesh(str(broker.address)) as mesh:
            breaking = begin(acknowledge_and_break(broker))
            with pytest.raises((GatewayTimeout, BrokerUnreachable)) as raised:  # the second: nothing was sent
                await with_timeout(mesh.write(GATEWAY, DEVICE, "9802", "00", timeout=limit))
            breaking.cancel()
            await asyncio.wait({breaking})
            assert mesh.pending == 0
        told = str(raised.value)
        if "meanwhile" in told:
            break
    words = (
        f"gateway {GATEWAY} did not answer within {limit:g} s; the connection to the broker broke in between"
    )
    assert told == words


async def acknowledge_and_break(broker: ScriptedBroker) -> None:
    peer, request = await asked(broker)
    peer.send(Puback(request.packet_id))
    peer.close()


async def test_an_ack_is_sent_until_the_broker_has_it(broker: ScriptedBroker, mesh: Mesh) -> None:
    acking = begin(mesh.ack(GATEWAY, DEVICE, "8800", time=datetime.now(UTC)))
    peer = await broker.accept()
    first = await peer.expect(Publish)
    peer.close()
    peer = await broker.accept()
    second = await peer.expect(Publish)
    assert (second.topic, second.payload) == (first.topic, first.payload)
    assert not acking.done()
    peer.send(Puback(second.packet_id))
    await with_timeout(acking)


async def test_an_ack_that_nobody_takes_is_told_in_time(broker: ScriptedBroker, mesh: Mesh) -> None:
    peer = await broker.accept()
    for limit in RETRY_TIMEOUTS:
        words = f"did not acknowledge ack to gateway {GATEWAY} within {limit:g} s"
        with pytest.raises(ConnectionLost, match=words):
            await with_timeout(mesh.ack(GATEWAY, DEVICE, "8800", time=datetime.now(UTC), timeout=limit))
        if peer.unread:
            break
    request = await peer.expect(Publish)
    peer.send(Puback(request.packet_id))


async def test_an_ack_that_erases_all_is_sent_once(broker: ScriptedBroker, mesh: Mesh) -> None:
    kind = AckType.ERASE_ALL
    acking = begin(mesh.ack(GATEWAY, DEVICE, "8800", time=datetime.now(UTC), type=kind))
    peer = await broker.accept()
    await peer.expect(Publish)
    peer.close()
    with pytest.raises(ConnectionLost, match="may have been carried out"):
        await with_timeout(acking)
    peer = await broker.accept()
    assert await wait_until_stable(lambda: len(peer.unread)) == 0


async def test_many_gateways_are_heard_through_one_subscription(broker: ScriptedBroker, mesh: Mesh) -> None:
    """A broker grants only so many to one client; the embedded one a hundred."""
    peer = await broker.accept()
    macs = [Mac(f"02005e01{number:04x}") for number in range(52)]
    for place, mac in enumerate(macs):
        asking = begin(mesh.apiversion(mac, timeout=LONG))
        if place <= 50:
            wanted = mac if place < 50 else "+"
            assert (await peer.grant()).filters == ((f"mt/gateway/{wanted}/response/#", 1),)
        if place == 50:
            taken_back = await peer.expect(Unsubscribe)
            assert set(taken_back.filters) == {f"mt/gateway/{each}/response/#" for each in macs[:50]}
            peer.send(Unsuback(taken_back.packet_id))
        request = await peer.expect(Publish)
        peer.send(Puback(request.packet_id), answer(request, version="2.4.0"))
        assert str((await with_timeout(asking)).version) == "2.4.0"
        await peer.expect(Puback)


async def test_requests_to_a_gateway_share_its_subscription(broker: ScriptedBroker, mesh: Mesh) -> None:
    reading = [begin(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG)) for _ in range(5)]
    peer = await broker.accept()
    await peer.grant()
    requests = await peer.publishes(5)
    peer.send(*(Puback(each.packet_id) for each in requests))
    peer.send(*(answer(each, value="2011") for each in reversed(requests)))
    assert [(await with_timeout(each)).value for each in reading] == ["2011"] * 5


async def test_who_is_refused_a_subscription_may_try_again(broker: ScriptedBroker, mesh: Mesh) -> None:
    first = begin(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    peer = await broker.accept()
    await peer.grant(0x80)
    await wait_until(first.done)
    assert "SubscriptionRefused" in repr(first.exception())
    second = begin(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    await peer.grant()
    request = await peer.expect(Publish)
    peer.send(Puback(request.packet_id), answer(request, value="2011"))
    assert (await with_timeout(second)).value == "2011"
