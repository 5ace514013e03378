"""Jobs through the SDK: orders as the service takes them, and a fleet that is really updated."""

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
from meshfleet.errors.protocol import WireError
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
def shop(service: LiveService) -> JobEnvironment:
    return JobEnvironment(service)


# Orders


async def test_all_parts_of_an_order_reach_the_service(shop: JobEnvironment, fleet: Fleet) -> None:
    first, second, third = shop.devices(3)
    label = shop.label([second])
    job = await fleet.jobs.create(
        "Everything",
        shop.firmware(),
        devices=first.upper().replace("BMAC-", ""),
        labels=[label],
        filter={"ids": [third], "model_number": shop.model, "labels": []},
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
    given = (
        Gate(success_percent=90, soak_minutes=5, pause=True),
        Concurrency(per_job=10, per_gateway=None),
        Rate(per_minute=7),
        Criterion(percent=20, min_executed=3, action="CANCEL"),
        Retry(max=2, backoff_seconds=30),
        Timeouts(queue_minutes=60, step_minutes=5, total_minutes=90),
        JobHealth(heartbeats=5),
    )
    told = (job.gate, job.concurrency, job.rate, *job.abort, job.retry, job.timeouts, job.health)
    assert [each and asdict(each) for each in told] == [asdict(each) for each in given]
    assert job.on_newer_job == "supersede"


async def test_a_dry_run_tells_and_makes_nothing(shop: JobEnvironment, fleet: Fleet) -> None:
    device, newer = shop.device(), shop.device("9.0.0")
    told = await fleet.jobs.dry_run("Dry", shop.firmware(), devices=[device, newer])
    assert (told.targets, told.eligible, told.device_ids) == (2, 1, [device])
    assert [each.device_ids for each in told.refusals] == [[newer]]
    assert [each async for each in fleet.jobs.list(firmware=shop.firmware())] == []


async def test_a_job_is_listed_steered_and_made_again(shop: JobEnvironment, fleet: Fleet) -> None:
    device = shop.device()
    job = await fleet.jobs.create("Steered", shop.firmware(), devices=device, auto_apply=False)
    assert (await fleet.jobs.apply(job)).state is JobState.IN_PROGRESS
    assert (await fleet.jobs.pause(job.id)).state is JobState.PAUSED
    assert (await fleet.jobs.resume(job)).state is JobState.IN_PROGRESS
    assert (await fleet.jobs.cancel(job)).state is JobState.CANCELING
    with pytest.raises(Conflict):
        await fleet.jobs.retry(job)
    shop.set_execution(job.id, device, state="FAILED", reason="it broke", wave=0)
    shop.set_job(job.id, state="CANCELED", outcome="FAILED", finished_at=shop.now)
    assert [each.reason async for each in fleet.jobs.executions(job, states="FAILED")] == ["it broke"]
    assert (await fleet.jobs.execution(job, device)).state is ExecutionState.FAILED
    (failure,) = (await fleet.jobs.summary(job)).failures
    assert (failure.state, failure.count) == (ExecutionState.FAILED, 1)
    assert [each async for each in fleet.jobs.executions(job, reason_codes="NO_SUCH_CODE")] == []
    assert [each.device_id async for each in fleet.jobs.executions(job, devices=device)] == [device]
    assert [each async for each in fleet.jobs.executions(job, left_out=True)] == []
    assert [each.device_id async for each in fleet.jobs.executions(job, left_out=False)] == [device]
    again = await fleet.jobs.retry(job)
    assert again.parent_job_id == job.id
    mine = [each.id async for each in fleet.jobs.list(firmware=shop.firmware())]
    assert mine == [again.id, job.id]
    over = fleet.jobs.list(states=[JobState.CANCELED], firmware=shop.firmware())
    assert [each.id async for each in over] == [job.id]


async def test_orders_that_cannot_be_are_told_by_their_kind(shop: JobEnvironment, fleet: Fleet) -> None:
    draft = shop.firmware("1.0.0", state="draft")
    with pytest.raises(NotReleased):
        await fleet.jobs.create("Draft", draft, devices=shop.device())
    with pytest.raises(WireError, match="everything=True"):
        await fleet.jobs.create("Nobody", shop.firmware())
    with pytest.raises(WireError, match="method"):
        await fleet.jobs.create("Method", shop.firmware(), everything=True, method="carrier pigeon")  # type: ignore[arg-type] # wrong on purpose
    misspelt: dict[str, Any] = {"device": "c0ffee000001"}
    with pytest.raises(TypeError, match="device"):
        await fleet.jobs.create("Misspelt", shop.firmware(), **misspelt)
    with pytest.raises(NotFound):
        await fleet.jobs.show("job-999999")


# Watching


async def test_a_job_is_watched_until_it_is_over(shop: JobEnvironment, fleet: Fleet) -> None:
    job = await fleet.jobs.create("Watched", shop.firmware(), devices=shop.device())
    seen = []
    async with aclosing(fleet.jobs.watch(job)) as changes:
        async for found in changes:
            seen.append(found.state)
            if found.state is JobState.IN_PROGRESS:
                await fleet.jobs.pause(job)
            elif found.state is JobState.PAUSED:
                shop.set_job(job.id, state="COMPLETED", outcome="NONE", finished_at=shop.now)
    assert seen == [JobState.IN_PROGRESS, JobState.PAUSED, JobState.COMPLETED]


async def test_a_job_that_is_over_is_told_once(shop: JobEnvironment, fleet: Fleet) -> None:
    job = await fleet.jobs.create("Over", shop.firmware(), devices=shop.device())
    shop.set_job(job.id, state="COMPLETED", outcome="NONE", finished_at=shop.now)
    assert [each.state async for each in fleet.jobs.watch(job)] == [JobState.COMPLETED]


async def test_where_there_are_no_live_events_a_job_is_asked_for(
    shop: JobEnvironment, fleet: Fleet, service: LiveService
) -> None:
    job = await fleet.jobs.create("Polled", shop.firmware(), devices=shop.device())
    seen: list[JobState] = []
    async with listening(fleet, service, MAX_SUBSCRIBERS_PER_ACCOUNT) as others:
        async for found in fleet.jobs.watch(job):
            if not seen:
                shop.set_job(job.id, state="COMPLETED", outcome="NONE", finished_at=shop.now)
            seen.append(found.state)
            assert service.subscribers() == others
    assert seen == [JobState.IN_PROGRESS, JobState.COMPLETED]


@asynccontextmanager
async def listening(fleet: Fleet, service: LiveService, times: int) -> AsyncIterator[set[LiveSubscriber]]:
    """Listen to live events so many times, and tell who listens."""

    async def listen() -> None:
        async with aclosing(fleet.live()) as events:
            async for _ in events:
                pass

    await eventually_async(lambda: not service.subscribers(), "those of other tests left")
    listeners = [asyncio.create_task(listen()) for _ in range(times)]
    try:
        await eventually_async(lambda: len(service.subscribers()) == times)
        yield service.subscribers()
    finally:
        for each in listeners:
            each.cancel()
        await asyncio.wait(listeners)


# A fleet


_versions = count(1)
"""Whichever test comes first: an older version would be left out."""


@pytest.fixture(scope="module")
def place() -> Iterator[RunningFleet]:
    """A service with a gateway; two minutes of its devices take a second."""
    with running_fleet(gateways=1, devices=10, speed=120) as running:
        _wait_until_known(running)
        yield running


def _wait_until_known(place: RunningFleet) -> None:
    """Until all devices have told what they are."""
    with blocking.Fleet(place.url, user=place.user, password=place.password) as fleet:
        eventually(lambda: all(each.model_number != "0000" for each in fleet.devices.list()))


@pytest.fixture
async def alive(place: RunningFleet) -> AsyncIterator[Fleet]:
    async with Fleet(place.url, user=place.user, password=place.password) as fleet:
        yield fleet


def _image(version: str) -> io.BytesIO:
    return io.BytesIO(
        build_package(bytes(20_000), model_number=ModelNumber(MODEL), version=Version.parse(version))
    )


@pytest.mark.rule("rest-146")
async def test_a_fleet_is_updated_and_every_step_of_it_is_told(alive: Fleet) -> None:
    version = f"9.0.{next(_versions)}"
    record = await alive.firmware.upload(
        _image(version), model_number=MODEL, version=version, file_name="a.zip"
    )
    await alive.firmware.release(record)
    events, last = {}, None
    async with aclosing(alive.live(["job", "execution"])) as live:
        listening = asyncio.ensure_future(anext(live))
        job = await alive.jobs.create(
            "Update",
            record,
            filter={"model_number": MODEL},
            health=JobHealth(heartbeats=1),
            concurrency=Concurrency(per_gateway=None),
        )
        event = await listening
        while not (isinstance(event.data, Job) and event.data.outcome):
            if isinstance(event.data, LiveExecution):
                assert event.data.job_id == job.id
                events[event.data.device_id] = event.data.state
            event = await anext(live)
        last = event.data
    assert last == await alive.jobs.show(job)
    assert (last.state, last.outcome, last.progress) == (JobState.COMPLETED, Outcome.SUCCEEDED, 100)
    assert set(events.values()) == {ExecutionState.SUCCEEDED}
    assert len(events) == last.counts[ExecutionState.SUCCEEDED] > 0
    for device in events:
        assert (await alive.devices.show(device)).firmware_version == version
        steps = (await alive.jobs.execution(job, device)).transitions
        assert steps[-1].to is ExecutionState.SUCCEEDED


def test_a_program_without_an_event_loop_does_the_same(place: RunningFleet) -> None:
    until, version = time.monotonic() + TEST_TIMEOUT, f"9.0.{next(_versions)}"
    with blocking.Fleet(place.url, user=place.user, password=place.password) as fleet:
        record = fleet.firmware.upload(
            _image(version), model_number=MODEL, version=version, file_name="b.zip"
        )
        fleet.firmware.release(record)
        assert b"".join(fleet.firmware.download(record)) == _image(version).getvalue()
        job = fleet.jobs.create(
            "Blocking", record, filter={"model_number": MODEL}, health=JobHealth(heartbeats=0)
        )
        for found in fleet.jobs.watch(job):
            assert time.monotonic() < until, found
        assert found.outcome is Outcome.SUCCEEDED
        assert {each.state for each in fleet.jobs.executions(job)} == {ExecutionState.SUCCEEDED}
