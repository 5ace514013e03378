"""Many executions end at once: whoever listens hears of each, or that there was more than can be told."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.link import Address, Options
from meshfleet.service.clock import Steady
from meshfleet.service.jobs.engine.runner import Runner
from meshfleet.service.mqtt.outside import Outside
from meshfleet.service.requests.asking import Asking
from meshfleet.wire.topics import Topics
from tests.servers import free_port
from tests.service.jobs.shop import Shop
from tests.service.mqtt.shelf import Shelf

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.live.stage import Stage, Stream

MORE_THAN_CAN_BE_TOLD = 501


@contextmanager
def jobs_run(stage: Stage) -> Iterator[None]:
    """Run jobs in the service. Its broker is away: nobody has to be asked for anything here."""

    async def begin() -> asyncio.Task[None]:
        nowhere = Address(host="127.0.0.1", port=free_port())
        carrier = Outside(nowhere, "jobs", prefix="", consumer=Shelf(stage.database), options=Options())
        asking = Asking(carrier, Topics(), stage.clock)
        runner = Runner(
            stage.database,
            asking,
            stage.clock,
            steady=Steady(stage.clock),
            tell=stage.api.live.jobs.changed,
        )
        stage.api.bell.hear(runner.wake)
        return asyncio.create_task(runner.run())

    async def end() -> None:
        running.cancel()
        await asyncio.wait([running])

    running = stage.do(begin())
    try:
        yield
    finally:
        stage.do(end())


def canceled(stream: Stream, job: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A job as it is told when it is canceled, and all that was told of its executions until then."""
    executions = []
    for _ in range(100):
        event = stream.next()
        if event["type"] == "execution":
            executions.append(event["data"])
        elif event["type"] == "job" and (event["data"]["id"], event["data"]["state"]) == (job, "CANCELED"):
            return event["data"], executions
    raise AssertionError("it is not told")


@pytest.mark.rule("rest-146")
def test_a_canceled_job_is_told_with_each_of_its_executions(on_both: Stage) -> None:
    shop = Shop(on_both)
    devices = shop.devices(3)
    job = shop.make(shop.firmware(), devices, autoApply=False)["id"]
    with jobs_run(on_both), on_both.stream(Jobs=job) as stream:
        shop.do("cancel", job)
        told, executions = canceled(stream, job)
        assert told == shop.show(job)
        assert (told["counts"]["CANCELED"], told["counts"]["QUEUED"]) == (3, 0)
        ends = {each["deviceId"]: (each["jobId"], each["state"]) for each in executions}
        assert ends == dict.fromkeys(devices, (job, "CANCELED"))


@pytest.mark.rule("rest-156")
def test_of_too_many_that_end_at_once_the_job_is_told_and_that_there_were_more(stage: Stage) -> None:
    shop = Shop(stage)
    job = shop.make(shop.firmware(), shop.devices(MORE_THAN_CAN_BE_TOLD), autoApply=False)["id"]
    with (
        jobs_run(stage),
        stage.stream(Types="job") as of_jobs,
        stage.stream(Types="execution") as of_executions,
    ):
        shop.do("cancel", job)
        told, _ = canceled(of_jobs, job)
        assert told["counts"]["CANCELED"] == MORE_THAN_CAN_BE_TOLD
        assert of_executions.next()["type"] == "resync"
        assert set(shop.states(job).values()) == {"CANCELED"}


@pytest.mark.rule("rest-146")
def test_devices_that_a_newer_job_takes_over_are_told(on_both: Stage) -> None:
    shop = Shop(on_both)
    devices = shop.devices(3)
    older = shop.make(shop.firmware(), devices, onNewerJob="supersede")["id"]
    with on_both.stream(Jobs=older, Types="execution") as stream:
        shop.make(shop.firmware("9.0.0"), devices[:2])
        told = [stream.next()["data"] for _ in range(2)]
    assert {(each["deviceId"], each["state"]) for each in told} == {
        (each, "SUPERSEDED") for each in devices[:2]
    }
