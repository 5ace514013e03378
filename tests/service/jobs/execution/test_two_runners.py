"""Test of two concurrent runners on one database: the invariants hold as for one."""

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

RUNNERS = 2


class TwoRunnerSimulation(Simulation):
    """Simulation in which two runners work concurrently."""

    def __init__(self, database: Database, seed: int, **size: int) -> None:
        self._spec_caches = [JobSpecCache() for _ in range(RUNNERS)]
        self._threads = ThreadPoolExecutor(RUNNERS)
        super().__init__(database, seed, **size)

    def close(self) -> None:
        self._threads.shutdown()

    def round(self) -> None:
        """Run one round of both runners at the same time."""
        self._report()
        self._deliver()
        self._run_both(self._run_round)
        requests = [request for batch in self._run_both(self._lease_requests) for request in batch]
        assert len({each.id for each in requests}) == len(requests), "both runners leased the same request"
        self._send(sorted(requests, key=lambda each: (each.job, each.device, each.step)))
        self.after_round()

    def _run_both(self, work: Callable[[int], Any]) -> list[Any]:
        return list(self._threads.map(work, range(RUNNERS)))

    def _run_round(self, runner: int) -> None:
        write, spec_cache = self.database.write_now, self._spec_caches[runner]
        write(downtime.record_alive, self.now)
        abandoned = self.database.read_now(outbox.list_abandoned_requests, self.now, 0)
        if abandoned:
            write(execution_events.apply_results, spec_cache, abandoned, self.moment)
        write(execution_events.advance_due_executions, spec_cache, self.moment)
        write(
            execution_events.apply_registry_changes,
            spec_cache,
            self.database.read_now(execution_events.list_changed_devices),
            self.moment,
        )
        for job in self.database.read_now(job_scheduler.list_open_jobs, 0):
            for _ in range(100):
                if not write(job_scheduler.advance_job, spec_cache, job, self.moment).has_more:
                    break

    def _lease_requests(self, _runner: int) -> list[OutboxRequest]:
        return self.database.write_now(outbox.lease_requests, 3, {}, until=self.now + LEASE).requests

    def _process_results(self, results: list[RequestResult]) -> None:
        """Let each runner apply a part of the results, and both of them one."""
        self.results += [(self.now, each) for each in results]
        shares = [results[: len(results) // 2 + 1], results[len(results) // 2 :]]
        self._run_both(
            lambda runner: self.database.write_now(
                execution_events.apply_results, self._spec_caches[runner], shares[runner], self.moment
            )
        )


@pytest.mark.parametrize("seed", [3])
def test_two_concurrent_runners_keep_the_invariants(postgresql_database: Database, seed: int) -> None:
    rng = Random(seed)  # noqa: S311 # not used for secrets
    simulation = TwoRunnerSimulation(postgresql_database, seed, devices=4)
    invariants = Invariants(simulation)
    simulation.network = NetworkConditions(lost=0.1, unanswered=0.1)
    for each in simulation.devices.values():
        each.fate = rng.choice([UpdateFate.FINE, UpdateFate.FINE, UpdateFate.FINE, *UpdateFate])
    try:
        for _ in range(2):
            simulation.create(random_job(rng))
            simulation.run(60)
            invariants.check()
        simulation.kill(releases_leases=False)
        simulation.run(300)
        invariants.check()
        run_until_finished(simulation)
        invariants.check_end()
    finally:
        simulation.close()
        postgresql_database.close()
