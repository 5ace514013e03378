"""Tests of two jobs for one device: the policy of the older job decides."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from meshfleet.db.tables import execution
from meshfleet.service.jobs.notifications import ignore_changes
from meshfleet.service.jobs.planning import conflicts
from tests.row_tables import each_row
from tests.service.jobs.job_environment import job_number, recount_tallies

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tests.service.jobs.job_environment import JobEnvironment

pytestmark = pytest.mark.both_databases


@pytest.mark.rule("rest-129")
def test_a_newer_job_queues_behind_an_older_one(env: JobEnvironment) -> None:
    devices = env.devices(2)
    older = env.create_job(env.firmware(), devices)
    newer = env.create_job(env.firmware("3.5.0"), devices, onNewerJob="supersede")
    assert set(env.states(older["id"]).values()) == {"QUEUED"}
    assert set(env.states(newer["id"]).values()) == {"QUEUED"}


@pytest.mark.rule("rest-129", "rest-121", "rest-200")
def test_a_newer_job_takes_over_the_queued_devices_of_an_older_one(env: JobEnvironment) -> None:
    devices = env.devices(5)
    waves = [{"count": 2}, {"percent": 100}]
    older = env.create_job(env.firmware(), devices, onNewerJob="supersede", waves=waves)
    env.set_execution(older["id"], devices[0], state="TRANSFERRING")
    env.set_execution(older["id"], devices[1], state="SUCCEEDED")
    env.set_execution(older["id"], devices[2], waiting="back-off", expires=env.now)
    versions = {row["device"]: row["version"] for row in env.rows(older["id"])}
    newer = env.create_job(env.firmware("3.5.0"), devices[:4])
    assert env.states(newer["id"]) == dict.fromkeys(devices[:4], "QUEUED")
    assert env.states(older["id"]) == {
        devices[0]: "TRANSFERRING",
        devices[1]: "SUCCEEDED",
        devices[2]: "SUPERSEDED",
        devices[3]: "SUPERSEDED",
        devices[4]: "QUEUED",
    }
    ended = env.executions(older["id"])[devices[2]]
    assert (ended["reasonCode"], ended["reason"]) == ("NEWER_JOB", f"{newer['id']} took over the device")
    assert env.transitions(older["id"], devices[2]) == [("QUEUED", "SUPERSEDED", ended["reason"])]
    assert env.transitions(older["id"], devices[4]) == []
    for row in env.rows(older["id"]):
        assert row["version"] == versions[row["device"]] + (row["state"] == "SUPERSEDED")
        assert row["state"] != "SUPERSEDED" or (row["waiting"], row["expires"]) == (None, None)
    before = env.tallies(older["id"])
    env.service.database.write_now(recount_tallies, job_number(older["id"]))
    assert env.tallies(older["id"]) == before
    assert sum(env.get_job(older["id"])["counts"].values()) == 5


@pytest.mark.rule("rest-129")
def test_devices_that_the_newer_job_excludes_stay_in_the_older_one(env: JobEnvironment) -> None:
    devices = [*env.devices(1), *env.devices(1, "3.6.0")]
    older = env.create_job(env.firmware("4.0.0"), devices, onNewerJob="supersede")
    newer = env.create_job(env.firmware("3.5.0"), devices)
    assert env.states(newer["id"]) == {devices[0]: "QUEUED", devices[1]: "SKIPPED"}
    assert env.states(older["id"]) == {devices[0]: "SUPERSEDED", devices[1]: "QUEUED"}


@pytest.mark.rule("rest-129", "rest-134", "rest-200")
def test_an_older_job_may_reject_newer_jobs_for_its_devices(env: JobEnvironment) -> None:
    devices = env.devices(4)
    older = env.create_job(env.firmware(), devices[:3], onNewerJob="reject")
    env.set_execution(older["id"], devices[0], state="APPLYING")
    env.set_execution(older["id"], devices[1], state="FAILED")
    newer = env.create_job(env.firmware("3.5.0"), devices)
    assert env.states(newer["id"]) == {
        devices[0]: "REJECTED",
        devices[1]: "QUEUED",
        devices[2]: "REJECTED",
        devices[3]: "QUEUED",
    }
    rejected = env.executions(newer["id"])[devices[2]]
    assert rejected["reasonCode"] == "EARLIER_JOB"
    assert rejected["reason"] == f"{older['id']} has not finished with it and rejects newer jobs"
    assert env.tallies(newer["id"]) == {(0, "QUEUED"): 2, (-1, "REJECTED"): 2}
    result = env.dry_run(env.firmware("3.6.0"), {"deviceIds": devices})
    assert [(each["code"], each["count"]) for each in result["refusals"]] == [("EARLIER_JOB", 2)]


@pytest.mark.rule("rest-134")
def test_a_job_whose_devices_are_all_rejected_fails_at_once(env: JobEnvironment) -> None:
    devices = env.devices(2)
    env.create_job(env.firmware(), devices, onNewerJob="reject")
    newer = env.create_job(env.firmware("3.5.0"), devices)
    assert (newer["state"], newer["outcome"], newer["counts"]["REJECTED"]) == ("COMPLETED", "FAILED", 2)


@pytest.mark.rule("rest-129")
@each_row("policy", ["reject", "supersede"])
def test_the_policy_of_a_finished_job_is_ignored(env: JobEnvironment, policy: str) -> None:
    devices = env.devices(1)
    older = env.create_job(env.firmware(), devices, onNewerJob=policy)
    env.set_job(older["id"], state="CANCELED", finished_at=env.now)
    newer = env.create_job(env.firmware("3.5.0"), devices)
    assert env.states(newer["id"]) == {devices[0]: "QUEUED"}
    assert env.states(older["id"]) == {devices[0]: "QUEUED"}


@pytest.mark.rule("rest-129")
@each_row(("policy", "other_state"), [("reject", "REJECTED"), ("supersede", "SUPERSEDED")])
def test_of_concurrently_created_jobs_only_one_keeps_the_device(
    env: JobEnvironment, policy: str, other_state: str
) -> None:
    (device,) = env.devices(1)
    firmware = env.firmware()
    with ThreadPoolExecutor(6) as threads:
        futures = [threads.submit(env.create_job, firmware, [device], onNewerJob=policy) for _ in range(6)]
        jobs: list[dict[str, Any]] = [each.result() for each in futures]
    states = sorted(env.states(each["id"])[device] for each in jobs)
    assert states == sorted(["QUEUED", *[other_state] * 5])


@pytest.mark.rule("rest-129")
def test_a_takeover_that_a_crash_interrupted_is_completed_later(env: JobEnvironment) -> None:
    devices = env.devices(3)
    older = env.create_job(env.firmware(), devices, onNewerJob="supersede")
    env.service.clock.move(seconds=1)
    newer = env.create_job(env.firmware("3.5.0"), devices[:2], onNewerJob="supersede")

    def reset_superseded(connection: Connection) -> None:
        is_of_older = execution.c.job == job_number(older["id"])
        connection.execute(
            update(execution).where(is_of_older).values(state="QUEUED", reason=None, code=None)
        )
        recount_tallies(connection, job_number(older["id"]))

    env.service.database.write_now(reset_superseded)
    for _ in range(2):
        asyncio.run(conflicts.finish_takeovers(env.service.database, env.now, ignore_changes))
        assert env.states(older["id"]) == {
            devices[0]: "SUPERSEDED",
            devices[1]: "SUPERSEDED",
            devices[2]: "QUEUED",
        }
        assert env.states(newer["id"]) == dict.fromkeys(devices[:2], "QUEUED")
        assert env.tallies(older["id"]) == {(0, "QUEUED"): 1, (0, "SUPERSEDED"): 2}


def test_a_job_name_that_looks_like_a_policy_is_only_a_name(env: JobEnvironment) -> None:
    devices = env.devices(1)
    name = '","onNewerJob":"reject","x":"'
    assert env.create_job(env.firmware(), devices, name=name)["name"] == name
    newer = env.create_job(env.firmware("3.5.0"), devices)
    assert env.states(newer["id"]) == {devices[0]: "QUEUED"}
