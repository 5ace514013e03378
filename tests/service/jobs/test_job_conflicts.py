"""Two jobs for one device: the older one says what becomes of it."""

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
def test_a_newer_job_queues_behind_an_older_one(shop: JobEnvironment) -> None:
    devices = shop.devices(2)
    older = shop.create_job(shop.firmware(), devices)
    newer = shop.create_job(shop.firmware("3.5.0"), devices, onNewerJob="supersede")
    assert set(shop.states(older["id"]).values()) == {"QUEUED"}
    assert set(shop.states(newer["id"]).values()) == {"QUEUED"}


@pytest.mark.rule("rest-129", "rest-121", "rest-200")
def test_a_newer_job_takes_over_what_an_older_one_has_not_begun(shop: JobEnvironment) -> None:
    devices = shop.devices(5)
    waves = [{"count": 2}, {"percent": 100}]
    older = shop.create_job(shop.firmware(), devices, onNewerJob="supersede", waves=waves)
    shop.set_execution(older["id"], devices[0], state="TRANSFERRING")
    shop.set_execution(older["id"], devices[1], state="SUCCEEDED")
    shop.set_execution(older["id"], devices[2], waiting="back-off", expires=shop.now)
    versions = {row["device"]: row["version"] for row in shop.rows(older["id"])}
    newer = shop.create_job(shop.firmware("3.5.0"), devices[:4])
    assert shop.states(newer["id"]) == dict.fromkeys(devices[:4], "QUEUED")
    assert shop.states(older["id"]) == {
        devices[0]: "TRANSFERRING",
        devices[1]: "SUCCEEDED",
        devices[2]: "SUPERSEDED",
        devices[3]: "SUPERSEDED",
        devices[4]: "QUEUED",
    }
    ended = shop.executions(older["id"])[devices[2]]
    assert (ended["reasonCode"], ended["reason"]) == ("NEWER_JOB", f"{newer['id']} took over the device")
    assert shop.transitions(older["id"], devices[2]) == [("QUEUED", "SUPERSEDED", ended["reason"])]
    assert shop.transitions(older["id"], devices[4]) == []
    for row in shop.rows(older["id"]):
        assert row["version"] == versions[row["device"]] + (row["state"] == "SUPERSEDED")
        assert row["state"] != "SUPERSEDED" or (row["waiting"], row["expires"]) == (None, None)
    before = shop.tallies(older["id"])
    shop.service.database.write_now(recount_tallies, job_number(older["id"]))
    assert shop.tallies(older["id"]) == before
    assert sum(shop.get_job(older["id"])["counts"].values()) == 5


@pytest.mark.rule("rest-129")
def test_devices_that_the_newer_job_leaves_out_stay_in_the_older_one(shop: JobEnvironment) -> None:
    devices = [*shop.devices(1), *shop.devices(1, "3.6.0")]
    older = shop.create_job(shop.firmware("4.0.0"), devices, onNewerJob="supersede")
    newer = shop.create_job(shop.firmware("3.5.0"), devices)
    assert shop.states(newer["id"]) == {devices[0]: "QUEUED", devices[1]: "SKIPPED"}
    assert shop.states(older["id"]) == {devices[0]: "SUPERSEDED", devices[1]: "QUEUED"}


@pytest.mark.rule("rest-129", "rest-134", "rest-200")
def test_an_older_job_may_let_no_newer_one_have_its_devices(shop: JobEnvironment) -> None:
    devices = shop.devices(4)
    older = shop.create_job(shop.firmware(), devices[:3], onNewerJob="reject")
    shop.set_execution(older["id"], devices[0], state="APPLYING")
    shop.set_execution(older["id"], devices[1], state="FAILED")
    newer = shop.create_job(shop.firmware("3.5.0"), devices)
    assert shop.states(newer["id"]) == {
        devices[0]: "REJECTED",
        devices[1]: "QUEUED",
        devices[2]: "REJECTED",
        devices[3]: "QUEUED",
    }
    refused = shop.executions(newer["id"])[devices[2]]
    assert refused["reasonCode"] == "EARLIER_JOB"
    assert refused["reason"] == f"{older['id']} has not finished with it and rejects newer jobs"
    assert shop.tallies(newer["id"]) == {(0, "QUEUED"): 2, (-1, "REJECTED"): 2}
    told = shop.dry_run(shop.firmware("3.6.0"), {"deviceIds": devices})
    assert [(each["code"], each["count"]) for each in told["refusals"]] == [("EARLIER_JOB", 2)]


@pytest.mark.rule("rest-134")
def test_a_job_of_which_all_are_refused_has_failed_at_once(shop: JobEnvironment) -> None:
    devices = shop.devices(2)
    shop.create_job(shop.firmware(), devices, onNewerJob="reject")
    newer = shop.create_job(shop.firmware("3.5.0"), devices)
    assert (newer["state"], newer["outcome"], newer["counts"]["REJECTED"]) == ("COMPLETED", "FAILED", 2)


@pytest.mark.rule("rest-129")
@each_row("policy", ["reject", "supersede"])
def test_a_job_that_is_over_has_nothing_to_say(shop: JobEnvironment, policy: str) -> None:
    devices = shop.devices(1)
    older = shop.create_job(shop.firmware(), devices, onNewerJob=policy)
    shop.set_job(older["id"], state="CANCELED", finished_at=shop.now)
    newer = shop.create_job(shop.firmware("3.5.0"), devices)
    assert shop.states(newer["id"]) == {devices[0]: "QUEUED"}
    assert shop.states(older["id"]) == {devices[0]: "QUEUED"}


@pytest.mark.rule("rest-129")
@each_row(("policy", "left"), [("reject", "REJECTED"), ("supersede", "SUPERSEDED")])
def test_of_jobs_that_come_at_the_same_time_one_has_the_device(
    shop: JobEnvironment, policy: str, left: str
) -> None:
    (device,) = shop.devices(1)
    firmware = shop.firmware()
    with ThreadPoolExecutor(6) as threads:
        asked = [threads.submit(shop.create_job, firmware, [device], onNewerJob=policy) for _ in range(6)]
        jobs: list[dict[str, Any]] = [each.result() for each in asked]
    states = sorted(shop.states(each["id"])[device] for each in jobs)
    assert states == sorted(["QUEUED", *[left] * 5])


@pytest.mark.rule("rest-129")
def test_what_a_crash_left_undone_is_done_later(shop: JobEnvironment) -> None:
    devices = shop.devices(3)
    older = shop.create_job(shop.firmware(), devices, onNewerJob="supersede")
    shop.service.clock.move(seconds=1)
    newer = shop.create_job(shop.firmware("3.5.0"), devices[:2], onNewerJob="supersede")

    def undo(connection: Connection) -> None:
        mine = execution.c.job == job_number(older["id"])
        connection.execute(update(execution).where(mine).values(state="QUEUED", reason=None, code=None))
        recount_tallies(connection, job_number(older["id"]))

    shop.service.database.write_now(undo)
    for _ in range(2):
        asyncio.run(conflicts.resume_superseding(shop.service.database, shop.now, ignore_changes))
        assert shop.states(older["id"]) == {
            devices[0]: "SUPERSEDED",
            devices[1]: "SUPERSEDED",
            devices[2]: "QUEUED",
        }
        assert shop.states(newer["id"]) == dict.fromkeys(devices[:2], "QUEUED")
        assert shop.tallies(older["id"]) == {(0, "QUEUED"): 1, (0, "SUPERSEDED"): 2}


def test_a_name_that_looks_like_a_policy_is_a_name(shop: JobEnvironment) -> None:
    devices = shop.devices(1)
    name = '","onNewerJob":"reject","x":"'
    assert shop.create_job(shop.firmware(), devices, name=name)["name"] == name
    newer = shop.create_job(shop.firmware("3.5.0"), devices)
    assert shop.states(newer["id"]) == {devices[0]: "QUEUED"}
