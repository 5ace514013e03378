"""Queued start requests of a canceled job are dropped, and no other requests."""

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


def outbox_request(name: str, job: int, step: UpdateStep) -> OutboxRequest:
    gateway, device = mac_to_int(Mac(G)), mac_to_int(Mac(D))
    return OutboxRequest(
        name, job, device, 1, step, gateway, device, Operation.READ, Identifier("8001"), None
    )


def has_lease() -> bool:
    """Return that the lease is valid."""
    return True


@pytest.mark.anyio
@pytest.mark.rule("firmware-43")
async def test_queued_starts_are_dropped_with_their_job(broker: RunningBroker) -> None:
    rpc = RpcClient(broker.broker, TopicCodec(broker.prefix), broker.clock, max_concurrent=1)
    sender = JobRequestSender(rpc)
    others = [outbox_request("other job", 2, UpdateStep.START), outbox_request("state", 1, UpdateStep.STATE)]
    async with connect_gateway(broker.port, never_respond) as gateway, asyncio.timeout(TIMEOUT):
        sender.send(outbox_request("sent", 1, UpdateStep.START), has_lease)
        await eventually_async(lambda: bool(gateway.requests), "the first start is sent")
        for each in [outbox_request("waits", 1, UpdateStep.START), *others]:
            sender.send(each, has_lease)
        await eventually_async(lambda: rpc.queued == len(others) + 1, "the others are queued")
        sender.send(outbox_request("new", 1, UpdateStep.ENTER_DFU), has_lease)
        sender.drop_start_commands(1)
        sender.send(outbox_request("later", 1, UpdateStep.START), has_lease)
        dropped = [await sender.results.get() for _ in range(3)]
        assert {each.request_id for each in dropped} == {"waits", "new", "later"}
        assert all(isinstance(each.event, RequestNotSent) for each in dropped)
        assert rpc.queued == len(others)
        await sender.close()
        assert sender.results.empty()
        assert len(gateway.requests) == 1


@pytest.mark.anyio
@pytest.mark.rule("firmware-43")
async def test_a_start_without_a_valid_lease_is_not_sent_and_blocks_no_other(
    broker: RunningBroker,
) -> None:
    """Check a lease that another process may have taken over while this one was suspended."""
    sender = JobRequestSender(
        RpcClient(broker.broker, TopicCodec(broker.prefix), broker.clock, max_concurrent=1)
    )
    async with connect_gateway(broker.port, never_respond) as gateway, asyncio.timeout(TIMEOUT):
        sender.send(outbox_request("ended", 1, UpdateStep.START), lambda: False)
        result = await sender.results.get()
        assert (result.request_id, type(result.event)) == ("ended", RequestNotSent)
        assert sender.open_request_ids == {"ended"}, "until the result is processed"
        sender.mark_processed([result])
        sender.send(outbox_request("next", 1, UpdateStep.START), has_lease)
        await eventually_async(lambda: bool(gateway.requests), "the next start is sent")
        assert sender.open_request_ids == {"next"}
        await sender.close()
        assert len(gateway.requests) == 1
