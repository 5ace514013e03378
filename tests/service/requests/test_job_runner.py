"""How the job runner handles requests that are queued or sent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.topics import TopicCodec
from meshfleet.rest.job_requests import Concurrency, NewJob, Targets
from meshfleet.service.clock import MonotonicClock
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
    """Job runner with a gateway that gets one request at a time and never responds."""

    def __init__(self, broker: RunningBroker, simulation: Simulation, gateway: ScriptedGateway) -> None:
        self.simulation = simulation
        self.gateway = gateway
        self.seconds = 0.0
        """Seconds for which the machine was suspended."""
        self.rpc = RpcClient(broker.broker, TopicCodec(broker.prefix), broker.clock, max_concurrent=1)
        monotonic = MonotonicClock(lambda: simulation.now, lambda: self.seconds)
        self.runner = JobRunner(
            broker.database, self.rpc, monotonic, monotonic=monotonic, abandoned_check_interval=0.02
        )

    def query(self, text: str) -> list[object]:
        """Return the first column of a query."""

        def read(connection: Connection) -> list[object]:
            return [row[0] for row in connection.exec_driver_sql(text)]

        return self.simulation.database.read_now(read)

    async def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait until a condition is true."""
        await eventually_async(partial(asyncio.to_thread, condition), "the condition of the test is true")


@asynccontextmanager
async def start_two_updates(broker: RunningBroker) -> AsyncIterator[RunnerHarness]:
    """Start two updates: the start request of one is sent, and that of the other is queued."""
    simulation = await asyncio.to_thread(Simulation, broker.database, 1, gateways=1, devices=2)
    simulation.holds_requests = True
    new_job = NewJob(
        name="all",
        firmware_id=firmware_id(0, MODEL),
        targets=Targets(all=True),
        concurrency=Concurrency(per_gateway=None),
    )
    await asyncio.to_thread(simulation.create, new_job)
    await asyncio.to_thread(simulation.run, 1)
    async with connect_gateway(broker.port, never_respond, mac_from_int(1)) as gateway:
        harness = RunnerHarness(broker, simulation, gateway)
        task = asyncio.create_task(harness.runner.run())
        try:
            await harness.wait_until(lambda: len(gateway.requests) == 1 and harness.rpc.queued == 1)
            yield harness
        finally:
            task.cancel()
            await asyncio.wait([task])


@pytest.mark.rule("firmware-43")
async def test_a_cancel_by_another_process_drops_queued_starts(
    broker: RunningBroker,
) -> None:
    """Cancel a job that is idle, so that this process does not step it."""
    async with start_two_updates(broker) as harness:
        await harness.wait_until(lambda: bool(harness.runner._idle_until))  # noqa: SLF001 # not visible otherwise
        await asyncio.to_thread(harness.simulation.run_command, harness.simulation.jobs[0], "cancel")
        states = "SELECT state FROM execution ORDER BY state"
        await harness.wait_until(lambda: harness.query(states) == ["CANCELED", "DISPATCHED"])
        assert harness.rpc.queued == 0
        assert len(harness.gateway.requests) == 1


@pytest.mark.rule("firmware-39")
async def test_suspending_the_machine_does_not_abandon_requests_in_progress(broker: RunningBroker) -> None:
    """Suspend the machine until the lease of a request that another process left has expired."""
    async with start_two_updates(broker) as harness:
        outbox = "SELECT id FROM job_outbox ORDER BY id"
        own_requests = harness.query(outbox)
        lease_until = harness.simulation.now + 60_000
        row = f"'left', job, 0, attempt, step, gateway, target, operation, identifier, value, {lease_until}"
        statement = f"INSERT INTO job_outbox SELECT {row} FROM job_outbox LIMIT 1"  # noqa: S608 # constant column names
        await broker.database.write(lambda connection: connection.exec_driver_sql(statement))
        harness.seconds = 3600
        await harness.wait_until(lambda: "left" not in harness.query(outbox))
        assert harness.query(outbox) == own_requests
        assert len(harness.gateway.requests) == 1
        assert harness.rpc.queued == 1
