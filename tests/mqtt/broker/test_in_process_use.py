"""Publishing and subscribing of the service itself, without a connection."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from meshfleet.mqtt.broker import Account, AccountKind
from meshfleet.mqtt.codec.packets import Puback, Publish, Pubrec, Suback, Subscribe
from meshfleet.rest.accounts import Role
from tests.mqtt.broker.messages import (
    TOPIC,
    acknowledge,
    expect_messages,
    load_stored,
    numbered_payloads,
    publish,
    subscribe,
)
from tests.mqtt.broker.running_broker import REPORTS, G, RunningBroker, request, response, with_fresh_broker
from tests.row_tables import each_row

pytestmark = pytest.mark.anyio

REQUESTS = f"mt/gateway/{G}/request/#"


async def test_the_service_publishes_to_all_subscribers(server: RunningBroker) -> None:
    gateway = await server.subscriber(G, REQUESTS, clean=False)
    await server.broker.publish(request(), b"{}")
    await server.broker.publish(request(), b"{}", qos=0)
    first, second = await expect_messages(gateway, b"{}", b"{}")
    assert first == Publish(request(), b"{}", 1, packet_id=1)
    assert second == Publish(request(), b"{}")


async def test_a_message_of_the_service_is_committed_when_publish_returns(server: RunningBroker) -> None:
    gateway = await server.subscriber(G, REQUESTS, clean=False)
    await gateway.close()
    for n in range(1, 6):
        await server.broker.publish(request(), b'{"value":"%02d"}' % n)
        assert len((await load_stored(server)).messages) == n
    await server.restart()
    gateway = await server.client(G, clean=False)
    received = await expect_messages(gateway, *(b'{"value":"%02d"}' % n for n in range(1, 6)))
    await acknowledge(gateway, *received)
    await server.restart()
    assert (await load_stored(server)).messages == []


async def test_publish_waits_for_the_commit_except_at_qos_0(server: RunningBroker) -> None:
    gateway = await server.subscriber(G, REQUESTS, clean=False)
    server.consumer.open.clear()
    publishing = asyncio.create_task(server.broker.publish(request(), b"{}"))
    await expect_messages(gateway, b"{}")
    await server.broker.publish(request(), b"", qos=0)
    await expect_messages(gateway, b"")
    assert not publishing.done()
    server.consumer.open.set()
    await publishing
    assert len((await load_stored(server)).messages) == 1


async def test_a_publish_of_the_service_can_be_canceled(server: RunningBroker) -> None:
    gateway = await server.subscriber(G, REQUESTS, clean=False)
    server.consumer.open.clear()
    publishing = asyncio.create_task(server.broker.publish(request(), b"{}"))
    await expect_messages(gateway, b"{}")
    publishing.cancel()
    await asyncio.wait([publishing])
    server.consumer.open.set()
    await server.broker.publish(request(), b"")
    await expect_messages(gateway, b"")


async def test_messages_of_the_service_keep_their_order(server: RunningBroker) -> None:
    viewer = await server.subscriber("viewer", "mt/gateway/+/response/#")
    await asyncio.gather(*(server.broker.publish(response(), payload) for payload in numbered_payloads(80)))
    await expect_messages(viewer, *numbered_payloads(80))


@pytest.mark.parametrize("qos", [0, 1])
async def test_a_retained_message_of_the_service_is_stored(server: RunningBroker, qos: int) -> None:
    await server.broker.publish(response(), b"kept", qos=qos, retain=True)
    await server.restart()
    (message,) = await subscribe(await server.client("viewer"), ("mt/gateway/+/response/#", 1))
    assert message == Publish(response(), b"kept", qos, retain=True, packet_id=qos)


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_report_of_the_service_reaches_the_consumer(server: RunningBroker, qos: int) -> None:
    await server.broker.publish(TOPIC, b"{}", qos=qos)
    await server.until(lambda: [message.payload for message in server.consumer.messages] == [b"{}"])


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_report_of_the_service_is_not_lost_when_it_stops(server: RunningBroker, qos: int) -> None:
    publishing = asyncio.create_task(server.broker.publish(TOPIC, b"{}", qos=qos))
    await asyncio.sleep(0)
    await server.restart()
    await publishing
    assert [message.payload for message in server.consumer.messages] == [b"{}"]


async def test_a_callback_receives_matching_messages_once_and_in_order(server: RunningBroker) -> None:
    delivered: list[Publish] = []
    subscriber = server.broker.subscribe("mt/gateway/+/response/#", delivered.append)
    gateway = await server.gateway()
    for qos in (0, 1, 2):
        gateway.send(Publish(response(), b"%d" % qos, qos, packet_id=7 if qos else 0))
    assert await gateway.expect(Puback) == Puback(7)
    assert await gateway.expect(Pubrec) == Pubrec(7)
    assert delivered == [
        Publish(response(), b"0"),
        Publish(response(), b"1", 1),
        Publish(response(), b"2", 1),
    ]
    await publish(gateway, b"elsewhere")
    server.broker.unsubscribe("mt/gateway/+/response/#", subscriber)
    await publish(gateway, b"late", topic=response())
    assert len(delivered) == 3


async def test_a_callback_receives_requests_with_a_key_before_any_commit(
    server: RunningBroker,
) -> None:
    delivered: list[bytes] = []
    server.broker.subscribe("mt/gateway/+/request/#", lambda message: delivered.append(message.payload))
    operator = await server.client("operator")
    server.consumer.open.clear()
    secret = b'{"key":"00112233445566778899aabbccddeeff"}'
    operator.send(Publish(request(), secret, 1, packet_id=1))
    await operator.receive_until_pong()
    assert delivered == [secret]
    server.consumer.open.set()


async def test_a_new_callback_receives_retained_messages(server: RunningBroker) -> None:
    gateway = await server.gateway()
    await publish(gateway, b"kept", topic=response(), retain=True)
    delivered: list[Publish] = []
    server.broker.subscribe("#", delivered.append)
    assert delivered == [Publish(response(), b"kept", 1, retain=True)]
    await publish(gateway, b"new", topic=response(), retain=True)
    assert delivered[1:] == [Publish(response(), b"new", 1)]


async def test_callbacks_and_clients_with_overlapping_filters_are_all_served(
    server: RunningBroker,
) -> None:
    first: list[Publish] = []
    second: list[Publish] = []
    server.broker.subscribe(REPORTS, first.append)
    server.broker.subscribe("mt/#", second.append)
    viewer = await server.subscriber("viewer", REPORTS)
    await publish(await server.gateway(), b"{}")
    await expect_messages(viewer, b"{}")
    assert len(first) == len(second) == len(server.consumer.messages) == 1


async def test_a_callback_may_publish(server: RunningBroker) -> None:
    gateway = await server.subscriber(G, REQUESTS, clean=False)
    responses: list[asyncio.Task[None]] = []

    def respond(message: Publish) -> None:
        responses.append(asyncio.create_task(server.broker.publish(request(), message.payload)))

    server.broker.subscribe(REPORTS, respond)
    gateway.send(*(Publish(TOPIC, payload, 0) for payload in numbered_payloads(5)))
    await server.until(lambda: len(responses) == 5)
    await asyncio.gather(*responses)
    await expect_messages(gateway, *numbered_payloads(5))


async def test_a_session_deleted_by_a_callback_gets_no_more_messages(server: RunningBroker) -> None:
    """Delete the session while the message is being routed to it."""
    account = Account(kind=AccountKind.USER, name="viewer", role=Role.VIEWER)
    server.broker.subscribe(
        REPORTS, lambda _: server.broker.disconnect_account(account, delete_sessions=True)
    )
    viewer = await server.subscriber("viewer", REPORTS, clean=False)
    gateway = await server.gateway()
    await publish(gateway, b"{}")
    assert await viewer.receive_until_closed() == []
    await publish(gateway, b"{}")
    assert (await load_stored(server)).messages == []


@pytest.mark.rule("topic-20", "broker-6")
async def test_a_diagnostics_command_reaches_its_gateway_and_its_response_the_service(
    server: RunningBroker,
) -> None:
    responses: list[Publish] = []
    server.broker.subscribe("meshtech/diagnostics/+/response/#", responses.append)
    gateway = await server.gateway()
    diagnostics = await server.client(G, client_id=G.upper())
    diagnostics.send(Subscribe(1, ((f"meshtech/diagnostics/{G}/command/#", 1),)))
    await diagnostics.expect(Suback)
    await server.broker.publish(f"meshtech/diagnostics/{G}/command/net/state", b'{"id":"1"}')
    assert (await diagnostics.expect(Publish)).payload == b'{"id":"1"}'
    expected = Publish(f"meshtech/diagnostics/{G}/response/net/state", b'{"id":"1","success":true}', 1)
    diagnostics.send(replace(expected, packet_id=9))
    assert await diagnostics.expect(Puback) == Puback(9)
    assert responses == [expected]
    assert await gateway.receive_until_pong() == []  # the gateway's main connection, which did not subscribe


_MANY = 1000


async def test_a_burst_to_a_connected_gateway_arrives_completely_and_does_not_cut_it_off(
    server: RunningBroker,
) -> None:
    """Send more messages than the in-flight window holds; none of them is persisted."""
    gateway = await server.subscriber(G, REQUESTS, clean=False)
    payloads = list(numbered_payloads(3 * _MANY))
    server.broker.send([Publish(request(), payload, 1) for payload in payloads])
    received = await expect_messages(gateway, *payloads)
    assert (await load_stored(server)).messages == []
    await acknowledge(gateway, *received)
    assert (await gateway.receive_until_pong(), server.broker.quotas.queued_bytes) == ([], 0)


async def test_messages_sent_to_a_disconnected_gateway_are_dropped(server: RunningBroker) -> None:
    gateway = await server.subscriber(G, REQUESTS, clean=False)
    assert server.broker.connected_gateways().keys() == {G}
    assert server.broker.connection_id(G)
    await gateway.close()
    await server.until(lambda: not server.broker.connection_id(G))
    server.broker.send([Publish(request(), b"{}", 1)])
    assert (server.broker.quotas.queued_bytes, server.broker.connected_gateways()) == (0, {})
    gateway = await server.client(G, clean=False)
    assert await gateway.receive_until_pong() == []


async def test_a_request_after_very_many_sent_messages_is_delivered_and_cuts_no_client_off(
    server: RunningBroker,
) -> None:
    gateway = await server.subscriber(G, REQUESTS, clean=False)
    payloads = list(numbered_payloads(2 * _MANY))
    server.broker.send([Publish(request(), payload, 1) for payload in payloads])
    await server.broker.publish(request(), b"{}")
    received = await expect_messages(gateway, *payloads, b"{}")
    await acknowledge(gateway, *received)
    assert (await gateway.receive_until_pong(), server.broker.quotas.queued_bytes) == ([], 0)
