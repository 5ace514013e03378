"""Random events of a simulation, by a seeded random generator."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import Conflict
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.job_requests import (
    Concurrency,
    Criterion,
    Gate,
    JobHealth,
    NewJob,
    Retry,
    Targets,
    Timeouts,
    Wave,
)
from meshfleet.service.jobs.execution import job_scheduler
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulated_devices import UpdateFate
from tests.service.jobs.execution.simulation import NetworkConditions, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

DAY = 24 * 3600


def random_job(rng: Random) -> NewJob:
    """Build a random job request."""
    return NewJob(
        name="all",
        firmware_id=firmware_id(rng.randrange(2), MODEL),
        targets=Targets(all=True),
        stage=rng.random() < 0.3,
        method=rng.choice([None, *UpdateMethod]),
        waves=rng.choice([(), (Wave(count=1),), (Wave(count=2), Wave(percent=60))]),
        gate=Gate(success_percent=rng.choice([0, 50]), soak_minutes=rng.choice([0, 3])),
        concurrency=Concurrency(per_job=rng.choice([None, 3]), per_gateway=rng.choice([None, 1, 2])),
        abort=rng.choice([(), (Criterion(percent=50),)]),
        retry=Retry(max=rng.randrange(4), backoff_seconds=rng.choice([0, 5, 60])),
        timeouts=Timeouts(queue_minutes=60, step_minutes=rng.choice([1, 10])),
        health=JobHealth(heartbeats=rng.randrange(3)),
        on_newer_job=rng.choice(["queue", "supersede", "reject"]),
    )


def run_random_events(
    simulation: Simulation, rng: Random, steps: int, after: Callable[[], None] = lambda: None
) -> None:
    """Create a job and apply random events, calling `after` after each step."""
    for each in simulation.devices.values():
        each.fate = rng.choice([UpdateFate.FINE, UpdateFate.FINE, *UpdateFate])
    for gateway in simulation.gateways.values():
        gateway.forgets = rng.random() < 0.3
    simulation.create(random_job(rng))
    for _ in range(steps):
        _apply_random_event(simulation, rng)
        simulation.run(rng.choice([1, 5, 20, 60, 300]))
        after()


def _apply_random_event(simulation: Simulation, rng: Random) -> None:
    number = rng.choice([*simulation.devices])
    match rng.randrange(9):
        case 0 if len(simulation.jobs) < 3:
            try:
                simulation.create(random_job(rng))
            except Conflict:
                return
        case 1:
            simulation.run_command(
                rng.choice(simulation.jobs), rng.choice(["pause", "resume", "cancel", "apply"])
            )
        case 2:
            simulation.network = NetworkConditions(*(rng.choice([0.0, 0.2, 0.5]) for _ in range(4)))
        case 3:
            simulation.set_connected(rng.choice([number, *simulation.gateways]), connected=rng.random() < 0.6)
        case 4:
            simulation.move(number, 3 - simulation.devices[number].gateway)
        case 5:
            simulation.kill(releases_leases=False)
        case 6:
            simulation.abort_transaction(rng.randrange(1, 7))
        case 7:
            simulation.stop_service(rng.choice([1, 400]))
        case _:
            simulation.devices[number].fate = rng.choice([*UpdateFate])


def run_until_finished(simulation: Simulation) -> None:
    """Run with a perfect network and all jobs applied and resumed, until every job has ended."""
    simulation.network = NetworkConditions()
    for number in simulation.gateways:
        simulation.set_connected(number, connected=True)
    for _ in range(20):
        open_jobs = simulation.database.read_now(job_scheduler.list_open_jobs, 0)
        if not open_jobs:
            break
        for job in open_jobs:
            simulation.run_command(job, "apply")
            simulation.run_command(job, "resume")
        simulation.run(
            DAY / 10,
            until=lambda: not simulation.database.read_now(job_scheduler.list_open_jobs, 0),
            rounds=6000,
        )
    simulation.run(120)  # the final abort requests
