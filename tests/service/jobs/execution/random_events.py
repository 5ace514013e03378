"""What may happen in a world, one thing after the other, by dice."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import Conflict
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import Concurrency, Criterion, Gate, JobHealth, NewJob, Retry, Targets, Timeouts, Wave
from meshfleet.service.jobs.execution import job_scheduler
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulated_devices import UpdateFate
from tests.service.jobs.execution.simulation import NetworkConditions, Simulation

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

DAY = 24 * 3600


def random_job(chance: Random) -> NewJob:
    """Any order."""
    return NewJob(
        name="all",
        firmware_id=firmware_id(chance.randrange(2), MODEL),
        targets=Targets(all=True),
        stage=chance.random() < 0.3,
        method=chance.choice([None, *UpdateMethod]),
        waves=chance.choice([(), (Wave(count=1),), (Wave(count=2), Wave(percent=60))]),
        gate=Gate(success_percent=chance.choice([0, 50]), soak_minutes=chance.choice([0, 3])),
        concurrency=Concurrency(per_job=chance.choice([None, 3]), per_gateway=chance.choice([None, 1, 2])),
        abort=chance.choice([(), (Criterion(percent=50),)]),
        retry=Retry(max=chance.randrange(4), backoff_seconds=chance.choice([0, 5, 60])),
        timeouts=Timeouts(queue_minutes=60, step_minutes=chance.choice([1, 10])),
        health=JobHealth(heartbeats=chance.randrange(3)),
        on_newer_job=chance.choice(["queue", "supersede", "reject"]),
    )


def run_random_events(
    world: Simulation, chance: Random, steps: int, after: Callable[[], None] = lambda: None
) -> None:
    """Let things happen."""
    for each in world.devices.values():
        each.fate = chance.choice([UpdateFate.FINE, UpdateFate.FINE, *UpdateFate])
    for gateway in world.gateways.values():
        gateway.forgets = chance.random() < 0.3
    world.create(random_job(chance))
    for _ in range(steps):
        _apply_random_event(world, chance)
        world.run(chance.choice([1, 5, 20, 60, 300]))
        after()


def _apply_random_event(world: Simulation, chance: Random) -> None:
    number = chance.choice([*world.devices])
    match chance.randrange(9):
        case 0 if len(world.jobs) < 3:
            try:
                world.create(random_job(chance))
            except Conflict:
                return
        case 1:
            world.run_command(
                chance.choice(world.jobs), chance.choice(["pause", "resume", "cancel", "apply"])
            )
        case 2:
            world.network = NetworkConditions(*(chance.choice([0.0, 0.2, 0.5]) for _ in range(4)))
        case 3:
            world.set_connected(chance.choice([number, *world.gateways]), connected=chance.random() < 0.6)
        case 4:
            world.move(number, 3 - world.devices[number].gateway)
        case 5:
            world.kill(releases_leases=False)
        case 6:
            world.abort_transaction(chance.randrange(1, 7))
        case 7:
            world.stop_service(chance.choice([1, 400]))
        case _:
            world.devices[number].fate = chance.choice([*UpdateFate])


def run_until_finished(world: Simulation) -> None:
    """In good weather, and with people who let all go on, everything ends."""
    world.network = NetworkConditions()
    for number in world.gateways:
        world.set_connected(number, connected=True)
    for _ in range(20):
        open_ = world.database.read_now(job_scheduler.list_open_jobs, 0)
        if not open_:
            break
        for job in open_:
            world.run_command(job, "apply")
            world.run_command(job, "resume")
        world.run(
            DAY / 10, until=lambda: not world.database.read_now(job_scheduler.list_open_jobs, 0), rounds=6000
        )
    world.run(120)  # the last words
