"""Starts of a canceled job that wait for their turn at a gateway are dropped, and nothing else is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.jobs.engine.outbox import Letter
from meshfleet.service.jobs.engine.post import Post
from meshfleet.service.jobs.update.events import Unsent
from meshfleet.service.jobs.update.model import Step
from meshfleet.service.requests.asking import Asking
from meshfleet.wire.codes import Operation
from meshfleet.wire.ids import Identifier, Mac, mac_number
from meshfleet.wire.topics import Topics
from tests.broker.raw import PATIENCE
from tests.broker.stage import D, G
from tests.eventually import eventually_async
from tests.service.requests.third_party import gateway, nothing

if TYPE_CHECKING:
    from tests.broker.stage import Stage


def letter(name: str, job: int, step: Step) -> Letter:
    there, device = mac_number(Mac(G)), mac_number(Mac(D))
    return Letter(name, job, device, 1, step, there, device, Operation.READ, Identifier("8001"), None)


def ours() -> bool:
    """The lease goes on."""
    return True


@pytest.mark.anyio
@pytest.mark.rule("firmware-43")
async def test_starts_that_wait_for_their_turn_are_dropped_with_their_job(stage: Stage) -> None:
    asking = Asking(stage.broker, Topics(stage.prefix), stage.clock, at_once=1)
    post = Post(asking)
    others = [letter("other job", 2, Step.START), letter("question", 1, Step.STATE)]
    async with gateway(stage.port, nothing) as third, asyncio.timeout(PATIENCE):
        post.send(letter("sent", 1, Step.START), ours)
        await eventually_async(lambda: bool(third.asked), "the first start is sent")
        for each in [letter("waits", 1, Step.START), *others]:
            post.send(each, ours)
        await eventually_async(lambda: asking.queued == len(others) + 1, "the others wait for their turn")
        post.send(letter("new", 1, Step.MODE), ours)
        post.drop_starts(1)
        post.send(letter("later", 1, Step.START), ours)
        dropped = [await post.replies.get() for _ in range(3)]
        assert {each.request for each in dropped} == {"waits", "new", "later"}
        assert all(isinstance(each.event, Unsent) for each in dropped)
        assert asking.queued == len(others)
        await post.end()
        assert post.replies.empty()
        assert len(third.asked) == 1


@pytest.mark.anyio
@pytest.mark.rule("firmware-43")
async def test_a_start_whose_lease_has_ended_is_not_sent_and_keeps_nobody_waiting(stage: Stage) -> None:
    """Another program may have taken it over, while this one was suspended."""
    post = Post(Asking(stage.broker, Topics(stage.prefix), stage.clock, at_once=1))
    async with gateway(stage.port, nothing) as third, asyncio.timeout(PATIENCE):
        post.send(letter("ended", 1, Step.START), lambda: False)
        told = await post.replies.get()
        assert (told.request, type(told.event)) == ("ended", Unsent)
        assert post.requests == {"ended"}, "until it is written down"
        post.settle([told])
        post.send(letter("next", 1, Step.START), ours)
        await eventually_async(lambda: bool(third.asked), "the next start is sent")
        assert post.requests == {"next"}
        await post.end()
        assert len(third.asked) == 1
