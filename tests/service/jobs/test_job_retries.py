"""Tests of retries: a new job for devices that a finished one did not update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from meshfleet.protocol.times import format_millis
from tests.row_tables import each_row
from tests.service.jobs.job_environment import JOBS, MINUTE

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

FINAL_STATES = ("FAILED", "TIMED_OUT", "CANCELED", "SUCCEEDED", "REJECTED", "REMOVED", "SUPERSEDED")


def create_finished_job(
    env: JobEnvironment, devices: list[str], *states: str, **fields: Any
) -> dict[str, Any]:
    """Create a finished job whose executions have these states."""
    job = env.create_job(env.firmware(), devices, **fields)
    for device, state in zip(devices, states, strict=True):
        env.set_execution(job["id"], device, state=state)
    env.set_job(job["id"], state="COMPLETED", outcome="PARTIAL", finished_at=env.now)
    return job


@pytest.mark.rule("rest-139")
def test_a_retry_is_a_new_job_for_failed_timed_out_and_canceled_devices(env: JobEnvironment) -> None:
    devices = env.devices(len(FINAL_STATES))
    old = create_finished_job(
        env, devices, *FINAL_STATES, name="Sensors", retry={"max": 2}, waves=[{"count": 1}], stage=True
    )
    before = env.get_job(old["id"])
    response = env.run_command("retry", old["id"])
    assert response.status_code == 201, response.text
    new = response.json()
    assert env.states(new["id"]) == dict.fromkeys(devices[:3], "QUEUED")
    assert (new["parentJobId"], new["name"]) == (old["id"], "Sensors (retry)")
    copied = ("firmwareId", "targets", "retry", "waves", "stage", "timeouts", "onNewerJob", "health")
    assert {name: new[name] for name in copied} == {name: old[name] for name in copied}
    assert [each["size"] for each in new["waveStates"]] == [1, 2]
    assert new["state"] == "IN_PROGRESS"
    assert env.get_job(old["id"]) == before


@pytest.mark.rule("rest-139")
def test_a_device_that_reports_the_version_meanwhile_is_in_no_wave(env: JobEnvironment) -> None:
    devices = [*env.devices(1), *env.devices(1, "3.4.1")]
    old = create_finished_job(env, devices, "FAILED", "TIMED_OUT")
    env.service.database.write_now(
        lambda c: c.exec_driver_sql(
            f"UPDATE device SET firmware = '3.4.2' WHERE id = {int(devices[0][5:], 16)}"  # noqa: S608 # contains only a number
        )
    )
    new = env.run_command("retry", old["id"]).json()
    executions = env.executions(new["id"])
    assert {device: (each["reasonCode"], each["wave"]) for device, each in executions.items()} == {
        devices[0]: ("ALREADY_THERE", None),
        devices[1]: (None, "1"),
    }


@pytest.mark.rule("rest-139")
def test_a_retry_omits_times_that_have_passed(env: JobEnvironment) -> None:
    future = format_millis(env.now + 60 * MINUTE)
    old = create_finished_job(
        env, env.devices(1), "FAILED", startAt=format_millis(env.now + MINUTE), deadline=future
    )
    env.set_job(old["id"], start_at=env.now - MINUTE)
    new = env.run_command("retry", old["id"]).json()
    assert (new["startAt"], new["deadline"], new["state"]) == (None, future, "IN_PROGRESS")
    env.set_job(old["id"], deadline=env.now - MINUTE)
    assert env.run_command("retry", old["id"]).json()["deadline"] is None


def test_a_retry_of_a_retry_has_one_suffix_and_a_short_name(env: JobEnvironment) -> None:
    name = "x" * 200
    old = create_finished_job(env, env.devices(1), "FAILED", name=name)
    for _ in range(2):
        new = env.run_command("retry", old["id"]).json()
        assert new["name"] == "x" * 192 + " (retry)"
        env.set_execution(new["id"], next(iter(env.states(new["id"]))), state="FAILED")
        env.set_job(new["id"], state="CANCELED", finished_at=env.now)
        assert new["parentJobId"] == old["id"]
        old = new


@pytest.mark.rule("rest-139")
@each_row("state", ["CREATED", "SCHEDULED", "IN_PROGRESS", "PAUSED", "CANCELING"])
def test_an_unfinished_job_cannot_be_retried(env: JobEnvironment, state: str) -> None:
    (device,) = env.devices(1)
    job = env.create_job(env.firmware(), [device])
    env.set_execution(job["id"], device, state="FAILED")
    env.set_job(job["id"], state=state)
    assert env.run_command("retry", job["id"]).status_code == 409


def test_a_job_without_failures_cannot_be_retried(env: JobEnvironment) -> None:
    old = create_finished_job(env, env.devices(2), "SUCCEEDED", "REJECTED")
    response = env.run_command("retry", old["id"])
    assert (response.status_code, response.json()["code"]) == (409, "conflict")


@pytest.mark.rule("rest-118")
def test_a_job_with_withdrawn_firmware_cannot_be_retried(env: JobEnvironment) -> None:
    old = create_finished_job(env, env.devices(1), "FAILED")
    env.service.database.write_now(
        lambda c: c.exec_driver_sql(
            f"UPDATE firmware SET state = 'withdrawn' WHERE id = '{old['firmwareId']}'"  # noqa: S608 # the id of our own record
        )
    )
    response = env.run_command("retry", old["id"])
    assert (response.status_code, response.json()["code"]) == (409, "not-released")


@pytest.mark.rule("rest-25", "rest-26")
def test_a_retry_with_an_idempotency_key_creates_one_job(env: JobEnvironment) -> None:
    old, other = (create_finished_job(env, env.devices(1), "FAILED") for _ in range(2))
    headers = {"Idempotency-Key": str(uuid4())}

    def retry(job: dict[str, Any]) -> Any:
        return env.service.operator.post(f"{JOBS}/{job['id']}/retry", headers=headers)

    one, copied = retry(old), retry(old)
    assert (one.status_code, copied.status_code) == (201, 201)
    assert one.json() == copied.json()
    assert retry(other).json()["code"] == "idempotency-key-reused"
