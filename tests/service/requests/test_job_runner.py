"""What the runner of jobs does with requests that are on their way to a gateway."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.topics import TopicCodec
from meshfleet.rest import Concurrency, NewJob, Targets
from meshfleet.service.clock import SteadyClock
from meshfleet.service.jobs.execution.runner import JobRunner
from meshfleet.service.requests.rpc import RpcClient
from tests.eventually import eventually_async
from tests.service.jobs.execution.rows import MODEL, firmware_id
from tests.service.jobs.execution.simulation import Simulation
from tests.service.requests.scripted_gateway import connect_gateway, never_respond

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from sqlalchemy import Connection

    from tests.mqtt.broker.running_broker import RunningBroker
    from tests.service.requests.scripted_gateway import ScriptedGateway

pytestmark = pytest.mark.anyio


class RunnerHarness:
    """A runner whose gateway takes one request at a time and never answers."""

    def __init__(self, stage: RunningBroker, world: Simulation, third: ScriptedGateway) -> None:
        self.world = world
        self.third = third
        self.seconds = 0.0
        """How long the machine was suspended."""
        self.rpc = RpcClient(stage.broker, TopicCodec(stage.prefix), stage.clock, max_concurrent=1)
        steady = SteadyClock(lambda: world.now, lambda: self.seconds)
        self.runner = JobRunner(
            stage.database, self.rpc, steady, steady=steady, abandoned_check_interval=0.02
        )

    def query(self, text: str) -> list[object]:
        """Read the first column of a query."""

        def read(connection: Connection) -> list[object]:
            return [row[0] for row in connection.exec_driver_sql(text)]

        return self.world.database.read_now(read)

    async def wait_until(self, happened: Callable[[], bool]) -> None:
        """Look again and again."""
        await eventually_async(partial(asyncio.to_thread, happened), "what the runner does")


@asynccontextmanager
async def start_two_updates(stage: RunningBroker) -> AsyncIterator[RunnerHarness]:
    """Let two updates begin: the start of one has left, and that of the other waits for its turn."""
    world = await asyncio.to_thread(Simulation, stage.database, 1, gateways=1, devices=2)
    world.holds_requests = True
    order = NewJob(
        name="all",
        firmware_id=firmware_id(0, MODEL),
        targets=Targets(all=True),
        concurrency=Concurrency(per_gateway=None),
    )
    await asyncio.to_thread(world.create, order)
    await asyncio.to_thread(world.run, 1)
    async with connect_gateway(stage.port, never_respond, mac_from_int(1)) as third:
        made = RunnerHarness(stage, world, third)
        task = asyncio.create_task(made.runner.run())
        try:
            await made.wait_until(lambda: len(third.requests) == 1 and made.rpc.queued == 1)
            yield made
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.rule("firmware-43")
async def test_a_cancel_by_another_program_drops_starts_that_wait_for_their_turn(
    stage: RunningBroker,
) -> None:
    """The job has nothing to do for a while, so this program does not step it."""
    async with start_two_updates(stage) as made:
        await made.wait_until(lambda: bool(made.runner._idle_until))  # noqa: SLF001 # it is seen nowhere else
        await asyncio.to_thread(made.world.run_command, made.world.jobs[0], "cancel")
        states = "SELECT state FROM execution ORDER BY state"
        await made.wait_until(lambda: made.query(states) == ["CANCELED", "DISPATCHED"])
        assert made.rpc.queued == 0
        assert len(made.third.requests) == 1


@pytest.mark.rule("firmware-39")
async def test_a_suspension_of_the_machine_ends_no_request_that_is_on_its_way(stage: RunningBroker) -> None:
    """The lease of a request that another program has left behind ends meanwhile, too."""
    async with start_two_updates(stage) as made:
        outbox = "SELECT id FROM job_outbox ORDER BY id"
        ours = made.query(outbox)
        until = made.world.now + 60_000
        row = f"'left', job, 0, attempt, step, gateway, target, operation, identifier, value, {until}"
        add = f"INSERT INTO job_outbox SELECT {row} FROM job_outbox LIMIT 1"  # noqa: S608 # our own names
        await stage.database.write(lambda connection: connection.exec_driver_sql(add))
        made.seconds = 3600
        await made.wait_until(lambda: "left" not in made.query(outbox))
        assert made.query(outbox) == ours
        assert len(made.third.requests) == 1
        assert made.rpc.queued == 1
