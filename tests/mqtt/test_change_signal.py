"""A ring wakes everybody who waits, and nobody else."""

from __future__ import annotations

import asyncio

import pytest

from meshfleet.mqtt.change_signal import ChangeSignal
from tests.mqtt.client.scripted_broker import with_timeout

pytestmark = pytest.mark.anyio


async def _waiting(bell: ChangeSignal, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(bell.wait()) for _ in range(count)]
    await asyncio.sleep(0)  # so that each of them has begun
    return tasks


async def _turns() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_a_ring_wakes_everybody_who_waits() -> None:
    bell = ChangeSignal()
    tasks = await _waiting(bell, 3)
    bell.notify()
    await with_timeout(asyncio.gather(*tasks))


async def test_a_ring_is_not_kept_for_those_who_come_later() -> None:
    bell = ChangeSignal()
    bell.notify()
    (late,) = await _waiting(bell, 1)
    await _turns()
    assert not late.done()
    bell.notify()
    await with_timeout(asyncio.gather(late))


async def test_who_waits_again_waits_for_the_next_ring() -> None:
    bell = ChangeSignal()
    heard = 0

    async def count() -> None:
        nonlocal heard
        while True:
            await bell.wait()
            heard += 1

    counting = asyncio.create_task(count())
    for expected in (1, 2, 3):
        await _turns()
        bell.notify()
        bell.notify()  # nobody waits in between: both are one
        await _turns()
        assert heard == expected
    counting.cancel()


async def test_who_was_cancelled_is_forgotten_and_the_others_are_woken() -> None:
    bell = ChangeSignal()
    first, second, third = await _waiting(bell, 3)
    second.cancel()
    await _turns()
    assert second.cancelled()
    bell.notify()
    await with_timeout(asyncio.gather(first, third))


async def test_a_ring_in_the_moment_of_cancelling_harms_nobody() -> None:
    bell = ChangeSignal()
    first, second = await _waiting(bell, 2)
    first.cancel()
    bell.notify()
    await with_timeout(asyncio.gather(second))
    assert first.cancelled()


async def test_to_ring_for_nobody_does_nothing() -> None:
    ChangeSignal().notify()
