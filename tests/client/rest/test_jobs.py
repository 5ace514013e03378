"""Jobs through the SDK: requests as the service accepts them, and a real update of emulated devices."""

from __future__ import annotations

import asyncio
import io
import time
from contextlib import aclosing, asynccontextmanager
from itertools import count
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import asdict

from meshfleet.client import (
    Concurrency,
    Criterion,
    ExecutionState,
    Fleet,
    Gate,
    Job,
    JobHealth,
    JobState,
    LiveExecution,
    Outcome,
    Rate,
    Retry,
    Timeouts,
    Wave,
    blocking,
)
from meshfleet.errors import Conflict, NotFound, NotReleased
from meshfleet.errors.protocol import MalformedInput
from meshfleet.protocol.firmware_image import build_package
from meshfleet.protocol.ids import ModelNumber, Version
from meshfleet.service.live.live_events import MAX_SUBSCRIBERS_PER_ACCOUNT
from meshfleet.testing import running_fleet
from tests.cli.programs import TEST_TIMEOUT
from tests.eventually import eventually, eventually_async
from tests.service.jobs.job_environment import JobEnvironment

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from meshfleet.service.live.subscriber import LiveSubscriber
    from meshfleet.testing import RunningFleet
    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio

MODEL = "0018"


@pytest.fixture
def environment(service: LiveService) -> JobEnvironment:
    return JobEnvironment(service)


# New jobs


async def test_all_options_of_a_job_reach_the_service(environment: JobEnvironment, fleet: Fleet) -> None:
    first, second, third = environment.devices(3)
    label = environment.label([second])
    job = await fleet.jobs.create(
        "Everything",
        environment.firmware(),
        devices=first.upper().replace("BMAC-", ""),
        labels=[label],
        filter={"ids": [third], "model_number": environment.model, "labels": []},
        method="download",
        auto_apply=False,
        start_at="2030-01-01T00:00:00+01:00",
        deadline="2030-01-02T00:00:00Z",
        waves=[Wave(name="canary", count=1), Wave(percent=50)],
        gate=Gate(success_percent=90, soak_minutes=5, pause=True),
        concurrency=Concurrency(per_job=10, per_gateway=None),
        rate=Rate(per_minute=7),
        abort=[Criterion(percent=20, min_executed=3, action="CANCEL")],
        retry=Retry(max=2, backoff_seconds=30),
        timeouts=Timeouts(queue_minutes=60, step_minutes=5, total_minutes=90),
        health=JobHealth(heartbeats=5),
        on_newer_job="supersede",
    )
    assert sorted([each.device_id async for each in fleet.jobs.executions(job)]) == [first, second, third]
    assert job.state is JobState.CREATED
    assert (job.start_at, job.deadline) == ("2029-12-31T23:00:00.000Z", "2030-01-02T00:00:00.000Z")
    assert [wave.size for wave in job.wave_states] == [1, 1, 1]
    requested = (
        Gate(success_percent=90, soak_minutes=5, pause=True),
        Concurrency(per_job=10, per_gateway=None),
        Rate(per_minute=7),
        Criterion(percent=20, min_executed=3, action="CANCEL"),
        Retry(max=2, backoff_seconds=30),
        Timeouts(queue_minutes=60, step_minutes=5, total_minutes=90),
        JobHealth(heartbeats=5),
    )
    returned = (job.gate, job.concurrency, job.rate, *job.abort, job.retry, job.timeouts, job.health)
    assert [each and asdict(each) for each in returned] == [asdict(each) for each in requested]
    assert job.on_newer_job == "supersede"


async def test_a_dry_run_returns_a_plan_and_creates_no_job(environment: JobEnvironment, fleet: Fleet) -> None:
    device, newer = environment.device(), environment.device("9.0.0")
    plan = await fleet.jobs.dry_run("Dry", environment.firmware(), devices=[device, newer])
    assert (plan.targets, plan.eligible, plan.device_ids) == (2, 1, [device])
    assert [each.device_ids for each in plan.refusals] == [[newer]]
    assert [each async for each in fleet.jobs.list(firmware=environment.firmware())] == []


async def test_a_job_can_be_listed_controlled_and_retried(environment: JobEnvironment, fleet: Fleet) -> None:
    device = environment.device()
    job = await fleet.jobs.create("Steered", environment.firmware(), devices=device, auto_apply=False)
    assert (await fleet.jobs.apply(job)).state is JobState.IN_PROGRESS
    assert (await fleet.jobs.pause(job.id)).state is JobState.PAUSED
    assert (await fleet.jobs.resume(job)).state is JobState.IN_PROGRESS
    assert (await fleet.jobs.cancel(job)).state is JobState.CANCELING
    with pytest.raises(Conflict):
        await fleet.jobs.retry(job)
    environment.set_execution(job.id, device, state="FAILED", reason="it broke", wave=0)
    environment.set_job(job.id, state="CANCELED", outcome="FAILED", finished_at=environment.now)
    assert [each.reason async for each in fleet.jobs.executions(job, states="FAILED")] == ["it broke"]
    assert (await fleet.jobs.execution(job, device)).state is ExecutionState.FAILED
    (failure,) = (await fleet.jobs.summary(job)).failures
    assert (failure.state, failure.count) == (ExecutionState.FAILED, 1)
    assert [each async for each in fleet.jobs.executions(job, reason_codes="NO_SUCH_CODE")] == []
    assert [each.device_id async for each in fleet.jobs.executions(job, devices=device)] == [device]
    assert [each async for each in fleet.jobs.executions(job, left_out=True)] == []
    assert [each.device_id async for each in fleet.jobs.executions(job, left_out=False)] == [device]
    retried = await fleet.jobs.retry(job)
    assert retried.parent_job_id == job.id
    job_ids = [each.id async for each in fleet.jobs.list(firmware=environment.firmware())]
    assert job_ids == [retried.id, job.id]
    canceled = fleet.jobs.list(states=[JobState.CANCELED], firmware=environment.firmware())
    assert [each.id async for each in canceled] == [job.id]


async def test_invalid_jobs_are_refused_with_specific_errors(
    environment: JobEnvironment, fleet: Fleet
) -> None:
    draft = environment.firmware("1.0.0", state="draft")
    with pytest.raises(NotReleased):
        await fleet.jobs.create("Draft", draft, devices=environment.device())
    with pytest.raises(MalformedInput, match="everything=True"):
        await fleet.jobs.create("No targets", environment.firmware())
    with pytest.raises(MalformedInput, match="method"):
        await fleet.jobs.create("Method", environment.firmware(), everything=True, method="carrier pigeon")  # type: ignore[arg-type] # wrong on purpose
    misspelt: dict[str, Any] = {"device": "c0ffee000001"}
    with pytest.raises(TypeError, match="device"):
        await fleet.jobs.create("Misspelt", environment.firmware(), **misspelt)
    with pytest.raises(NotFound):
        await fleet.jobs.show("job-999999")


# Watching


async def test_a_job_is_watched_until_it_is_finished(environment: JobEnvironment, fleet: Fleet) -> None:
    job = await fleet.jobs.create("Watched", environment.firmware(), devices=environment.device())
    states = []
    async with aclosing(fleet.jobs.watch(job)) as changes:
        async for current in changes:
            states.append(current.state)
            if current.state is JobState.IN_PROGRESS:
                await fleet.jobs.pause(job)
            elif current.state is JobState.PAUSED:
                environment.set_job(job.id, state="COMPLETED", outcome="NONE", finished_at=environment.now)
    assert states == [JobState.IN_PROGRESS, JobState.PAUSED, JobState.COMPLETED]


async def test_watching_a_finished_job_yields_it_once(environment: JobEnvironment, fleet: Fleet) -> None:
    job = await fleet.jobs.create("Over", environment.firmware(), devices=environment.device())
    environment.set_job(job.id, state="COMPLETED", outcome="NONE", finished_at=environment.now)
    assert [each.state async for each in fleet.jobs.watch(job)] == [JobState.COMPLETED]


async def test_a_job_is_polled_if_there_are_no_live_events(
    environment: JobEnvironment, fleet: Fleet, service: LiveService
) -> None:
    job = await fleet.jobs.create("Polled", environment.firmware(), devices=environment.device())
    states: list[JobState] = []
    async with occupy_subscribers(fleet, service, MAX_SUBSCRIBERS_PER_ACCOUNT) as others:
        async for current in fleet.jobs.watch(job):
            if not states:
                environment.set_job(job.id, state="COMPLETED", outcome="NONE", finished_at=environment.now)
            states.append(current.state)
            assert service.subscribers() == others
    assert states == [JobState.IN_PROGRESS, JobState.COMPLETED]


@asynccontextmanager
async def occupy_subscribers(
    fleet: Fleet, service: LiveService, count: int
) -> AsyncIterator[set[LiveSubscriber]]:
    """Open this number of live event streams, and yield the subscribers of the service."""

    async def receive_events() -> None:
        async with aclosing(fleet.live()) as events:
            async for _ in events:
                pass

    await eventually_async(lambda: not service.subscribers(), "the subscribers of other tests disconnect")
    tasks = [asyncio.create_task(receive_events()) for _ in range(count)]
    try:
        await eventually_async(lambda: len(service.subscribers()) == count)
        yield service.subscribers()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


# An emulated fleet


_versions = count(1)
"""Shared by the tests of this module: a device with a newer version would be skipped."""


@pytest.fixture(scope="module")
def running_service() -> Iterator[RunningFleet]:
    """Run a service with one gateway; two minutes of simulated time take a second."""
    with running_fleet(gateways=1, devices=10, speed=120) as running:
        _wait_until_registered(running)
        yield running


def _wait_until_registered(running: RunningFleet) -> None:
    """Wait until all devices have reported their models."""
    with blocking.Fleet(running.url, user=running.user, password=running.password) as fleet:
        eventually(lambda: all(each.model_number != "0000" for each in fleet.devices.list()))


@pytest.fixture
async def live_fleet(running_service: RunningFleet) -> AsyncIterator[Fleet]:
    async with Fleet(
        running_service.url, user=running_service.user, password=running_service.password
    ) as fleet:
        yield fleet


def _build_image(version: str) -> io.BytesIO:
    return io.BytesIO(
        build_package(bytes(20_000), model_number=ModelNumber(MODEL), version=Version.parse(version))
    )


@pytest.mark.rule("rest-146")
async def test_an_update_of_a_fleet_sends_events_for_all_its_steps(live_fleet: Fleet) -> None:
    version = f"9.0.{next(_versions)}"
    record = await live_fleet.firmware.upload(
        _build_image(version), model_number=MODEL, version=version, file_name="a.zip"
    )
    await live_fleet.firmware.release(record)
    events, last = {}, None
    async with aclosing(live_fleet.live(["job", "execution"])) as live:
        first_event = asyncio.ensure_future(anext(live))
        job = await live_fleet.jobs.create(
            "Update",
            record,
            filter={"model_number": MODEL},
            health=JobHealth(heartbeats=1),
            concurrency=Concurrency(per_gateway=None),
        )
        event = await first_event
        while not (isinstance(event.data, Job) and event.data.outcome):
            if isinstance(event.data, LiveExecution):
                assert event.data.job_id == job.id
                events[event.data.device_id] = event.data.state
            event = await anext(live)
        last = event.data
    assert last == await live_fleet.jobs.show(job)
    assert (last.state, last.outcome, last.progress) == (JobState.COMPLETED, Outcome.SUCCEEDED, 100)
    assert set(events.values()) == {ExecutionState.SUCCEEDED}
    assert len(events) == last.counts[ExecutionState.SUCCEEDED] > 0
    for device in events:
        assert (await live_fleet.devices.show(device)).firmware_version == version
        steps = (await live_fleet.jobs.execution(job, device)).transitions
        assert steps[-1].to is ExecutionState.SUCCEEDED


def test_a_program_without_an_event_loop_can_update_a_fleet(running_service: RunningFleet) -> None:
    deadline, version = time.monotonic() + TEST_TIMEOUT, f"9.0.{next(_versions)}"
    with blocking.Fleet(
        running_service.url, user=running_service.user, password=running_service.password
    ) as fleet:
        record = fleet.firmware.upload(
            _build_image(version), model_number=MODEL, version=version, file_name="b.zip"
        )
        fleet.firmware.release(record)
        assert b"".join(fleet.firmware.download(record)) == _build_image(version).getvalue()
        job = fleet.jobs.create(
            "Blocking", record, filter={"model_number": MODEL}, health=JobHealth(heartbeats=0)
        )
        for current in fleet.jobs.watch(job):
            assert time.monotonic() < deadline, current
        assert current.outcome is Outcome.SUCCEEDED
        assert {each.state for each in fleet.jobs.executions(job)} == {ExecutionState.SUCCEEDED}
