"""Two programs run the jobs of one database at the same moment: the laws hold as for one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.service.jobs.execution import downtime, execution_events, job_scheduler, outbox
from meshfleet.service.jobs.execution.queries import JobSpecCache
from tests.service.jobs.execution.invariants import Invariants
from tests.service.jobs.execution.random_events import random_job, run_until_finished
from tests.service.jobs.execution.simulated_devices import UpdateFate
from tests.service.jobs.execution.simulation import LEASE, NetworkConditions, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from meshfleet.service.jobs.execution.execution_events import RequestResult
    from meshfleet.service.jobs.execution.outbox import OutboxRequest

HANDS = 2


class TwoRunnerSimulation(Simulation):
    """A world in which all that a runner does is done by two of them, side by side."""

    def __init__(self, database: Database, seed: int, **size: int) -> None:
        self._said = [JobSpecCache() for _ in range(HANDS)]
        self._threads = ThreadPoolExecutor(HANDS)
        super().__init__(database, seed, **size)

    def close(self) -> None:
        self._threads.shutdown()

    def round(self) -> None:
        """As one runner does, but twice at the same time."""
        self._report()
        self._take_answers()
        self._both(self._work)
        letters = [letter for some in self._both(self._take) for letter in some]
        assert len({each.id for each in letters}) == len(letters), "two have taken the same letter"
        self._send(sorted(letters, key=lambda each: (each.job, each.device, each.step)))
        self.after_round()

    def _both(self, work: Callable[[int], Any]) -> list[Any]:
        return list(self._threads.map(work, range(HANDS)))

    def _work(self, hand: int) -> None:
        write, orders = self.database.write_now, self._said[hand]
        write(downtime.record_alive, self.now)
        left = self.database.read_now(outbox.list_abandoned_requests, self.now, 0)
        if left:
            write(execution_events.apply_results, orders, left, self.moment)
        write(execution_events.advance_due_executions, orders, self.moment)
        write(
            execution_events.apply_registry_news,
            orders,
            self.database.read_now(execution_events.list_devices_with_news),
            self.moment,
        )
        for job in self.database.read_now(job_scheduler.list_open_jobs, 0):
            for _ in range(100):
                if not write(job_scheduler.advance_job, orders, job, self.moment).has_more:
                    break

    def _take(self, _hand: int) -> list[OutboxRequest]:
        return self.database.write_now(outbox.lease_requests, 3, {}, until=self.now + LEASE).requests

    def _take_over(self, replies: list[RequestResult]) -> None:
        """Each takes over some, and some of them both."""
        self.results += [(self.now, each) for each in replies]
        shares = [replies[: len(replies) // 2 + 1], replies[len(replies) // 2 :]]
        self._both(
            lambda hand: self.database.write_now(
                execution_events.apply_results, self._said[hand], shares[hand], self.moment
            )
        )


@pytest.mark.parametrize("seed", [3])
def test_two_runners_do_what_one_would(postgresql_database: Database, seed: int) -> None:
    chance = Random(seed)  # noqa: S311 # no secret
    world = TwoRunnerSimulation(postgresql_database, seed, devices=4)
    laws = Invariants(world)
    world.network = NetworkConditions(lost=0.1, unanswered=0.1)
    for each in world.devices.values():
        each.fate = chance.choice([UpdateFate.FINE, UpdateFate.FINE, UpdateFate.FINE, *UpdateFate])
    try:
        for _ in range(2):
            world.create(random_job(chance))
            world.run(60)
            laws.check()
        world.kill(releases_leases=False)
        world.run(300)
        laws.check()
        run_until_finished(world)
        laws.check_end()
    finally:
        world.close()
        postgresql_database.close()
