"""Many executions that end at once: subscribers get an event for each, or a resync."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.mqtt.client import BrokerAddress, MqttOptions
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.clock import MonotonicClock
from meshfleet.service.external_broker.client import ExternalBrokerClient
from meshfleet.service.jobs.execution.runner import JobRunner
from meshfleet.service.requests.rpc import RpcClient
from tests.servers import free_port
from tests.service.jobs.job_environment import JobEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.service.live.live_service import LiveService, SseClient

TOO_MANY_EXECUTIONS = 501


@contextmanager
def run_jobs(service: LiveService) -> Iterator[None]:
    """Run jobs in the service without a broker: no requests are needed here."""

    async def start() -> asyncio.Task[None]:
        unused_address = BrokerAddress(host="127.0.0.1", port=free_port())
        transport = ExternalBrokerClient(
            unused_address,
            "jobs",
            prefix="",
            options=MqttOptions(),
        )
        rpc = RpcClient(transport, TopicCodec(), service.clock)
        runner = JobRunner(
            service.database,
            rpc,
            service.clock,
            monotonic=MonotonicClock(service.clock),
            notify=service.api.live.jobs.mark_changed,
        )
        service.api.job_wakeup.subscribe(runner.wake)
        return asyncio.create_task(runner.run())

    async def stop() -> None:
        run_task.cancel()
        await asyncio.wait([run_task])

    run_task = service.run_in_loop(start())
    try:
        yield
    finally:
        service.run_in_loop(stop())


def wait_until_canceled(stream: SseClient, job: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return the canceled job, and the executions published before it."""
    executions = []
    for _ in range(100):
        event = stream.next()
        if event["type"] == "execution":
            executions.append(event["data"])
        elif event["type"] == "job" and (event["data"]["id"], event["data"]["state"]) == (job, "CANCELED"):
            return event["data"], executions
    raise AssertionError("the canceled job is not published")


@pytest.mark.rule("rest-146")
def test_a_canceled_job_is_published_with_each_of_its_executions(
    service_on_each_database: LiveService,
) -> None:
    environment = JobEnvironment(service_on_each_database)
    devices = environment.devices(3)
    job = environment.create_job(environment.firmware(), devices, autoApply=False)["id"]
    with run_jobs(service_on_each_database), service_on_each_database.stream(Jobs=job) as stream:
        environment.run_command("cancel", job)
        job_body, executions = wait_until_canceled(stream, job)
        assert job_body == environment.get_job(job)
        assert (job_body["counts"]["CANCELED"], job_body["counts"]["QUEUED"]) == (3, 0)
        states = {each["deviceId"]: (each["jobId"], each["state"]) for each in executions}
        assert states == dict.fromkeys(devices, (job, "CANCELED"))


@pytest.mark.rule("rest-156")
def test_too_many_executions_that_end_at_once_cause_a_resync_and_the_job_is_published(
    service: LiveService,
) -> None:
    environment = JobEnvironment(service)
    job = environment.create_job(
        environment.firmware(), environment.devices(TOO_MANY_EXECUTIONS), autoApply=False
    )["id"]
    with (
        run_jobs(service),
        service.stream(Types="job") as job_stream,
        service.stream(Types="execution") as execution_stream,
    ):
        environment.run_command("cancel", job)
        job_body, _ = wait_until_canceled(job_stream, job)
        assert job_body["counts"]["CANCELED"] == TOO_MANY_EXECUTIONS
        assert execution_stream.next()["type"] == "resync"
        assert set(environment.states(job).values()) == {"CANCELED"}


@pytest.mark.rule("rest-146")
def test_devices_that_a_newer_job_supersedes_are_published(service_on_each_database: LiveService) -> None:
    environment = JobEnvironment(service_on_each_database)
    devices = environment.devices(3)
    older = environment.create_job(environment.firmware(), devices, onNewerJob="supersede")["id"]
    with service_on_each_database.stream(Jobs=older, Types="execution") as stream:
        environment.create_job(environment.firmware("9.0.0"), devices[:2])
        executions = [stream.next()["data"] for _ in range(2)]
    assert {(each["deviceId"], each["state"]) for each in executions} == {
        (each, "SUPERSEDED") for each in devices[:2]
    }
