"""Slow computations: a few at a time, and equal ones once."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Lock
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.positions.slow_work import SlowWork
from tests.eventually import eventually_async
from tests.service.positions.synthetic_site import TruePlace, get

if TYPE_CHECKING:
    from tests.service.positions.synthetic_site import SyntheticSite

pytestmark = pytest.mark.anyio


class Computation:
    """Computation that takes until it is allowed to end, and counts its calls."""

    def __init__(self) -> None:
        self.may_end = Event()
        self.calls = self.running = self.most = 0
        self._lock = Lock()

    def compute(self, number: int, *, factor: int = 1) -> int:
        with self._lock:
            self.calls += 1
            self.running += 1
            self.most = max(self.most, self.running)
        self.may_end.wait()
        with self._lock:
            self.running -= 1
        return number * factor


async def test_only_two_computations_run_at_a_time() -> None:
    work, computation = SlowWork(), Computation()
    tasks = [asyncio.create_task(work.run(computation.compute, number)) for number in range(6)]
    await eventually_async(lambda: computation.running == 2)
    computation.may_end.set()
    assert await asyncio.gather(*tasks) == list(range(6))
    assert (computation.calls, computation.most) == (6, 2)


async def test_a_computation_keeps_its_slot_when_its_client_leaves() -> None:
    work, computation = SlowWork(), Computation()
    left = [asyncio.create_task(work.run(computation.compute, number)) for number in range(3)]
    await eventually_async(lambda: computation.running == 2)
    for each in left:
        each.cancel()
    await asyncio.wait(left)
    others = [asyncio.create_task(work.run(computation.compute, number)) for number in range(2)]
    for _ in range(10):
        await asyncio.to_thread(int)  # threads would have begun by now
    computation.may_end.set()
    await asyncio.gather(*others)
    assert (computation.calls, computation.most) == (4, 2), "the third client left before its turn"


async def test_equal_computations_are_shared_until_they_end() -> None:
    work, computation = SlowWork(), Computation()
    tasks = [asyncio.create_task(work.share(computation.compute, 7, factor=2)) for _ in range(5)]
    other = asyncio.create_task(work.share(computation.compute, 7, factor=3))
    await eventually_async(lambda: computation.running == 2)
    tasks.pop().cancel()
    computation.may_end.set()
    assert await asyncio.gather(*tasks, other) == [14, 14, 14, 14, 21]
    assert computation.calls == 2
    assert await work.share(computation.compute, 7, factor=2) == 14
    assert computation.calls == 3


async def test_a_failed_computation_frees_its_slot() -> None:
    work = SlowWork()
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            await work.share(divmod, 1, 0)


@pytest.mark.rule("rest-258", "rest-259", "rest-266")
def test_slow_requests_wait_for_their_turn_and_others_do_not(site: SyntheticSite) -> None:
    service, device, computation = site.service, site.new_device(), Computation()
    service.ingest(*site.read(device, TruePlace(6, 9), service.clock()))
    assert site.get_position(device)["position"] is not None

    async def occupy_all_slots() -> list[asyncio.Task[int]]:
        work = service.api.positions.slow_work
        return [asyncio.create_task(work.run(computation.compute, number)) for number in range(2)]

    occupying = service.run_in_loop(occupy_all_slots())
    paths = [
        *(f"{site.path}/floors/0/coverage", f"{site.path}/positions"),
        f"/api/v1/devices/bmac-{device}/positions",
    ]
    with ThreadPoolExecutor() as clients:
        answers = [clients.submit(get, service, path) for path in paths]
        try:
            for _ in range(10):
                assert site.get_position(device)["position"] is not None
                assert get(service, f"{site.path}/nearest", Floor=0, X=6, Y=9)["items"]
            assert not any(each.done() for each in answers)
        finally:
            computation.may_end.set()
        assert all(each.result() for each in answers)
    assert len(occupying) == computation.calls
