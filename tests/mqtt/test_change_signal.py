"""A notification wakes all waiting coroutines, and no later ones."""

from __future__ import annotations

import asyncio

import pytest

from meshfleet.mqtt.change_signal import ChangeSignal
from tests.mqtt.client.scripted_broker import with_timeout

pytestmark = pytest.mark.anyio


async def _start_waiting(signal: ChangeSignal, count: int) -> list[asyncio.Task[None]]:
    tasks = [asyncio.create_task(signal.wait()) for _ in range(count)]
    await asyncio.sleep(0)  # so that each task has started
    return tasks


async def _run_loop() -> None:
    for _ in range(3):
        await asyncio.sleep(0)


async def test_notify_wakes_all_waiting_coroutines() -> None:
    signal = ChangeSignal()
    tasks = await _start_waiting(signal, 3)
    signal.notify()
    await with_timeout(asyncio.gather(*tasks))


async def test_a_notification_is_not_kept_for_later_coroutines() -> None:
    signal = ChangeSignal()
    signal.notify()
    (late,) = await _start_waiting(signal, 1)
    await _run_loop()
    assert not late.done()
    signal.notify()
    await with_timeout(asyncio.gather(late))


async def test_a_coroutine_that_waits_again_waits_for_the_next_notification() -> None:
    signal = ChangeSignal()
    woken = 0

    async def count() -> None:
        nonlocal woken
        while True:
            await signal.wait()
            woken += 1

    counting = asyncio.create_task(count())
    for expected in (1, 2, 3):
        await _run_loop()
        signal.notify()
        signal.notify()  # no coroutine waits in between: both count as one
        await _run_loop()
        assert woken == expected
    counting.cancel()


async def test_a_canceled_coroutine_is_removed_and_the_others_are_woken() -> None:
    signal = ChangeSignal()
    first, second, third = await _start_waiting(signal, 3)
    second.cancel()
    await _run_loop()
    assert second.cancelled()
    signal.notify()
    await with_timeout(asyncio.gather(first, third))


async def test_a_notification_at_the_moment_of_canceling_wakes_the_others() -> None:
    signal = ChangeSignal()
    first, second = await _start_waiting(signal, 2)
    first.cancel()
    signal.notify()
    await with_timeout(asyncio.gather(second))
    assert first.cancelled()


async def test_notify_without_waiting_coroutines_does_nothing() -> None:
    ChangeSignal().notify()
