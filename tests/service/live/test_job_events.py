"""Jobs and executions as live events: the bodies of REST, to whoever they concern."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.service.jobs.notifications import ExecutionChange
from tests.service.ingest.messages import A, B, heartbeat
from tests.service.jobs.job_environment import JobEnvironment, job_number, number_of

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService, SseClient


def _execution(
    stage: LiveService, shop: JobEnvironment, job: dict[str, Any], device: str, **values: Any
) -> None:
    """What a runner does: an execution is in another state, and it says so."""
    shop.set_execution(job["id"], device, **values)
    changed = ExecutionChange(job_number(job["id"]), number_of(device), values.get("gateway"))
    stage.call_in_loop(lambda: stage.api.live.jobs.mark_changed([], [changed]))


def _until(stream: SseClient, kind: str, **wanted: Any) -> dict[str, Any]:
    """The next event of a kind with these words; others may come before it."""
    for _ in range(100):
        event = stream.next()
        data: dict[str, Any] = event["data"]
        if event["type"] == kind and {name: data.get(name) for name in wanted} == wanted:
            return data
    raise AssertionError("it is not told")


@pytest.mark.rule("rest-146", "rest-147")
def test_a_job_is_told_as_rest_shows_it_when_it_is_made_and_steered(on_both: LiveService) -> None:
    shop = JobEnvironment(on_both)
    firmware, devices = shop.firmware(), shop.devices(2)
    with on_both.stream(Types="job") as everything:
        job = shop.create_job(firmware, devices)
        assert everything.next()["data"] == shop.get_job(job["id"])
        with on_both.stream(Jobs=job["id"]) as mine, on_both.open_authenticated() as talk:
            talk.subscribe(Jobs=[job["id"]])
            shop.run_command("pause", job["id"])
            for told in (_until(mine, "job", state="PAUSED"), everything.next()["data"], talk.next()["data"]):
                assert told == shop.get_job(job["id"])
                assert told["pauseReason"] == "USER"


@pytest.mark.rule("rest-216")
def test_a_deleted_job_is_told_to_whoever_listens_to_jobs(stage: LiveService) -> None:
    shop = JobEnvironment(stage)
    firmware, devices = shop.firmware(), shop.devices(2)
    over = shop.create_job(firmware, devices)
    shop.set_job(over["id"], state="COMPLETED", outcome="NONE", finished_at=shop.now)
    with stage.stream(Types="job") as everything, stage.stream(Jobs=over["id"]) as mine:
        waits = shop.create_job(firmware, devices, autoApply=False)
        _until(everything, "job", id=waits["id"], state="CREATED")
        for job in (over, waits):
            assert stage.operator.delete(f"/api/v1/jobs/{job['id']}").status_code == 204
            told = _until(everything, "job", deleted=True)
            assert told == {"id": job["id"], "deleted": True}
        assert _until(mine, "job", deleted=True)["id"] == over["id"]


@pytest.mark.rule("rest-147", "rest-204")
def test_a_filter_on_jobs_takes_these_and_their_executions_and_nothing_else(stage: LiveService) -> None:
    shop = JobEnvironment(stage)
    mine, other = (shop.create_job(shop.firmware(), [device]) for device in shop.devices(2))
    (device,), (stranger,) = shop.executions(mine["id"]), shop.executions(other["id"])
    with stage.stream(Jobs=mine["id"]) as stream:
        stage.ingest_and_flush(heartbeat(stage.clock()))
        _execution(stage, shop, other, stranger, state="DISPATCHED")
        shop.run_command("pause", other["id"])
        _execution(stage, shop, mine, device, state="DISPATCHED")
        ids: set[str] = set()
        counted = 0
        for _ in range(10):
            event = stream.next()
            ids.add(event["data"]["jobId" if event["type"] == "execution" else "id"])
            if event["type"] == "job" and (counted := event["data"]["counts"]["DISPATCHED"]):
                break
        assert (ids, counted) == ({mine["id"]}, 1)


@pytest.mark.rule("rest-146")
def test_an_execution_is_told_as_rest_shows_it_and_with_its_job(stage: LiveService) -> None:
    shop = JobEnvironment(stage)
    device = shop.device()
    job = shop.create_job(shop.firmware(), [device])
    with stage.stream(Types="execution") as stream:
        _execution(stage, shop, job, device, state="DISPATCHED", gateway=mac_to_int(Mac(A)))
        told = stream.next()["data"]
    assert told.pop("jobId") == job["id"]
    assert told == shop.executions(job["id"])[device]


@pytest.mark.rule("rest-147")
def test_executions_are_chosen_by_device_and_gateway_too(stage: LiveService) -> None:
    shop = JobEnvironment(stage)
    first, second = shop.devices(2)
    job = shop.create_job(shop.firmware(), [first, second])
    with (
        stage.stream(Types="execution", Ids=second) as by_device,
        stage.stream(Types="execution", Gateway=B) as by_gateway,
        stage.stream(Types="execution", Jobs=job["id"], Ids=second) as by_both,
    ):
        _execution(stage, shop, job, first, state="DISPATCHED", gateway=mac_to_int(Mac(A)))
        _execution(stage, shop, job, second, state="DISPATCHED", gateway=mac_to_int(Mac(B)))
        for stream in (by_device, by_gateway, by_both):
            assert stream.next()["data"]["deviceId"] == second


def test_the_progress_of_transfers_and_jobs_is_told_although_nobody_says_it(stage: LiveService) -> None:
    shop = JobEnvironment(stage)
    device = shop.device()
    job = shop.create_job(shop.firmware(), [device])
    with stage.stream(Jobs=job["id"]) as stream:
        shop.set_execution(job["id"], device, state="TRANSFERRING", progress=10)
        _until_both(stream, progress=10)
        shop.set_execution(job["id"], device, progress=60)
        _until_both(stream, progress=60)


def _until_both(stream: SseClient, progress: int) -> None:
    """Until an execution and its job are told so far, in either order."""
    missing = {"job", "execution"}
    for _ in range(100):
        event = stream.next()
        if event["data"]["progress"] == progress:
            missing.discard(event["type"])
        if not missing:
            return
    raise AssertionError("it is not told")


def test_the_end_of_a_job_is_told_even_if_another_program_brought_it_about(stage: LiveService) -> None:
    shop = JobEnvironment(stage)
    job = shop.create_job(shop.firmware(), [shop.device()])
    with stage.stream(Types="job") as stream:
        _until(stream, "job", id=job["id"])
        shop.set_job(job["id"], state="COMPLETED", outcome="SUCCEEDED", finished_at=stage.clock())
        _until(stream, "job", id=job["id"], state="COMPLETED")


@pytest.mark.rule("rest-156")
def test_more_executions_than_can_be_told_are_a_resync(stage: LiveService) -> None:
    shop = JobEnvironment(stage)
    device = shop.device()
    job = shop.create_job(shop.firmware(), [device])
    with stage.stream(Types="execution") as stream:
        many = [ExecutionChange(job_number(job["id"]), number, None) for number in range(600)]
        stage.call_in_loop(lambda: stage.api.live.jobs.mark_changed([], many))
        assert stream.next()["type"] == "resync"
        _execution(stage, shop, job, device, state="DISPATCHED")
        assert stream.next()["data"]["deviceId"] == device, "it goes on"


def test_what_people_do_to_firmware_and_jobs_holds_up_no_other_news(stage: LiveService) -> None:
    shop = JobEnvironment(stage)
    device = shop.device()
    with stage.stream(Types="device") as stream:
        firmware = shop.firmware()
        job = shop.create_job(firmware, [device])
        shop.run_command("cancel", job["id"])
        assert stage.admin.post(f"/api/v1/firmware/{firmware}/withdraw").status_code == 200
        stage.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Lobby"})
        assert _until(stream, "device", id=device)["friendlyName"] == "Lobby"
