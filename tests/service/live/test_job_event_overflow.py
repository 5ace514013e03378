"""Many executions end at once: whoever listens hears of each, or that there was more than can be told."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.mqtt.client import BrokerAddress, MqttOptions
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.clock import SteadyClock
from meshfleet.service.external_broker.client import ExternalBrokerClient
from meshfleet.service.jobs.execution.runner import JobRunner
from meshfleet.service.requests.rpc import RpcClient
from tests.servers import free_port
from tests.service.external_broker.storing_consumer import StoringConsumer
from tests.service.jobs.job_environment import JobEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.live.live_service import LiveService, SseClient

MORE_THAN_CAN_BE_TOLD = 501


@contextmanager
def jobs_run(stage: LiveService) -> Iterator[None]:
    """Run jobs in the service. Its broker is away: nobody has to be asked for anything here."""

    async def begin() -> asyncio.Task[None]:
        nowhere = BrokerAddress(host="127.0.0.1", port=free_port())
        carrier = ExternalBrokerClient(
            nowhere, "jobs", prefix="", consumer=StoringConsumer(stage.database), options=MqttOptions()
        )
        asking = RpcClient(carrier, TopicCodec(), stage.clock)
        runner = JobRunner(
            stage.database,
            asking,
            stage.clock,
            steady=SteadyClock(stage.clock),
            notify=stage.api.live.jobs.mark_changed,
        )
        stage.api.job_wakeup.subscribe(runner.wake)
        return asyncio.create_task(runner.run())

    async def end() -> None:
        running.cancel()
        await asyncio.wait([running])

    running = stage.run_in_loop(begin())
    try:
        yield
    finally:
        stage.run_in_loop(end())


def canceled(stream: SseClient, job: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
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
def test_a_canceled_job_is_told_with_each_of_its_executions(on_both: LiveService) -> None:
    shop = JobEnvironment(on_both)
    devices = shop.devices(3)
    job = shop.create_job(shop.firmware(), devices, autoApply=False)["id"]
    with jobs_run(on_both), on_both.stream(Jobs=job) as stream:
        shop.run_command("cancel", job)
        told, executions = canceled(stream, job)
        assert told == shop.get_job(job)
        assert (told["counts"]["CANCELED"], told["counts"]["QUEUED"]) == (3, 0)
        ends = {each["deviceId"]: (each["jobId"], each["state"]) for each in executions}
        assert ends == dict.fromkeys(devices, (job, "CANCELED"))


@pytest.mark.rule("rest-156")
def test_of_too_many_that_end_at_once_the_job_is_told_and_that_there_were_more(stage: LiveService) -> None:
    shop = JobEnvironment(stage)
    job = shop.create_job(shop.firmware(), shop.devices(MORE_THAN_CAN_BE_TOLD), autoApply=False)["id"]
    with (
        jobs_run(stage),
        stage.stream(Types="job") as of_jobs,
        stage.stream(Types="execution") as of_executions,
    ):
        shop.run_command("cancel", job)
        told, _ = canceled(of_jobs, job)
        assert told["counts"]["CANCELED"] == MORE_THAN_CAN_BE_TOLD
        assert of_executions.next()["type"] == "resync"
        assert set(shop.states(job).values()) == {"CANCELED"}


@pytest.mark.rule("rest-146")
def test_devices_that_a_newer_job_takes_over_are_told(on_both: LiveService) -> None:
    shop = JobEnvironment(on_both)
    devices = shop.devices(3)
    older = shop.create_job(shop.firmware(), devices, onNewerJob="supersede")["id"]
    with on_both.stream(Jobs=older, Types="execution") as stream:
        shop.create_job(shop.firmware("9.0.0"), devices[:2])
        told = [stream.next()["data"] for _ in range(2)]
    assert {(each["deviceId"], each["state"]) for each in told} == {
        (each, "SUPERSEDED") for each in devices[:2]
    }
