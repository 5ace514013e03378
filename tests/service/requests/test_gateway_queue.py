"""Who may send to a gateway and who waits: the rules by themselves, and through a real broker."""

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
WIDTH = 3
MACS = [Mac(f"02005e00000{number}") for number in range(2)]


class GatewayQueueModel(RuleBasedStateMachine):
    """Lanes beside a model: a list of those who wait, in the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.lanes: GatewayQueues[int] = GatewayQueues(WIDTH)
        self.busy: Counter[Mac] = Counter()
        self.waiting: dict[Mac, list[tuple[Priority, int]]] = {mac: [] for mac in MACS}
        self.number = 0

    @rule(mac=st.sampled_from(MACS), priority=st.sampled_from(Priority))
    def enter(self, mac: Mac, priority: Priority) -> None:
        self.number += 1
        goes = self.lanes.acquire_or_enqueue(mac, priority, self.number)
        assert goes == (self.busy[mac] < WIDTH)
        if goes:
            self.busy[mac] += 1
        else:
            self.waiting[mac].append((priority, self.number))

    @precondition(lambda self: self.busy.total())
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        mac = data.draw(st.sampled_from([mac for mac in MACS if self.busy[mac]]))
        queue = self.waiting[mac]
        first = max(queue, key=lambda each: (each[0], -each[1])) if queue else None
        assert self.lanes.release(mac) == (None if first is None else first[1])
        if first is None:
            self.busy[mac] -= 1
        else:
            queue.remove(first)

    @precondition(lambda self: any(self.waiting.values()))
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        mac = data.draw(st.sampled_from([mac for mac in MACS if self.waiting[mac]]))
        priority, ticket = data.draw(st.sampled_from(self.waiting[mac]))
        for _ in range(2):  # the second time changes nothing
            self.lanes.cancel(mac, priority, ticket)
        self.waiting[mac].remove((priority, ticket))

    @rule(mac=st.sampled_from(MACS), priority=st.sampled_from(Priority))
    def give_up_what_does_not_wait(self, mac: Mac, priority: Priority) -> None:
        self.lanes.cancel(mac, priority, 0)

    @invariant()
    def counts_agree(self) -> None:
        assert self.lanes.queued == sum(map(len, self.waiting.values()))

    def teardown(self) -> None:
        """When all have gone, nothing is left: the next ones go at once."""
        for mac in MACS:
            for _ in range(self.busy[mac] + len(self.waiting[mac])):
                self.lanes.release(mac)
            assert [self.lanes.acquire_or_enqueue(mac, Priority.LOW, number) for number in range(WIDTH)] == [
                True
            ] * WIDTH
            assert not self.lanes.acquire_or_enqueue(mac, Priority.LOW, WIDTH)


GatewayQueueModel.TestCase.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestQueue = pytest.mark.rule("request-36")(GatewayQueueModel.TestCase)


# --- Through a broker ---

LONG = 30.0
"""Reached only when something is broken."""


def rpc_client(stage: RunningBroker, at_once: int = 2) -> RpcClient:
    return RpcClient(stage.broker, TopicCodec(stage.prefix), stage.clock, max_concurrent=at_once)


def start_request(
    asking: RpcClient, number: int, priority: Priority = Priority.MEDIUM, *, seconds: float = LONG
) -> Waiting:
    """Read a property that nobody else reads."""
    return asyncio.create_task(request_once(asking, number, priority, seconds=seconds))


async def request_once(
    asking: RpcClient, number: int, priority: Priority = Priority.MEDIUM, *, seconds: float = LONG
) -> RpcResponse:
    """The same, in the task of whoever asks."""
    topic = RequestTopic(GATEWAY, DEVICE, Operation.READ, Identifier(f"{0x8100 + number:04x}"))
    return await asking.request(topic, ReadRequest(priority=priority), timeout=seconds)


if TYPE_CHECKING:
    Waiting = asyncio.Task[RpcResponse]


def numbers(third: ScriptedGateway) -> list[int]:
    """Which of them have reached the gateway, in this order."""
    return [int(asked.topic_suffix[-4:], 16) - 0x8100 for asked in third.requests]


def answer(third: ScriptedGateway, number: int) -> None:
    (asked,) = (each for each in third.requests if each.topic_suffix.endswith(f"{0x8100 + number:04x}"))
    third.publish(asked.build_response(value="ff"))


async def wait_for_counts(stage: RunningBroker, asking: RpcClient, *, pending: int, queued: int) -> None:
    await stage.until(lambda: (asking.pending, asking.queued) == (pending, queued))


@pytest.mark.anyio
@pytest.mark.rule("request-36")
async def test_a_gateway_gets_so_many_at_a_time_the_urgent_ones_first(stage: RunningBroker) -> None:
    asking = rpc_client(stage)
    async with connect_gateway(stage.port, never_respond) as third:
        order = [Priority.MEDIUM, Priority.MEDIUM, Priority.LOW, Priority.MEDIUM, Priority.HIGH]
        order += [Priority.MEDIUM, Priority.HIGH]
        tasks = []
        for number, priority in enumerate(order):
            tasks.append(start_request(asking, number, priority))
            await wait_for_counts(stage, asking, pending=number + 1, queued=max(0, number - 1))
        await stage.until(lambda: len(third.requests) == 2)
        expected = [0, 1, 4, 6, 3, 5, 2]
        for done, number in enumerate(expected):
            assert numbers(third) == expected[: done + 2]
            answer(third, number)
            await tasks[number]
            wanted = min(len(order), done + 3)
            await stage.until(lambda wanted=wanted: len(third.requests) == wanted)  # type: ignore[misc]
        assert (asking.pending, asking.queued) == (0, 0)


@pytest.mark.anyio
@pytest.mark.rule("request-36")
async def test_gateways_do_not_wait_for_each_other(stage: RunningBroker) -> None:
    asking, other = rpc_client(stage, 1), Mac(f"{int(G, 16) + 1:012x}")
    async with (
        connect_gateway(stage.port, never_respond) as third,
        connect_gateway(stage.port, lambda asked: [asked.build_response(value="ff")], other),
    ):
        stuck = [start_request(asking, number) for number in range(3)]
        await wait_for_counts(stage, asking, pending=3, queued=2)
        topic = RequestTopic(other, DEVICE, Operation.READ, Identifier("8000"))
        await asking.request(topic, ReadRequest(), timeout=LONG)
        await stage.until(lambda: bool(third.requests))
        assert numbers(third) == [0]
        for task in stuck:
            task.cancel()
        await asyncio.wait(stuck)
    assert (asking.pending, asking.queued) == (0, 0)


@pytest.mark.anyio
async def test_what_is_over_before_it_begins_is_not_sent(stage: RunningBroker) -> None:
    asking = rpc_client(stage, 1)
    async with connect_gateway(stage.port, lambda asked: [asked.build_response(value="2011")]) as third:
        with pytest.raises(GatewayBusy):
            await start_request(asking, 0, seconds=0.0)
        await start_request(asking, 1)
        assert len(third.requests) == 1
    assert asking.pending == 0


@pytest.mark.anyio
@pytest.mark.rule("request-36")
async def test_who_waits_too_long_for_its_turn_was_never_sent(stage: RunningBroker) -> None:
    asking = rpc_client(stage, 1)
    async with connect_gateway(stage.port, never_respond) as third:
        first = start_request(asking, 0)
        await stage.until(lambda: bool(third.requests))
        with pytest.raises(GatewayBusy) as raised:
            await start_request(asking, 1, Priority.HIGH, seconds=0.1)
        assert (raised.value.code, raised.value.http, raised.value.sent) == ("gateway-busy", 504, False)
        assert (asking.pending, asking.queued) == (1, 0)
        answer(third, 0)
        await first
        last = start_request(asking, 2)
        await stage.until(lambda: len(third.requests) == 2)
        assert numbers(third) == [0, 2]
        answer(third, 2)
        await last


@pytest.mark.anyio
@pytest.mark.rule("request-36")
@pytest.mark.parametrize("who", ["waiting", "sent", "next", "all"])
async def test_who_is_cancelled_keeps_no_turn(stage: RunningBroker, who: str) -> None:
    """`next` is cancelled in the very moment in which its turn has come."""
    asking = rpc_client(stage, 1)
    async with connect_gateway(stage.port, never_respond) as third:
        tasks = [start_request(asking, number) for number in range(4)]
        await wait_for_counts(stage, asking, pending=4, queued=3)
        await stage.until(lambda: bool(third.requests))
        victims = {"waiting": [1, 2], "sent": [0], "next": [0, 1], "all": [0, 1, 2, 3]}[who]
        for number in victims:
            tasks[number].cancel()
        await asyncio.wait([tasks[number] for number in victims])
        for number in sorted({0, 1, 2, 3} - set(victims)):
            await stage.until(lambda wanted=number: numbers(third)[-1] == wanted)  # type: ignore[misc]
            answer(third, number)
            await tasks[number]
        assert set(numbers(third)) == {0, *({0, 1, 2, 3} - set(victims))}
        assert (asking.pending, asking.queued) == (0, 0)
        again = start_request(asking, 9)
        await stage.until(lambda: numbers(third)[-1] == 9)
        answer(third, 9)
        await again


@pytest.mark.anyio
@pytest.mark.rule("request-36")
async def test_who_is_cancelled_when_its_turn_has_just_come_passes_it_on(stage: RunningBroker) -> None:
    asking = rpc_client(stage, 1)
    others: list[Waiting] = []

    async def then_cancel_the_next() -> None:
        await request_once(asking, 0)
        others[0].cancel()  # its turn has come in this very step, and it has not run since

    async with connect_gateway(stage.port, lambda asked: [asked.build_response(value="ff")]) as third:
        first = asyncio.create_task(then_cancel_the_next())
        await asyncio.sleep(0)
        others += [start_request(asking, number) for number in (1, 2)]
        await first
        await others[1]
        assert others[0].cancelled()
        assert numbers(third) == [0, 2]
        assert (asking.pending, asking.queued) == (0, 0)


@pytest.mark.anyio
@pytest.mark.rule("request-36")
async def test_a_turn_and_a_deadline_in_one_moment_leave_no_turn_taken(stage: RunningBroker) -> None:
    """Many waiters with all kinds of deadlines, and a gateway that answers some: at the end all is free."""
    asking = rpc_client(stage, 2)
    async with connect_gateway(
        stage.port, lambda a: [a.build_response(value="ff")] if int(a.topic_suffix[-1], 16) % 2 else []
    ) as third:
        tasks = [start_request(asking, number, seconds=0.005 * (number % 40)) for number in range(120)]
        told = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(each).__name__ for each in told} <= {"RpcResponse", "GatewayBusy", "GatewayTimeout"}
        assert (asking.pending, asking.queued) == (0, 0)
        third.responder = lambda asked: [asked.build_response(value="ff")]
        await asyncio.gather(*(start_request(asking, number) for number in range(10)))


# --- Gateways that go ---


@pytest.mark.anyio
async def test_when_a_gateway_goes_who_waits_for_it_is_told(stage: RunningBroker) -> None:
    asking = rpc_client(stage, 1)
    watching = asyncio.create_task(asking.watch_connections(pause=0.01))
    async with connect_gateway(stage.port, never_respond) as third:
        sent, *queued = [start_request(asking, number) for number in range(4)]
        await stage.until(lambda: bool(third.requests))
    with pytest.raises(GatewayLost) as lost:
        await sent
    assert (lost.value.code, lost.value.http, lost.value.sent) == ("gateway-lost", 504, True)
    for each in queued:
        with pytest.raises(GatewayOffline) as offline:
            await each
        assert not offline.value.sent
    assert (asking.pending, asking.queued) == (0, 0)
    async with connect_gateway(stage.port, lambda asked: [asked.build_response(value="ff")]):
        await start_request(asking, 9)
    watching.cancel()
    await asyncio.wait([watching])


@pytest.mark.anyio
async def test_who_waits_for_its_turn_is_sent_to_a_gateway_that_is_back(stage: RunningBroker) -> None:
    asking = rpc_client(stage, 1)
    async with connect_gateway(stage.port, never_respond) as before:
        sent, queued = start_request(asking, 0), start_request(asking, 1)
        await stage.until(lambda: bool(before.requests))
        async with connect_gateway(
            stage.port, lambda asked: [asked.build_response(value="ff")]
        ) as again:  # takes its place
            asking.fail_lost_requests()
            with pytest.raises(GatewayLost):
                await sent
            await queued
            assert numbers(again)[-1] == 1


@pytest.mark.anyio
async def test_a_look_at_gateways_that_are_still_there_changes_nothing(stage: RunningBroker) -> None:
    asking = rpc_client(stage)
    async with connect_gateway(stage.port, never_respond) as third:
        waiting = start_request(asking, 0)
        await stage.until(lambda: bool(third.requests))
        asking.fail_lost_requests()
        answer(third, 0)
        await waiting
        with pytest.raises(GatewayTimeout):
            await start_request(asking, 1, seconds=0.05)
        asking.fail_lost_requests()


@pytest.mark.anyio
async def test_only_so_many_wait_at_a_time_and_all_of_them_can_go(stage: RunningBroker) -> None:
    asking = rpc_client(stage, 1)
    async with connect_gateway(stage.port, never_respond) as third:
        waiting: list[Waiting] = []
        while asking.pending == len(waiting) < 100_000:
            waiting += [start_request(asking, number % 256) for number in range(5_000)]
            await asyncio.wait(waiting, timeout=0)
        held = asking.pending
        assert asking.queued == held - 1
        with pytest.raises(TooManyRequests) as raised:
            await start_request(asking, 0)
        assert (raised.value.code, raised.value.http, raised.value.sent) == ("too-many-requests", 503, False)
        for each in waiting:
            each.cancel()
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert len([each for each in told if isinstance(each, TooManyRequests)]) == len(waiting) - held
        assert (asking.pending, asking.queued) == (0, 0)
        assert numbers(third) in ([], [0])
        third.responder = lambda asked: [asked.build_response(value="ff")]
        await start_request(asking, 1)
