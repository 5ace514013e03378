"""The service's own voice and ear in the broker."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from meshfleet.mqtt.broker import Account, AccountKind
from meshfleet.mqtt.codec.packets import Puback, Publish, Pubrec, Suback, Subscribe
from meshfleet.rest import Role
from tests.mqtt.broker.messages import (
    TOPIC,
    acknowledge,
    expect_messages,
    load_stored,
    numbered_payloads,
    publish,
    subscribe,
)
from tests.mqtt.broker.running_broker import REPORTS, G, request, response, with_fresh_broker
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.mqtt.broker.running_broker import RunningBroker

pytestmark = pytest.mark.anyio

REQUESTS = f"mt/gateway/{G}/request/#"


async def test_the_service_publishes_to_all_who_subscribed(stage: RunningBroker) -> None:
    gateway = await stage.subscriber(G, REQUESTS, clean=False)
    await stage.broker.publish(request(), b"{}")
    await stage.broker.publish(request(), b"{}", qos=0)
    first, second = await expect_messages(gateway, b"{}", b"{}")
    assert first == Publish(request(), b"{}", 1, packet_id=1)
    assert second == Publish(request(), b"{}")


async def test_what_the_service_published_is_written_down_when_it_returns(stage: RunningBroker) -> None:
    gateway = await stage.subscriber(G, REQUESTS, clean=False)
    await gateway.close()
    for n in range(1, 6):
        await stage.broker.publish(request(), b'{"value":"%02d"}' % n)
        assert len((await load_stored(stage)).messages) == n
    await stage.restart()
    gateway = await stage.client(G, clean=False)
    come = await expect_messages(gateway, *(b'{"value":"%02d"}' % n for n in range(1, 6)))
    await acknowledge(gateway, *come)
    await stage.restart()
    assert (await load_stored(stage)).messages == []


async def test_the_service_waits_for_the_commit_and_at_qos_0_for_nothing(stage: RunningBroker) -> None:
    gateway = await stage.subscriber(G, REQUESTS, clean=False)
    stage.consumer.open.clear()
    publishing = asyncio.create_task(stage.broker.publish(request(), b"{}"))
    await expect_messages(gateway, b"{}")
    await stage.broker.publish(request(), b"", qos=0)
    await expect_messages(gateway, b"")
    assert not publishing.done()
    stage.consumer.open.set()
    await publishing
    assert len((await load_stored(stage)).messages) == 1


async def test_the_service_may_stop_waiting(stage: RunningBroker) -> None:
    gateway = await stage.subscriber(G, REQUESTS, clean=False)
    stage.consumer.open.clear()
    publishing = asyncio.create_task(stage.broker.publish(request(), b"{}"))
    await expect_messages(gateway, b"{}")
    publishing.cancel()
    await asyncio.wait([publishing])
    stage.consumer.open.set()
    await stage.broker.publish(request(), b"")
    await expect_messages(gateway, b"")


async def test_many_of_the_service_keep_their_order(stage: RunningBroker) -> None:
    viewer = await stage.subscriber("viewer", "mt/gateway/+/response/#")
    await asyncio.gather(*(stage.broker.publish(response(), payload) for payload in numbered_payloads(80)))
    await expect_messages(viewer, *numbered_payloads(80))


@pytest.mark.parametrize("qos", [0, 1])
async def test_what_the_service_retains_is_retained(stage: RunningBroker, qos: int) -> None:
    await stage.broker.publish(response(), b"kept", qos=qos, retain=True)
    await stage.restart()
    (message,) = await subscribe(await stage.client("viewer"), ("mt/gateway/+/response/#", 1))
    assert message == Publish(response(), b"kept", qos, retain=True, packet_id=qos)


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_report_of_the_service_reaches_the_consumer(stage: RunningBroker, qos: int) -> None:
    await stage.broker.publish(TOPIC, b"{}", qos=qos)
    await stage.until(lambda: [message.payload for message in stage.consumer.messages] == [b"{}"])


@each_row("qos", [0, 1, 2])
@with_fresh_broker
async def test_a_report_of_the_service_is_not_lost_when_it_stops(stage: RunningBroker, qos: int) -> None:
    publishing = asyncio.create_task(stage.broker.publish(TOPIC, b"{}", qos=qos))
    await asyncio.sleep(0)
    await stage.restart()
    await publishing
    assert [message.payload for message in stage.consumer.messages] == [b"{}"]


async def test_the_service_hears_what_it_listens_to_once_and_in_order(stage: RunningBroker) -> None:
    heard: list[Publish] = []
    listener = stage.broker.subscribe("mt/gateway/+/response/#", heard.append)
    gateway = await stage.gateway()
    for qos in (0, 1, 2):
        gateway.send(Publish(response(), b"%d" % qos, qos, packet_id=7 if qos else 0))
    assert await gateway.expect(Puback) == Puback(7)
    assert await gateway.expect(Pubrec) == Pubrec(7)
    assert heard == [Publish(response(), b"0"), Publish(response(), b"1", 1), Publish(response(), b"2", 1)]
    await publish(gateway, b"elsewhere")
    stage.broker.unsubscribe("mt/gateway/+/response/#", listener)
    await publish(gateway, b"late", topic=response())
    assert len(heard) == 3


async def test_the_service_hears_requests_even_with_a_key_and_before_any_commit(stage: RunningBroker) -> None:
    heard: list[bytes] = []
    stage.broker.subscribe("mt/gateway/+/request/#", lambda message: heard.append(message.payload))
    operator = await stage.client("operator")
    stage.consumer.open.clear()
    secret = b'{"key":"00112233445566778899aabbccddeeff"}'
    operator.send(Publish(request(), secret, 1, packet_id=1))
    await operator.receive_until_pong()
    assert heard == [secret]
    stage.consumer.open.set()


async def test_the_service_hears_what_is_retained_where_it_listens(stage: RunningBroker) -> None:
    gateway = await stage.gateway()
    await publish(gateway, b"kept", topic=response(), retain=True)
    heard: list[Publish] = []
    stage.broker.subscribe("#", heard.append)
    assert heard == [Publish(response(), b"kept", 1, retain=True)]
    await publish(gateway, b"new", topic=response(), retain=True)
    assert heard[1:] == [Publish(response(), b"new", 1)]


async def test_a_listener_may_listen_to_overlapping_filters_and_others_are_served_as_well(
    stage: RunningBroker,
) -> None:
    first: list[Publish] = []
    second: list[Publish] = []
    stage.broker.subscribe(REPORTS, first.append)
    stage.broker.subscribe("mt/#", second.append)
    viewer = await stage.subscriber("viewer", REPORTS)
    await publish(await stage.gateway(), b"{}")
    await expect_messages(viewer, b"{}")
    assert len(first) == len(second) == len(stage.consumer.messages) == 1


async def test_a_listener_may_publish(stage: RunningBroker) -> None:
    gateway = await stage.subscriber(G, REQUESTS, clean=False)
    answers: list[asyncio.Task[None]] = []

    def answer(message: Publish) -> None:
        answers.append(asyncio.create_task(stage.broker.publish(request(), message.payload)))

    stage.broker.subscribe(REPORTS, answer)
    gateway.send(*(Publish(TOPIC, payload, 0) for payload in numbered_payloads(5)))
    await stage.until(lambda: len(answers) == 5)
    await asyncio.gather(*answers)
    await expect_messages(gateway, *numbered_payloads(5))


async def test_a_session_that_is_ended_by_a_listener_gets_nothing_more(stage: RunningBroker) -> None:
    """While the message that the listener heard is on its way to it."""
    account = Account(kind=AccountKind.USER, name="viewer", role=Role.VIEWER)
    stage.broker.subscribe(REPORTS, lambda _: stage.broker.disconnect_account(account, delete_sessions=True))
    viewer = await stage.subscriber("viewer", REPORTS, clean=False)
    gateway = await stage.gateway()
    await publish(gateway, b"{}")
    assert await viewer.receive_until_closed() == []
    await publish(gateway, b"{}")
    assert (await load_stored(stage)).messages == []


@pytest.mark.rule("topic-20", "broker-6")
async def test_a_diagnostics_command_reaches_its_gateway_and_the_answer_the_service(
    stage: RunningBroker,
) -> None:
    answers: list[Publish] = []
    stage.broker.subscribe("meshtech/diagnostics/+/response/#", answers.append)
    gateway = await stage.gateway()
    diagnostics = await stage.client(G, client_id=G.upper())
    diagnostics.send(Subscribe(1, ((f"meshtech/diagnostics/{G}/command/#", 1),)))
    await diagnostics.expect(Suback)
    await stage.broker.publish(f"meshtech/diagnostics/{G}/command/net/state", b'{"id":"1"}')
    assert (await diagnostics.expect(Publish)).payload == b'{"id":"1"}'
    answer = Publish(f"meshtech/diagnostics/{G}/response/net/state", b'{"id":"1","success":true}', 1)
    diagnostics.send(replace(answer, packet_id=9))
    assert await diagnostics.expect(Puback) == Puback(9)
    assert answers == [answer]
    assert await gateway.receive_until_pong() == []  # both are there, and it is another connection


_MANY = 1000


async def test_a_burst_to_a_gateway_that_is_there_comes_whole_and_cuts_nobody_off(
    stage: RunningBroker,
) -> None:
    """More than a queue holds, as the acknowledgements of a batch may be; and none of it is written down."""
    gateway = await stage.subscriber(G, REQUESTS, clean=False)
    payloads = list(numbered_payloads(3 * _MANY))
    stage.broker.send([Publish(request(), payload, 1) for payload in payloads])
    come = await expect_messages(gateway, *payloads)
    assert (await load_stored(stage)).messages == []
    await acknowledge(gateway, *come)
    assert (await gateway.receive_until_pong(), stage.broker.quotas.queued_bytes) == ([], 0)


async def test_what_is_sent_to_who_is_away_is_kept_nowhere(stage: RunningBroker) -> None:
    gateway = await stage.subscriber(G, REQUESTS, clean=False)
    assert stage.broker.connected_gateways().keys() == {G}
    assert stage.broker.connection_number(G)
    await gateway.close()
    await stage.until(lambda: not stage.broker.connection_number(G))
    stage.broker.send([Publish(request(), b"{}", 1)])
    assert (stage.broker.quotas.queued_bytes, stage.broker.connected_gateways()) == (0, {})
    gateway = await stage.client(G, clean=False)
    assert await gateway.receive_until_pong() == []


async def test_a_request_beside_very_many_acknowledgements_is_delivered_and_cuts_nobody_off(
    stage: RunningBroker,
) -> None:
    gateway = await stage.subscriber(G, REQUESTS, clean=False)
    payloads = list(numbered_payloads(2 * _MANY))
    stage.broker.send([Publish(request(), payload, 1) for payload in payloads])
    await stage.broker.publish(request(), b"{}")
    come = await expect_messages(gateway, *payloads, b"{}")
    await acknowledge(gateway, *come)
    assert (await gateway.receive_until_pong(), stage.broker.quotas.queued_bytes) == ([], 0)
