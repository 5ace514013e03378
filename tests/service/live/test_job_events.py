"""Jobs and executions as live events, in their REST representation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.service.jobs.notifications import ExecutionChange
from tests.service.ingest.messages import A, B, heartbeat
from tests.service.jobs.job_environment import JobEnvironment, job_number, number_of

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService, SseClient


def _change_execution(
    service: LiveService, environment: JobEnvironment, job: dict[str, Any], device: str, **values: Any
) -> None:
    """Change an execution and mark it as changed, as the job runner does."""
    environment.set_execution(job["id"], device, **values)
    changed = ExecutionChange(job_number(job["id"]), number_of(device), values.get("gateway"))
    service.call_in_loop(lambda: service.api.live.jobs.mark_changed([], [changed]))


def _read_until(stream: SseClient, event_type: str, **expected: Any) -> dict[str, Any]:
    """Return the data of the next event of a type with these fields, skipping others."""
    for _ in range(100):
        event = stream.next()
        data: dict[str, Any] = event["data"]
        if event["type"] == event_type and {name: data.get(name) for name in expected} == expected:
            return data
    raise AssertionError("the expected event is not published")


@pytest.mark.rule("rest-146", "rest-147")
def test_a_created_or_changed_job_is_published_as_rest_shows_it(
    service_on_each_database: LiveService,
) -> None:
    environment = JobEnvironment(service_on_each_database)
    firmware, devices = environment.firmware(), environment.devices(2)
    with service_on_each_database.stream(Types="job") as all_jobs:
        job = environment.create_job(firmware, devices)
        assert all_jobs.next()["data"] == environment.get_job(job["id"])
        with (
            service_on_each_database.stream(Jobs=job["id"]) as one_job,
            service_on_each_database.open_authenticated() as websocket,
        ):
            websocket.subscribe(Jobs=[job["id"]])
            environment.run_command("pause", job["id"])
            for data in (
                _read_until(one_job, "job", state="PAUSED"),
                all_jobs.next()["data"],
                websocket.next()["data"],
            ):
                assert data == environment.get_job(job["id"])
                assert data["pauseReason"] == "USER"


@pytest.mark.rule("rest-216")
def test_a_deleted_job_is_published(service: LiveService) -> None:
    environment = JobEnvironment(service)
    firmware, devices = environment.firmware(), environment.devices(2)
    finished = environment.create_job(firmware, devices)
    environment.set_job(finished["id"], state="COMPLETED", outcome="NONE", finished_at=environment.now)
    with service.stream(Types="job") as all_jobs, service.stream(Jobs=finished["id"]) as one_job:
        waiting = environment.create_job(firmware, devices, autoApply=False)
        _read_until(all_jobs, "job", id=waiting["id"], state="CREATED")
        for job in (finished, waiting):
            assert service.operator.delete(f"/api/v1/jobs/{job['id']}").status_code == 204
            data = _read_until(all_jobs, "job", deleted=True)
            assert data == {"id": job["id"], "deleted": True}
        assert _read_until(one_job, "job", deleted=True)["id"] == finished["id"]


@pytest.mark.rule("rest-147", "rest-204")
def test_a_filter_on_jobs_matches_only_these_and_their_executions(service: LiveService) -> None:
    environment = JobEnvironment(service)
    mine, other = (
        environment.create_job(environment.firmware(), [device]) for device in environment.devices(2)
    )
    (device,), (other_device,) = environment.executions(mine["id"]), environment.executions(other["id"])
    with service.stream(Jobs=mine["id"]) as stream:
        service.ingest_and_flush(heartbeat(service.clock()))
        _change_execution(service, environment, other, other_device, state="DISPATCHED")
        environment.run_command("pause", other["id"])
        _change_execution(service, environment, mine, device, state="DISPATCHED")
        ids: set[str] = set()
        dispatched_count = 0
        for _ in range(10):
            event = stream.next()
            ids.add(event["data"]["jobId" if event["type"] == "execution" else "id"])
            if event["type"] == "job" and (dispatched_count := event["data"]["counts"]["DISPATCHED"]):
                break
        assert (ids, dispatched_count) == ({mine["id"]}, 1)


@pytest.mark.rule("rest-146")
def test_an_execution_is_published_as_rest_shows_it_with_its_job(service: LiveService) -> None:
    environment = JobEnvironment(service)
    device = environment.device()
    job = environment.create_job(environment.firmware(), [device])
    with service.stream(Types="execution") as stream:
        _change_execution(service, environment, job, device, state="DISPATCHED", gateway=mac_to_int(Mac(A)))
        data = stream.next()["data"]
    assert data.pop("jobId") == job["id"]
    assert data == environment.executions(job["id"])[device]


@pytest.mark.rule("rest-147")
def test_executions_are_filtered_by_device_and_gateway(service: LiveService) -> None:
    environment = JobEnvironment(service)
    first, second = environment.devices(2)
    job = environment.create_job(environment.firmware(), [first, second])
    with (
        service.stream(Types="execution", Ids=second) as by_device,
        service.stream(Types="execution", Gateway=B) as by_gateway,
        service.stream(Types="execution", Jobs=job["id"], Ids=second) as by_both,
    ):
        _change_execution(service, environment, job, first, state="DISPATCHED", gateway=mac_to_int(Mac(A)))
        _change_execution(service, environment, job, second, state="DISPATCHED", gateway=mac_to_int(Mac(B)))
        for stream in (by_device, by_gateway, by_both):
            assert stream.next()["data"]["deviceId"] == second


def test_the_progress_of_transfers_and_jobs_is_published_without_a_notification(service: LiveService) -> None:
    environment = JobEnvironment(service)
    device = environment.device()
    job = environment.create_job(environment.firmware(), [device])
    with service.stream(Jobs=job["id"]) as stream:
        environment.set_execution(job["id"], device, state="TRANSFERRING", progress=10)
        _wait_for_progress(stream, progress=10)
        environment.set_execution(job["id"], device, progress=60)
        _wait_for_progress(stream, progress=60)


def _wait_for_progress(stream: SseClient, progress: int) -> None:
    """Wait until an execution and its job have reached this progress, in either order."""
    missing = {"job", "execution"}
    for _ in range(100):
        event = stream.next()
        if event["data"]["progress"] == progress:
            missing.discard(event["type"])
        if not missing:
            return
    raise AssertionError("the progress is not published")


def test_the_end_of_a_job_is_published_even_if_another_process_caused_it(service: LiveService) -> None:
    environment = JobEnvironment(service)
    job = environment.create_job(environment.firmware(), [environment.device()])
    with service.stream(Types="job") as stream:
        _read_until(stream, "job", id=job["id"])
        environment.set_job(job["id"], state="COMPLETED", outcome="SUCCEEDED", finished_at=service.clock())
        _read_until(stream, "job", id=job["id"], state="COMPLETED")


@pytest.mark.rule("rest-156")
def test_too_many_changed_executions_cause_a_resync(service: LiveService) -> None:
    environment = JobEnvironment(service)
    device = environment.device()
    job = environment.create_job(environment.firmware(), [device])
    with service.stream(Types="execution") as stream:
        changes = [ExecutionChange(job_number(job["id"]), number, None) for number in range(600)]
        service.call_in_loop(lambda: service.api.live.jobs.mark_changed([], changes))
        assert stream.next()["type"] == "resync"
        _change_execution(service, environment, job, device, state="DISPATCHED")
        assert stream.next()["data"]["deviceId"] == device, "no event after the resync"


def test_changes_of_firmware_and_jobs_do_not_block_device_events(service: LiveService) -> None:
    environment = JobEnvironment(service)
    device = environment.device()
    with service.stream(Types="device") as stream:
        firmware = environment.firmware()
        job = environment.create_job(firmware, [device])
        environment.run_command("cancel", job["id"])
        assert service.admin.post(f"/api/v1/firmware/{firmware}/withdraw").status_code == 200
        service.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Lobby"})
        assert _read_until(stream, "device", id=device)["friendlyName"] == "Lobby"
