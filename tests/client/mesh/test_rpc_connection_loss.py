"""Requests when the connection breaks, packet by packet: a read may be sent twice, a write never is."""

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
    async with ScriptedBroker() as running:
        yield running


@pytest.fixture
async def mesh(broker: ScriptedBroker) -> AsyncIterator[Mesh]:
    async with Mesh(str(broker.address)) as connected:
        yield connected
        assert connected.pending == 0


def start(call: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.create_task(call)


def build_response(request: Publish, **fields: object) -> Publish:
    body = {"id": json.loads(request.payload)["id"], "time": "2026-01-01T00:00:00Z", "status": 0, **fields}
    topic = request.topic.replace("/request/", "/response/")
    return Publish(topic, json.dumps(body).encode(), 1, packet_id=1)


async def accept_request(broker: ScriptedBroker) -> tuple[Peer, Publish]:
    """Accept the next connection and its subscription to responses, and return the request on it."""
    peer = await broker.accept()
    assert (await peer.grant()).filters == ((RESPONSES, 1),)
    return peer, await peer.expect(Publish)


async def test_responses_are_subscribed_to_before_the_first_request(
    broker: ScriptedBroker, mesh: Mesh
) -> None:
    reading = start(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    peer, request = await accept_request(broker)
    peer.send(Puback(request.packet_id), build_response(request, value="2011"))
    assert (await with_timeout(reading)).value == "2011"
    await peer.expect(Puback)
    second_reading = start(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    request = await peer.expect(Publish)
    peer.send(build_response(request, value="2012"))
    assert (
        await with_timeout(second_reading)
    ).value == "2012"  # before the broker has acknowledged the request
    peer.send(Puback(request.packet_id))


@pytest.mark.parametrize("acknowledged", [False, True])
async def test_a_read_is_sent_again_with_the_same_id_after_a_lost_connection(
    broker: ScriptedBroker, mesh: Mesh, *, acknowledged: bool
) -> None:
    reading = start(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    peer, first = await accept_request(broker)
    if acknowledged:
        peer.send(Puback(first.packet_id))
    peer.close()
    peer, second = await accept_request(broker)
    assert (second.topic, second.payload, second.dup) == (first.topic, first.payload, False)
    peer.send(Puback(second.packet_id), build_response(second, value="2011"))
    assert (await with_timeout(reading)).value == "2011"


async def test_a_read_that_breaks_the_connection_repeatedly_fails(broker: ScriptedBroker, mesh: Mesh) -> None:
    reading = start(mesh.read(GATEWAY, DEVICE, "8000", timeout=600))
    for _ in range(2):
        peer, _ = await accept_request(broker)
        peer.close()
    with pytest.raises(ConnectionLost, match="not allowed to send requests"):
        await with_timeout(reading)
    peer = await broker.accept()
    await peer.grant()
    assert await wait_until_stable(lambda: len(peer.unread)) == 0


async def test_a_response_that_arrives_just_before_the_connection_breaks_counts(
    broker: ScriptedBroker, mesh: Mesh
) -> None:
    reading = start(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    peer, request = await accept_request(broker)
    peer.send(build_response(request, value="2011"))
    peer.close()
    assert (await with_timeout(reading)).value == "2011"


async def test_a_write_that_the_broker_did_not_acknowledge_is_not_sent_again(
    broker: ScriptedBroker, mesh: Mesh
) -> None:
    writing = start(mesh.write(GATEWAY, DEVICE, "9802", "00", timeout=600))
    peer, _ = await accept_request(broker)
    peer.close()
    with pytest.raises(ConnectionLost, match=f"write to gateway {GATEWAY}, which may have been carried out"):
        await with_timeout(writing)
    peer = await broker.accept()
    await peer.grant()
    assert await wait_until_stable(lambda: len(peer.unread)) == 0


async def test_the_response_to_a_write_may_arrive_on_the_next_connection(
    broker: ScriptedBroker, mesh: Mesh
) -> None:
    writing = start(mesh.write(GATEWAY, DEVICE, "tx-power", 4, timeout=LONG))
    peer, request = await accept_request(broker)
    peer.send(Puback(request.packet_id))
    peer.close()
    peer = await broker.accept()
    await peer.grant()
    assert await wait_until_stable(lambda: len(peer.unread)) == 0
    peer.send(build_response(request))
    assert (await with_timeout(writing)).status == 0


async def test_a_write_whose_response_is_lost_times_out_with_the_reason() -> None:
    message = ""
    for limit in RETRY_TIMEOUTS:
        async with ScriptedBroker() as broker, Mesh(str(broker.address)) as mesh:
            disconnecting = start(acknowledge_and_disconnect(broker))
            with pytest.raises(
                (GatewayTimeout, BrokerUnreachable)
            ) as raised:  # BrokerUnreachable: nothing was sent
                await with_timeout(mesh.write(GATEWAY, DEVICE, "9802", "00", timeout=limit))
            disconnecting.cancel()
            await asyncio.wait({disconnecting})
            assert mesh.pending == 0
        message = str(raised.value)
        if "in between" in message:
            break
    expected = (
        f"gateway {GATEWAY} did not respond within {limit:g} s; the connection to the broker broke in between"
    )
    assert message == expected


async def acknowledge_and_disconnect(broker: ScriptedBroker) -> None:
    peer, request = await accept_request(broker)
    peer.send(Puback(request.packet_id))
    peer.close()


async def test_an_ack_is_sent_until_the_broker_acknowledges_it(broker: ScriptedBroker, mesh: Mesh) -> None:
    acking = start(mesh.ack(GATEWAY, DEVICE, "8800", time=datetime.now(UTC)))
    peer = await broker.accept()
    first = await peer.expect(Publish)
    peer.close()
    peer = await broker.accept()
    second = await peer.expect(Publish)
    assert (second.topic, second.payload) == (first.topic, first.payload)
    assert not acking.done()
    peer.send(Puback(second.packet_id))
    await with_timeout(acking)


async def test_an_unacknowledged_ack_times_out(broker: ScriptedBroker, mesh: Mesh) -> None:
    peer = await broker.accept()
    for limit in RETRY_TIMEOUTS:
        expected = f"did not acknowledge ack to gateway {GATEWAY} within {limit:g} s"
        with pytest.raises(ConnectionLost, match=expected):
            await with_timeout(mesh.ack(GATEWAY, DEVICE, "8800", time=datetime.now(UTC), timeout=limit))
        if peer.unread:
            break
    request = await peer.expect(Publish)
    peer.send(Puback(request.packet_id))


async def test_an_ack_that_erases_all_samples_is_sent_once(broker: ScriptedBroker, mesh: Mesh) -> None:
    ack_type = AckType.ERASE_ALL
    acking = start(mesh.ack(GATEWAY, DEVICE, "8800", time=datetime.now(UTC), type=ack_type))
    peer = await broker.accept()
    await peer.expect(Publish)
    peer.close()
    with pytest.raises(ConnectionLost, match="may have been carried out"):
        await with_timeout(acking)
    peer = await broker.accept()
    assert await wait_until_stable(lambda: len(peer.unread)) == 0


async def test_responses_of_many_gateways_share_one_subscription(broker: ScriptedBroker, mesh: Mesh) -> None:
    """Brokers limit the subscriptions of a client; the embedded one to a hundred."""
    peer = await broker.accept()
    macs = [Mac(f"02005e01{number:04x}") for number in range(52)]
    for index, mac in enumerate(macs):
        reading = start(mesh.apiversion(mac, timeout=LONG))
        if index <= 50:
            level = mac if index < 50 else "+"
            assert (await peer.grant()).filters == ((f"mt/gateway/{level}/response/#", 1),)
        if index == 50:
            unsubscribe = await peer.expect(Unsubscribe)
            assert set(unsubscribe.filters) == {f"mt/gateway/{each}/response/#" for each in macs[:50]}
            peer.send(Unsuback(unsubscribe.packet_id))
        request = await peer.expect(Publish)
        peer.send(Puback(request.packet_id), build_response(request, version="2.4.0"))
        assert str((await with_timeout(reading)).version) == "2.4.0"
        await peer.expect(Puback)


async def test_requests_to_one_gateway_share_its_subscription(broker: ScriptedBroker, mesh: Mesh) -> None:
    reading = [start(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG)) for _ in range(5)]
    peer = await broker.accept()
    await peer.grant()
    requests = await peer.publishes(5)
    peer.send(*(Puback(request.packet_id) for request in requests))
    peer.send(*(build_response(request, value="2011") for request in reversed(requests)))
    assert [(await with_timeout(task)).value for task in reading] == ["2011"] * 5


async def test_a_refused_subscription_can_be_retried(broker: ScriptedBroker, mesh: Mesh) -> None:
    first = start(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    peer = await broker.accept()
    await peer.grant(0x80)
    await wait_until(first.done)
    assert "SubscriptionRefused" in repr(first.exception())
    second = start(mesh.read(GATEWAY, DEVICE, "8000", timeout=LONG))
    await peer.grant()
    request = await peer.expect(Publish)
    peer.send(Puback(request.packet_id), build_response(request, value="2011"))
    assert (await with_timeout(second)).value == "2011"
