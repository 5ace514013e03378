"""Queues of requests per gateway: the rules without I/O, and through a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from meshfleet.errors import GatewayBusy, GatewayLost, GatewayOffline, GatewayTimeout, TooManyRequests
from meshfleet.protocol.codes import Operation, Priority
from meshfleet.protocol.ids import Identifier, Mac
from meshfleet.protocol.requests import ReadRequest
from meshfleet.protocol.topics import RequestTopic, TopicCodec
from meshfleet.service.requests.gateway_queue import GatewayQueues
from meshfleet.service.requests.rpc import RpcClient
from tests.examples import examples
from tests.mqtt.broker.running_broker import D, G, RunningBroker
from tests.service.requests.scripted_gateway import ScriptedGateway, connect_gateway, never_respond

if TYPE_CHECKING:
    from meshfleet.service.requests.rpc import RpcResponse

GATEWAY, DEVICE = Mac(G), Mac(D)
MAX_CONCURRENT = 3
MACS = [Mac(f"02005e00000{number}") for number in range(2)]


class GatewayQueueModel(RuleBasedStateMachine):
    """Queues compared with a model: a list of waiting tickets in the order of arrival."""

    def __init__(self) -> None:
        super().__init__()
        self.queues: GatewayQueues[int] = GatewayQueues(MAX_CONCURRENT)
        self.busy: Counter[Mac] = Counter()
        self.waiting: dict[Mac, list[tuple[Priority, int]]] = {mac: [] for mac in MACS}
        self.number = 0
        self.slots = MAX_CONCURRENT

    @rule(mac=st.sampled_from(MACS), priority=st.sampled_from(Priority))
    def enter(self, mac: Mac, priority: Priority) -> None:
        self.number += 1
        is_active = self.queues.acquire_or_enqueue(mac, priority, self.number)
        assert is_active == (self.busy[mac] < self.slots)
        if is_active:
            self.busy[mac] += 1
        else:
            self.waiting[mac].append((priority, self.number))

    @precondition(lambda self: self.busy.total())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        mac = data.draw(st.sampled_from([mac for mac in MACS if self.busy[mac]]))
        queue = self.waiting[mac]
        first = self.find_next(mac) if self.busy[mac] <= self.slots else None
        assert self.queues.release_slot(mac) == (None if first is None else first[1])
        if first is None:
            self.busy[mac] -= 1
        else:
            queue.remove(first)

    @rule(slots=st.integers(1, 2 * MAX_CONCURRENT))
    def resize(self, slots: int) -> None:
        self.slots = slots
        granted = self.queues.set_max_concurrent(slots)
        expected = []
        for mac in MACS:
            while self.busy[mac] < slots and (first := self.find_next(mac)) is not None:
                self.waiting[mac].remove(first)
                self.busy[mac] += 1
                expected.append((mac, first[1]))
        assert sorted(granted) == sorted(expected)

    def find_next(self, mac: Mac) -> tuple[Priority, int] | None:
        """Return the waiting ticket that gets the next slot."""
        return max(self.waiting[mac], key=lambda each: (each[0], -each[1]), default=None)

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        mac = data.draw(st.sampled_from([mac for mac in MACS if self.waiting[mac]]))
        priority, ticket = data.draw(st.sampled_from(self.waiting[mac]))
        for _ in range(2):  # the second time changes nothing
            self.queues.cancel_ticket(mac, priority, ticket)
        self.waiting[mac].remove((priority, ticket))

    @rule(mac=st.sampled_from(MACS), priority=st.sampled_from(Priority))
    def cancel_unknown_ticket(self, mac: Mac, priority: Priority) -> None:
        self.queues.cancel_ticket(mac, priority, 0)

    @invariant()
    def counts_agree(self) -> None:
        assert self.queues.queued == sum(map(len, self.waiting.values()))

    def teardown(self) -> None:
        """Check that all slots are free after every request was released."""
        for mac in MACS:
            for _ in range(self.busy[mac] + len(self.waiting[mac])):
                self.queues.release_slot(mac)
            assert [
                self.queues.acquire_or_enqueue(mac, Priority.LOW, number) for number in range(self.slots)
            ] == [True] * self.slots
            assert not self.queues.acquire_or_enqueue(mac, Priority.LOW, self.slots)


GatewayQueueModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestQueue = pytest.mark.rule("request-36")(GatewayQueueModel.TestCase)


def test_the_number_of_slots_can_be_changed() -> None:
    queues: GatewayQueues[int] = GatewayQueues(2)
    assert [queues.acquire_or_enqueue(GATEWAY, Priority.LOW, ticket) for ticket in range(5)] == [
        *[True] * 2,
        *[False] * 3,
    ]
    assert queues.set_max_concurrent(3) == [(GATEWAY, 2)]
    assert queues.set_max_concurrent(1) == []
    assert [queues.release_slot(GATEWAY) for _ in range(4)] == [None, None, 3, 4], "two slots are gone"
    assert queues.queued == 0


# --- Through a broker ---

LONG = 30.0
"""Seconds; reached only on failure."""


def rpc_client(broker: RunningBroker, max_concurrent: int = 2) -> RpcClient:
    return RpcClient(broker.broker, TopicCodec(broker.prefix), broker.clock, max_concurrent=max_concurrent)


def start_request(
    rpc: RpcClient, number: int, priority: Priority = Priority.MEDIUM, *, seconds: float = LONG
) -> RequestTask:
    """Start reading a property that no other request reads."""
    return asyncio.create_task(request_once(rpc, number, priority, seconds=seconds))


async def request_once(
    rpc: RpcClient, number: int, priority: Priority = Priority.MEDIUM, *, seconds: float = LONG
) -> RpcResponse:
    """Read the property in the caller's task."""
    topic = RequestTopic(GATEWAY, DEVICE, Operation.READ, Identifier(f"{0x8100 + number:04x}"))
    return await rpc.request(topic, ReadRequest(priority=priority), timeout=seconds)


if TYPE_CHECKING:
    RequestTask = asyncio.Task[RpcResponse]


def received_numbers(gateway: ScriptedGateway) -> list[int]:
    """Return the numbers of the requests that the gateway has received, in this order."""
    return [int(request.topic_suffix[-4:], 16) - 0x8100 for request in gateway.requests]


def respond_to(gateway: ScriptedGateway, number: int) -> None:
    (request,) = (each for each in gateway.requests if each.topic_suffix.endswith(f"{0x8100 + number:04x}"))
    gateway.publish(request.build_response(value="ff"))


async def wait_for_counts(broker: RunningBroker, rpc: RpcClient, *, pending: int, queued: int) -> None:
    await broker.until(lambda: (rpc.pending, rpc.queued) == (pending, queued))


@pytest.mark.anyio
@pytest.mark.rule("request-36")
async def test_a_gateway_gets_a_limited_number_of_requests_by_priority(broker: RunningBroker) -> None:
    rpc = rpc_client(broker)
    async with connect_gateway(broker.port, never_respond) as gateway:
        priorities = [Priority.MEDIUM, Priority.MEDIUM, Priority.LOW, Priority.MEDIUM, Priority.HIGH]
        priorities += [Priority.MEDIUM, Priority.HIGH]
        tasks = []
        for number, priority in enumerate(priorities):
            tasks.append(start_request(rpc, number, priority))
            await wait_for_counts(broker, rpc, pending=number + 1, queued=max(0, number - 1))
        await broker.until(lambda: len(gateway.requests) == 2)
        expected = [0, 1, 4, 6, 3, 5, 2]
        for finished_count, number in enumerate(expected):
            assert received_numbers(gateway) == expected[: finished_count + 2]
            respond_to(gateway, number)
            await tasks[number]
            expected_count = min(len(priorities), finished_count + 3)
            await broker.until(lambda expected_count=expected_count: len(gateway.requests) == expected_count)  # type: ignore[misc]
        assert (rpc.pending, rpc.queued) == (0, 0)


@pytest.mark.anyio
@pytest.mark.rule("request-36")
async def test_gateways_have_independent_queues(broker: RunningBroker) -> None:
    rpc, other = rpc_client(broker, 1), Mac(f"{int(G, 16) + 1:012x}")
    async with (
        connect_gateway(broker.port, never_respond) as gateway,
        connect_gateway(broker.port, lambda request: [request.build_response(value="ff")], other),
    ):
        stuck = [start_request(rpc, number) for number in range(3)]
        await wait_for_counts(broker, rpc, pending=3, queued=2)
        topic = RequestTopic(other, DEVICE, Operation.READ, Identifier("8000"))
        await rpc.request(topic, ReadRequest(), timeout=LONG)
        await broker.until(lambda: bool(gateway.requests))
        assert received_numbers(gateway) == [0]
        for task in stuck:
            task.cancel()
        await asyncio.wait(stuck)
    assert (rpc.pending, rpc.queued) == (0, 0)


@pytest.mark.anyio
async def test_a_request_whose_timeout_is_zero_is_not_sent(broker: RunningBroker) -> None:
    rpc = rpc_client(broker, 1)
    async with connect_gateway(
        broker.port, lambda request: [request.build_response(value="2011")]
    ) as gateway:
        with pytest.raises(GatewayBusy):
            await start_request(rpc, 0, seconds=0.0)
        await start_request(rpc, 1)
        assert len(gateway.requests) == 1
    assert rpc.pending == 0


@pytest.mark.anyio
@pytest.mark.rule("request-36")
async def test_a_request_that_times_out_in_the_queue_is_never_sent(broker: RunningBroker) -> None:
    rpc = rpc_client(broker, 1)
    async with connect_gateway(broker.port, never_respond) as gateway:
        first = start_request(rpc, 0)
        await broker.until(lambda: bool(gateway.requests))
        with pytest.raises(GatewayBusy) as raised:
            await start_request(rpc, 1, Priority.HIGH, seconds=0.1)
        assert (raised.value.code, raised.value.http, raised.value.sent) == ("gateway-busy", 504, False)
        assert (rpc.pending, rpc.queued) == (1, 0)
        respond_to(gateway, 0)
        await first
        last = start_request(rpc, 2)
        await broker.until(lambda: len(gateway.requests) == 2)
        assert received_numbers(gateway) == [0, 2]
        respond_to(gateway, 2)
        await last


@pytest.mark.anyio
@pytest.mark.rule("request-36")
@pytest.mark.parametrize("canceled", ["waiting", "sent", "next", "all"])
async def test_a_canceled_request_keeps_no_slot(broker: RunningBroker, canceled: str) -> None:
    """Cancel requests; `next` is canceled at the moment in which it gets the slot."""
    rpc = rpc_client(broker, 1)
    async with connect_gateway(broker.port, never_respond) as gateway:
        tasks = [start_request(rpc, number) for number in range(4)]
        await wait_for_counts(broker, rpc, pending=4, queued=3)
        await broker.until(lambda: bool(gateway.requests))
        canceled_numbers = {"waiting": [1, 2], "sent": [0], "next": [0, 1], "all": [0, 1, 2, 3]}[canceled]
        for number in canceled_numbers:
            tasks[number].cancel()
        await asyncio.wait([tasks[number] for number in canceled_numbers])
        for number in sorted({0, 1, 2, 3} - set(canceled_numbers)):
            await broker.until(lambda expected=number: received_numbers(gateway)[-1] == expected)  # type: ignore[misc]
            respond_to(gateway, number)
            await tasks[number]
        assert set(received_numbers(gateway)) == {0, *({0, 1, 2, 3} - set(canceled_numbers))}
        assert (rpc.pending, rpc.queued) == (0, 0)
        again = start_request(rpc, 9)
        await broker.until(lambda: received_numbers(gateway)[-1] == 9)
        respond_to(gateway, 9)
        await again


@pytest.mark.anyio
@pytest.mark.rule("request-36")
async def test_a_request_canceled_when_it_gets_the_slot_passes_it_on(broker: RunningBroker) -> None:
    rpc = rpc_client(broker, 1)
    others: list[RequestTask] = []

    async def cancel_next_after_response() -> None:
        await request_once(rpc, 0)
        others[0].cancel()  # it got the slot in this step, and has not run since

    async with connect_gateway(broker.port, lambda request: [request.build_response(value="ff")]) as gateway:
        first = asyncio.create_task(cancel_next_after_response())
        await asyncio.sleep(0)
        others += [start_request(rpc, number) for number in (1, 2)]
        await first
        await others[1]
        assert others[0].cancelled()
        assert received_numbers(gateway) == [0, 2]
        assert (rpc.pending, rpc.queued) == (0, 0)


@pytest.mark.anyio
@pytest.mark.rule("request-36")
async def test_a_slot_granted_at_the_deadline_is_released(broker: RunningBroker) -> None:
    """Run many requests with various deadlines against a gateway that responds to some of them."""
    rpc = rpc_client(broker, 2)
    async with connect_gateway(
        broker.port, lambda a: [a.build_response(value="ff")] if int(a.topic_suffix[-1], 16) % 2 else []
    ) as gateway:
        tasks = [start_request(rpc, number, seconds=0.005 * (number % 40)) for number in range(120)]
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each).__name__ for each in results} <= {"RpcResponse", "GatewayBusy", "GatewayTimeout"}
        assert (rpc.pending, rpc.queued) == (0, 0)
        gateway.responder = lambda request: [request.build_response(value="ff")]
        await asyncio.gather(*(start_request(rpc, number) for number in range(10)))


# --- Gateways that disconnect ---


@pytest.mark.anyio
async def test_requests_fail_when_their_gateway_disconnects(broker: RunningBroker) -> None:
    rpc = rpc_client(broker, 1)
    watch_task = asyncio.create_task(rpc.watch_connections(pause=0.01))
    async with connect_gateway(broker.port, never_respond) as gateway:
        sent, *queued = [start_request(rpc, number) for number in range(4)]
        await broker.until(lambda: bool(gateway.requests))
    with pytest.raises(GatewayLost) as lost:
        await sent
    assert (lost.value.code, lost.value.http, lost.value.sent) == ("gateway-lost", 504, True)
    for each in queued:
        with pytest.raises(GatewayOffline) as offline:
            await each
        assert not offline.value.sent
    assert (rpc.pending, rpc.queued) == (0, 0)
    async with connect_gateway(broker.port, lambda request: [request.build_response(value="ff")]):
        await start_request(rpc, 9)
    watch_task.cancel()
    await asyncio.wait([watch_task])


@pytest.mark.anyio
async def test_a_queued_request_is_sent_to_a_gateway_that_reconnected(broker: RunningBroker) -> None:
    rpc = rpc_client(broker, 1)
    async with connect_gateway(broker.port, never_respond) as old_connection:
        sent, queued = start_request(rpc, 0), start_request(rpc, 1)
        await broker.until(lambda: bool(old_connection.requests))
        # The new connection replaces the old one.
        async with connect_gateway(
            broker.port, lambda request: [request.build_response(value="ff")]
        ) as new_connection:
            rpc.fail_lost_requests()
            with pytest.raises(GatewayLost):
                await sent
            await queued
            assert received_numbers(new_connection)[-1] == 1


@pytest.mark.anyio
async def test_requests_to_connected_gateways_do_not_fail_as_lost(broker: RunningBroker) -> None:
    rpc = rpc_client(broker)
    async with connect_gateway(broker.port, never_respond) as gateway:
        waiting = start_request(rpc, 0)
        await broker.until(lambda: bool(gateway.requests))
        rpc.fail_lost_requests()
        respond_to(gateway, 0)
        await waiting
        with pytest.raises(GatewayTimeout):
            await start_request(rpc, 1, seconds=0.05)
        rpc.fail_lost_requests()


@pytest.mark.anyio
async def test_the_number_of_pending_requests_is_limited_and_all_can_be_canceled(
    broker: RunningBroker,
) -> None:
    rpc = rpc_client(broker, 1)
    async with connect_gateway(broker.port, never_respond) as gateway:
        waiting: list[RequestTask] = []
        while rpc.pending == len(waiting) < 100_000:
            waiting += [start_request(rpc, number % 256) for number in range(5_000)]
            await asyncio.wait(waiting, timeout=0)
        pending_count = rpc.pending
        assert rpc.queued == pending_count - 1
        with pytest.raises(TooManyRequests) as raised:
            await start_request(rpc, 0)
        assert (raised.value.code, raised.value.http, raised.value.sent) == ("too-many-requests", 503, False)
        for each in waiting:
            each.cancel()
        results = await asyncio.gather(*waiting, return_exceptions=True)
        assert (
            len([each for each in results if isinstance(each, TooManyRequests)])
            == len(waiting) - pending_count
        )
        assert (rpc.pending, rpc.queued) == (0, 0)
        assert received_numbers(gateway) in ([], [0])
        gateway.responder = lambda request: [request.build_response(value="ff")]
        await start_request(rpc, 1)
