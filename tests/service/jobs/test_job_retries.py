"""A new job for those that an old one did not update."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from meshfleet.protocol.times import format_millis
from tests.row_tables import each_row
from tests.service.jobs.job_environment import JOBS, MINUTE

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

ENDS = ("FAILED", "TIMED_OUT", "CANCELED", "SUCCEEDED", "REJECTED", "REMOVED", "SUPERSEDED")


def finished(shop: JobEnvironment, devices: list[str], *ends: str, **order: Any) -> dict[str, Any]:
    """A job that is over, with these ends."""
    job = shop.create_job(shop.firmware(), devices, **order)
    for device, end in zip(devices, ends, strict=True):
        shop.set_execution(job["id"], device, state=end)
    shop.set_job(job["id"], state="COMPLETED", outcome="PARTIAL", finished_at=shop.now)
    return job


@pytest.mark.rule("rest-139")
def test_a_retry_is_a_new_job_for_who_failed_timed_out_or_was_cancelled(shop: JobEnvironment) -> None:
    devices = shop.devices(len(ENDS))
    old = finished(shop, devices, *ENDS, name="Sensors", retry={"max": 2}, waves=[{"count": 1}], stage=True)
    before = shop.get_job(old["id"])
    answer = shop.run_command("retry", old["id"])
    assert answer.status_code == 201, answer.text
    new = answer.json()
    assert shop.states(new["id"]) == dict.fromkeys(devices[:3], "QUEUED")
    assert (new["parentJobId"], new["name"]) == (old["id"], "Sensors (retry)")
    same = ("firmwareId", "targets", "retry", "waves", "stage", "timeouts", "onNewerJob", "health")
    assert {name: new[name] for name in same} == {name: old[name] for name in same}
    assert [each["size"] for each in new["waveStates"]] == [1, 2]
    assert new["state"] == "IN_PROGRESS"
    assert shop.get_job(old["id"]) == before


@pytest.mark.rule("rest-139")
def test_who_reports_the_version_meanwhile_is_in_no_wave(shop: JobEnvironment) -> None:
    devices = [*shop.devices(1), *shop.devices(1, "3.4.1")]
    old = finished(shop, devices, "FAILED", "TIMED_OUT")
    shop.service.database.write_now(
        lambda c: c.exec_driver_sql(
            f"UPDATE device SET firmware = '3.4.2' WHERE id = {int(devices[0][5:], 16)}"  # noqa: S608 # a number
        )
    )
    new = shop.run_command("retry", old["id"]).json()
    told = shop.executions(new["id"])
    assert {device: (each["reasonCode"], each["wave"]) for device, each in told.items()} == {
        devices[0]: ("ALREADY_THERE", None),
        devices[1]: (None, "1"),
    }


@pytest.mark.rule("rest-139")
def test_times_that_are_over_are_left_out(shop: JobEnvironment) -> None:
    ahead = format_millis(shop.now + 60 * MINUTE)
    old = finished(shop, shop.devices(1), "FAILED", startAt=format_millis(shop.now + MINUTE), deadline=ahead)
    shop.set_job(old["id"], start_at=shop.now - MINUTE)
    new = shop.run_command("retry", old["id"]).json()
    assert (new["startAt"], new["deadline"], new["state"]) == (None, ahead, "IN_PROGRESS")
    shop.set_job(old["id"], deadline=shop.now - MINUTE)
    assert shop.run_command("retry", old["id"]).json()["deadline"] is None


def test_a_retry_of_a_retry_keeps_its_name_short(shop: JobEnvironment) -> None:
    name = "x" * 200
    old = finished(shop, shop.devices(1), "FAILED", name=name)
    for _ in range(2):
        new = shop.run_command("retry", old["id"]).json()
        assert new["name"] == "x" * 192 + " (retry)"
        shop.set_execution(new["id"], next(iter(shop.states(new["id"]))), state="FAILED")
        shop.set_job(new["id"], state="CANCELED", finished_at=shop.now)
        assert new["parentJobId"] == old["id"]
        old = new


@pytest.mark.rule("rest-139")
@each_row("state", ["CREATED", "SCHEDULED", "IN_PROGRESS", "PAUSED", "CANCELING"])
def test_a_job_that_is_not_over_is_not_tried_again(shop: JobEnvironment, state: str) -> None:
    (device,) = shop.devices(1)
    job = shop.create_job(shop.firmware(), [device])
    shop.set_execution(job["id"], device, state="FAILED")
    shop.set_job(job["id"], state=state)
    assert shop.run_command("retry", job["id"]).status_code == 409


def test_where_nothing_failed_there_is_nothing_to_try_again(shop: JobEnvironment) -> None:
    old = finished(shop, shop.devices(2), "SUCCEEDED", "REJECTED")
    answer = shop.run_command("retry", old["id"])
    assert (answer.status_code, answer.json()["code"]) == (409, "conflict")


@pytest.mark.rule("rest-118")
def test_withdrawn_firmware_is_not_tried_again(shop: JobEnvironment) -> None:
    old = finished(shop, shop.devices(1), "FAILED")
    shop.service.database.write_now(
        lambda c: c.exec_driver_sql(
            f"UPDATE firmware SET state = 'withdrawn' WHERE id = '{old['firmwareId']}'"  # noqa: S608 # ours
        )
    )
    answer = shop.run_command("retry", old["id"])
    assert (answer.status_code, answer.json()["code"]) == (409, "not-released")


@pytest.mark.rule("rest-25", "rest-26")
def test_a_retry_with_a_key_is_made_once(shop: JobEnvironment) -> None:
    old, other = (finished(shop, shop.devices(1), "FAILED") for _ in range(2))
    headers = {"Idempotency-Key": str(uuid4())}

    def retry(job: dict[str, Any]) -> Any:
        return shop.service.operator.post(f"{JOBS}/{job['id']}/retry", headers=headers)

    one, same = retry(old), retry(old)
    assert (one.status_code, same.status_code) == (201, 201)
    assert one.json() == same.json()
    assert retry(other).json()["code"] == "idempotency-key-reused"
