"""What the runner of jobs does with requests that are on their way to a gateway."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.clock import Steady
from meshfleet.service.jobs.engine.runner import Runner
from meshfleet.service.requests.asking import Asking
from meshfleet.wire.ids import number_mac
from meshfleet.wire.rest import Concurrency, NewJob, Targets
from meshfleet.wire.topics import Topics
from tests.eventually import eventually_async
from tests.service.jobs.engine.rows import MODEL, firmware_id
from tests.service.jobs.engine.world import World
from tests.service.requests.third_party import gateway, nothing

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sqlalchemy import Connection

    from tests.broker.stage import Stage
    from tests.service.requests.third_party import Gateway

pytestmark = pytest.mark.anyio


class Running:
    """A runner whose gateway takes one request at a time and never answers."""

    def __init__(self, stage: Stage, world: World, third: Gateway) -> None:
        self.world = world
        self.third = third
        self.seconds = 0.0
        """How long the machine was suspended."""
        self.asking = Asking(stage.broker, Topics(stage.prefix), stage.clock, at_once=1)
        steady = Steady(lambda: world.now, lambda: self.seconds)
        self.runner = Runner(stage.database, self.asking, steady, steady=steady, pause=0.02)

    def query(self, text: str) -> list[object]:
        """Read the first column of a query."""

        def read(connection: Connection) -> list[object]:
            return [row[0] for row in connection.exec_driver_sql(text)]

        return self.world.database.read_now(read)

    async def wait_until(self, happened: Callable[[], bool]) -> None:
        """Look again and again."""
        await eventually_async(partial(asyncio.to_thread, happened), "what the runner does")


@asynccontextmanager
async def running(stage: Stage) -> AsyncIterator[Running]:
    """Let two updates begin: the start of one has left, and that of the other waits for its turn."""
    world = await asyncio.to_thread(World, stage.database, 1, gateways=1, devices=2)
    world.is_held = True
    order = NewJob(
        name="all",
        firmware_id=firmware_id(0, MODEL),
        targets=Targets(all=True),
        concurrency=Concurrency(per_gateway=None),
    )
    await asyncio.to_thread(world.create, order)
    await asyncio.to_thread(world.run, 1)
    async with gateway(stage.port, nothing, number_mac(1)) as third:
        made = Running(stage, world, third)
        task = asyncio.create_task(made.runner.run())
        try:
            await made.wait_until(lambda: len(third.asked) == 1 and made.asking.queued == 1)
            yield made
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.rule("firmware-43")
async def test_a_cancel_by_another_program_drops_starts_that_wait_for_their_turn(stage: Stage) -> None:
    """The job has nothing to do for a while, so this program does not step it."""
    async with running(stage) as made:
        await made.wait_until(lambda: bool(made.runner._rests))  # noqa: SLF001 # it is seen nowhere else
        await asyncio.to_thread(made.world.steer, made.world.jobs[0], "cancel")
        states = "SELECT state FROM execution ORDER BY state"
        await made.wait_until(lambda: made.query(states) == ["CANCELED", "DISPATCHED"])
        assert made.asking.queued == 0
        assert len(made.third.asked) == 1


@pytest.mark.rule("firmware-39")
async def test_a_suspension_of_the_machine_ends_no_request_that_is_on_its_way(stage: Stage) -> None:
    """The lease of a request that another program has left behind ends meanwhile, too."""
    async with running(stage) as made:
        outbox = "SELECT id FROM job_outbox ORDER BY id"
        ours = made.query(outbox)
        until = made.world.now + 60_000
        row = f"'left', job, 0, attempt, step, gateway, target, operation, identifier, value, {until}"
        add = f"INSERT INTO job_outbox SELECT {row} FROM job_outbox LIMIT 1"  # noqa: S608 # our own names
        await stage.database.write(lambda connection: connection.exec_driver_sql(add))
        made.seconds = 3600
        await made.wait_until(lambda: "left" not in made.query(outbox))
        assert made.query(outbox) == ours
        assert len(made.third.asked) == 1
        assert made.asking.queued == 1
