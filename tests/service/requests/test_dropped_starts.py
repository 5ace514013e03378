"""Starts of a canceled job that wait for their turn at a gateway are dropped, and nothing else is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.codes import Operation
from meshfleet.protocol.ids import Identifier, Mac, mac_to_int
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.jobs.execution.outbox import OutboxRequest
from meshfleet.service.jobs.execution.request_sender import JobRequestSender
from meshfleet.service.jobs.updates.model import RequestNotSent, UpdateStep
from meshfleet.service.requests.rpc import RpcClient
from tests.eventually import eventually_async
from tests.mqtt.broker.raw_client import TIMEOUT
from tests.mqtt.broker.running_broker import D, G
from tests.service.requests.scripted_gateway import connect_gateway, never_respond

if TYPE_CHECKING:
    from tests.mqtt.broker.running_broker import RunningBroker


def letter(name: str, job: int, step: UpdateStep) -> OutboxRequest:
    there, device = mac_to_int(Mac(G)), mac_to_int(Mac(D))
    return OutboxRequest(name, job, device, 1, step, there, device, Operation.READ, Identifier("8001"), None)


def is_our_job() -> bool:
    """The lease goes on."""
    return True


@pytest.mark.anyio
@pytest.mark.rule("firmware-43")
async def test_starts_that_wait_for_their_turn_are_dropped_with_their_job(stage: RunningBroker) -> None:
    asking = RpcClient(stage.broker, TopicCodec(stage.prefix), stage.clock, max_concurrent=1)
    post = JobRequestSender(asking)
    others = [letter("other job", 2, UpdateStep.START), letter("question", 1, UpdateStep.STATE)]
    async with connect_gateway(stage.port, never_respond) as third, asyncio.timeout(TIMEOUT):
        post.send(letter("sent", 1, UpdateStep.START), is_our_job)
        await eventually_async(lambda: bool(third.requests), "the first start is sent")
        for each in [letter("waits", 1, UpdateStep.START), *others]:
            post.send(each, is_our_job)
        await eventually_async(lambda: asking.queued == len(others) + 1, "the others wait for their turn")
        post.send(letter("new", 1, UpdateStep.ENTER_DFU), is_our_job)
        post.drop_starts(1)
        post.send(letter("later", 1, UpdateStep.START), is_our_job)
        dropped = [await post.results.get() for _ in range(3)]
        assert {each.request_id for each in dropped} == {"waits", "new", "later"}
        assert all(isinstance(each.event, RequestNotSent) for each in dropped)
        assert asking.queued == len(others)
        await post.close()
        assert post.results.empty()
        assert len(third.requests) == 1


@pytest.mark.anyio
@pytest.mark.rule("firmware-43")
async def test_a_start_whose_lease_has_ended_is_not_sent_and_keeps_nobody_waiting(
    stage: RunningBroker,
) -> None:
    """Another program may have taken it over, while this one was suspended."""
    post = JobRequestSender(RpcClient(stage.broker, TopicCodec(stage.prefix), stage.clock, max_concurrent=1))
    async with connect_gateway(stage.port, never_respond) as third, asyncio.timeout(TIMEOUT):
        post.send(letter("ended", 1, UpdateStep.START), lambda: False)
        told = await post.results.get()
        assert (told.request_id, type(told.event)) == ("ended", RequestNotSent)
        assert post.open_request_ids == {"ended"}, "until it is written down"
        post.mark_processed([told])
        post.send(letter("next", 1, UpdateStep.START), is_our_job)
        await eventually_async(lambda: bool(third.requests), "the next start is sent")
        assert post.open_request_ids == {"next"}
        await post.close()
        assert len(third.requests) == 1
