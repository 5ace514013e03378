"""Making jobs over REST."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec
import pytest
from sqlalchemy import insert

from meshfleet.db.tables import gateway
from meshfleet.protocol.ids import ModelNumber, Version, mac_to_int
from meshfleet.protocol.times import format_millis
from meshfleet.rest import ExecutionState, Wave
from meshfleet.service.jobs.waves import WaveAssignment
from tests.row_tables import each_row
from tests.service.jobs.job_environment import JOBS, MINUTE, UNTOUCHED, job_number, number_of

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

AS_IT_IS_UNLESS_SET: dict[str, Any] = {
    "stage": False,
    "allowDowngrade": False,
    "method": None,
    "autoApply": True,
    "dryRun": False,
    "startAt": None,
    "deadline": None,
    "waves": [],
    "gate": {"successPercent": 0, "soakMinutes": 0, "pause": False},
    "concurrency": {"perJob": None, "perGateway": 1},
    "rate": None,
    "abort": [],
    "retry": {"max": 2, "backoffSeconds": 60},
    "timeouts": {"queueMinutes": 10_080, "stepMinutes": 10, "totalMinutes": None},
    "health": {"heartbeats": 3},
    "onNewerJob": "queue",
}
"""What a wave tells before anything has happened."""

SET: dict[str, Any] = {
    "stage": True,
    "allowDowngrade": True,
    "method": "broadcast",
    "autoApply": False,
    "dryRun": False,
    "startAt": "2100-01-01T00:00:00.000Z",
    "deadline": "2100-02-01T00:00:00.000Z",
    "waves": [
        {"name": "canary", "count": 1, "percent": None},
        {"name": None, "count": None, "percent": 50.0},
    ],
    "gate": {"successPercent": 95.0, "soakMinutes": 10.0, "pause": True},
    "concurrency": {"perJob": 100, "perGateway": None},
    "rate": {"perMinute": 100},
    "abort": [{"type": "FAILED", "minExecuted": 10, "percent": 20.0, "action": "CANCEL"}],
    "retry": {"max": 2, "backoffSeconds": 30.0},
    "timeouts": {"queueMinutes": 5.0, "stepMinutes": 4.0, "totalMinutes": 300.0},
    "health": {"heartbeats": 0},
    "onNewerJob": "reject",
}


@pytest.mark.rule("rest-115", "rest-121", "rest-124", "rest-125", "rest-126", "rest-127", "rest-131")
def test_a_job_is_what_it_was_made_of_and_how_it_goes(shop: JobEnvironment) -> None:
    devices, firmware = shop.devices(3), shop.firmware()
    before = shop.now
    job = shop.create_job(firmware, devices, name="Sensors")
    assert {name: job[name] for name in AS_IT_IS_UNLESS_SET} == AS_IT_IS_UNLESS_SET
    assert job["targets"] == {"deviceIds": devices, "all": False}
    assert (job["name"], job["firmwareId"]) == ("Sensors", firmware)
    assert (job["modelNumber"], job["version"]) == (shop.model, "3.4.2")
    assert (job["state"], job["outcome"], job["stopCause"], job["pauseReason"]) == (
        "IN_PROGRESS",
        None,
        None,
        None,
    )
    assert job["counts"] == dict.fromkeys(ExecutionState, 0) | {"QUEUED": 3}
    assert (job["progress"], job["eta"], job["parentJobId"], job["finishedAt"]) == (0, None, None, None)
    assert job["waveStates"] == [{"name": None, "state": "RUNNING", "size": 3} | UNTOUCHED]
    assert format_millis(before) <= job["createdAt"] == job["startedAt"] <= format_millis(shop.now)
    assert job["createdBy"] == "api-key: key of a operator"
    assert shop.get_job(job["id"]) == job


@pytest.mark.rule("rest-115", "rest-131", "rest-128", "rest-130")
def test_all_that_is_ordered_is_kept(shop: JobEnvironment) -> None:
    job = shop.create_job(shop.firmware(), shop.devices(4), **SET)
    assert {name: job[name] for name in SET} == SET
    assert (job["state"], job["startedAt"]) == ("CREATED", None)
    assert [each["size"] for each in job["waveStates"]] == [1, 1, 2]
    assert [each["state"] for each in job["waveStates"]] == ["WAITING"] * 3


@pytest.mark.rule("rest-115")
def test_what_holds_unless_set_is_written_down_too(shop: JobEnvironment) -> None:
    row = shop.row(shop.create_job(shop.firmware(), shop.devices(1))["id"])
    assert msgspec.json.decode(row["body"]).items() >= AS_IT_IS_UNLESS_SET.items()
    assert (row["wave"], row["paced_until"], row["armed"], row["soaks_until"]) == (0, 0, "{}", None)
    assert row["queue_until"] is None  # its clock is wound up by who runs it
    assert 0 <= row["seed"] < 2**63


@pytest.mark.rule("rest-121", "rest-123")
def test_executions_are_queued_in_the_order_of_the_seed(shop: JobEnvironment) -> None:
    behind = shop.service.new_mac()
    devices = shop.devices(20, gateway=behind)
    unknown = shop.device(None)
    job = shop.create_job(shop.firmware(), [*devices, unknown], waves=[{"count": 5}, {"percent": 50}])
    row, rows = shop.row(job["id"]), shop.rows(job["id"])
    waves = WaveAssignment(
        row["seed"], map(number_of, [*devices, unknown]), (Wave(count=5), Wave(percent=50))
    )
    assert msgspec.json.decode(row["waves"]) == [{"name": None, "size": size} for size in (5, 6, 10)]
    for each in rows:
        assert (each["wave"], each["due"]) == waves.find_position(each["device"])
        known = each["device"] != number_of(unknown)
        assert each["gateway"] == (mac_to_int(behind) if known else None)
        assert each["from_version"] == ("3.4.1" if known else None)
        assert (each["state"], each["method"], each["attempt"]) == ("QUEUED", "download", 1)
        assert (each["tries"], each["progress"], each["beats"], each["version"]) == (0, 0, 0, 0)
        assert not each["is_read"]
        assert row["created_at"] - 30_000 < each["updated_at"] <= row["created_at"]
        empty = {"waiting", "code", "reason", "step", "ask", "batch", "expires", "total_until", "moved_at"}
        empty |= {"status_before", "beat_at", "started_at"}
        assert {each[name] for name in empty} == {None}
    assert shop.tallies(job["id"]) == {(0, "QUEUED"): 5, (1, "QUEUED"): 6, (2, "QUEUED"): 10}


@pytest.mark.rule("rest-208")
def test_who_is_connected_goes_first(shop: JobEnvironment) -> None:
    away, there = shop.devices(20, connected=False), shop.devices(3, connected=True)
    order: dict[str, Any] = {"waves": [{"count": 2}, {"count": 2}]}
    executions = shop.executions(shop.create_job(shop.firmware(), [*away, *there], **order)["id"])
    waves = [executions[each]["wave"] for each in there]
    assert sorted(waves) == ["1", "1", "2"]
    assert {executions[each]["wave"] for each in away} == {"2", "3"}
    told = shop.dry_run(shop.firmware(), {"deviceIds": [*away, *there]}, **order)
    assert set(told["deviceIds"][:3]) == set(there)


def test_a_claimed_gateway_is_reached_through_itself(shop: JobEnvironment) -> None:
    other = shop.service.new_mac()
    device = shop.device(gateway=other)
    number = number_of(device)
    claim = insert(gateway).values(device=number, claimed_at=1)
    shop.service.database.write_now(lambda c: c.execute(claim))
    (row,) = shop.rows(shop.create_job(shop.firmware(), [device])["id"])
    assert row["gateway"] == number


@pytest.mark.rule("rest-119", "rest-120", "rest-121", "rest-145")
def test_misfits_are_skipped_with_the_reason(shop: JobEnvironment) -> None:
    firmware = shop.firmware(hardware='["1.0.0", "1.1.0"]', min_version="3.0.0")
    right: dict[str, Any] = {"hardware": Version(1, 0, 0)}
    expected = {
        shop.device(**right): (None, None),
        shop.device("3.4.2-beta.1", **right): (None, None),
        shop.device(**right | {"model": ModelNumber("0018")}): (
            "WRONG_MODEL",
            f"its model is 0018; the firmware is for {shop.model}",
        ),
        shop.device(None, hardware=Version(1, 0, 0)): (
            "TOO_OLD",
            "its version is unknown; the firmware requires 3.0.0 or newer",
        ),
        shop.device(hardware=Version(2, 0, 0)): (
            "WRONG_HARDWARE",
            "its hardware is 2.0.0; the firmware is for 1.0.0, 1.1.0",
        ),
        shop.device(): ("WRONG_HARDWARE", "its hardware is unknown; the firmware is for 1.0.0, 1.1.0"),
        shop.device("3.4.2", **right): ("ALREADY_THERE", None),
        shop.device("3.5.0-beta.1", **right): (
            "DOWNGRADE",
            "it runs 3.5.0-beta.1, which is newer than 3.4.2",
        ),
        shop.device("2.9.9", **right): ("TOO_OLD", "it runs 2.9.9, and the firmware needs 3.0.0 or newer"),
    }
    job = shop.create_job(firmware, expected)
    executions = shop.executions(job["id"])
    assert {device: (each["reasonCode"], each["reason"]) for device, each in executions.items()} == expected
    for each in executions.values():
        assert each["state"] == ("QUEUED" if each["reason"] is None else "SKIPPED")
        assert each["wave"] == ("1" if each["reasonCode"] is None else None)
    assert job["counts"] == dict.fromkeys(ExecutionState, 0) | {"QUEUED": 3, "SKIPPED": 6}
    assert shop.tallies(job["id"]) == {(0, "QUEUED"): 2, (-1, "QUEUED"): 1, (-1, "SKIPPED"): 6}


@pytest.mark.rule("rest-120")
def test_a_downgrade_is_made_by_who_allows_it(shop: JobEnvironment) -> None:
    device, firmware = shop.device("4.0.0"), shop.firmware()
    assert shop.states(shop.create_job(firmware, [device])["id"]) == {device: "SKIPPED"}
    assert shop.states(shop.create_job(firmware, [device], allowDowngrade=True)["id"]) == {device: "QUEUED"}


@pytest.mark.rule("rest-135", "rest-134")
def test_a_job_without_anybody_to_update_is_over_at_once(shop: JobEnvironment) -> None:
    for order in ({}, {"autoApply": False}, {"startAt": "2100-01-01T00:00:00Z"}):
        job = shop.create_job(shop.firmware(), shop.devices(2, "4.0.0"), **order)
        assert (job["state"], job["outcome"], job["startedAt"]) == ("COMPLETED", "NONE", None)
        assert job["finishedAt"] == job["createdAt"]
        assert (job["progress"], job["waveStates"], job["counts"]["SKIPPED"]) == (100, [], 2)


@pytest.mark.rule("rest-132")
def test_a_job_waits_to_be_applied_or_for_its_time(shop: JobEnvironment) -> None:
    firmware, devices = shop.firmware(), shop.devices(1)
    ahead, past = format_millis(shop.now + 60 * MINUTE), format_millis(shop.now - MINUTE)
    for order, state in (
        ({"autoApply": False}, "CREATED"),
        ({"autoApply": False, "startAt": ahead}, "CREATED"),
        ({"startAt": ahead}, "SCHEDULED"),
        ({"startAt": past}, "IN_PROGRESS"),
    ):
        job = shop.create_job(firmware, devices, **order)
        assert job["state"] == state
        assert (job["startedAt"] is None) == (state != "IN_PROGRESS")
        assert (shop.row(job["id"])["started_at"] is None) == (state != "IN_PROGRESS")


def test_times_are_read_in_any_spelling_and_told_in_one(shop: JobEnvironment) -> None:
    job = shop.create_job(
        shop.firmware(), shop.devices(1), startAt="2100-01-01T02:00+02:00", deadline="2100-01-02 00:00:00,5"
    )
    assert job["startAt"] == "2100-01-01T00:00:00.000Z"
    assert job["deadline"] == "2100-01-02T00:00:00.500Z"


@pytest.mark.rule("rest-118")
@pytest.mark.parametrize("state", ["draft", "withdrawn"])
def test_only_released_firmware_is_brought_to_devices(shop: JobEnvironment, state: str) -> None:
    firmware = shop.firmware(state=state)
    for dry in (False, True):
        answer = shop.post_job(firmware, {"deviceIds": shop.devices(1)}, dryRun=dry)
        assert (answer.status_code, answer.json()["code"]) == (409, "not-released")


@each_row("firmware", ["", "fw-0", "fw-0123456789abcdef", "FW-0123456789ABCDEF", "\0", "x" * 1000])
def test_unknown_firmware_is_a_mistake(shop: JobEnvironment, firmware: str) -> None:
    answer = shop.post_job(firmware, {"deviceIds": shop.devices(1)})
    assert answer.status_code == 400
    assert [each["field"] for each in answer.json()["errors"]] == ["firmwareId"]


@pytest.mark.rule("rest-122")
@each_row(
    ("order", "fields"),
    [
        ({"name": ""}, ["name"]),
        ({"name": "x" * 201}, ["name"]),
        ({"name": None}, ["name"]),
        ({"firmwareId": None}, ["firmwareId"]),
        ({"stage": "yes"}, ["stage"]),
        ({"allowDowngrade": 1}, ["allowDowngrade"]),
        ({"method": "pigeon"}, ["method"]),
        ({"autoApply": None}, ["autoApply"]),
        ({"startAt": "tomorrow"}, ["startAt"]),
        ({"startAt": 5}, ["startAt"]),
        ({"deadline": "2020-13-01T00:00"}, ["deadline"]),
        ({"deadline": "2020-01-01T00:00"}, ["deadline"]),
        ({"startAt": "2100-01-02T00:00", "deadline": "2100-01-01T00:00"}, ["deadline"]),
        ({"startAt": "2100-01-01T00:00", "deadline": "2100-01-01T00:00"}, ["deadline"]),
        ({"startAt": "x", "deadline": "x", "waves": [{}]}, ["waves[0]", "startAt", "deadline"]),
        ({"waves": [{"count": 1, "percent": 1}]}, ["waves[0]"]),
        ({"waves": [{"count": 1}, {"name": "x"}]}, ["waves[1]"]),
        ({"waves": [{"percent": 50}, {"percent": 20}]}, ["waves[1]"]),
        ({"waves": [{"percent": 101}]}, ["waves[0].percent"]),
        ({"waves": [{"percent": 0}]}, ["waves[0].percent"]),
        ({"waves": [{"count": 0}]}, ["waves[0].count"]),
        ({"waves": [{"count": 1}] * 51}, ["waves"]),
        ({"gate": {"successPercent": 101}}, ["gate.successPercent"]),
        ({"gate": {"soakMinutes": -1}}, ["gate.soakMinutes"]),
        ({"concurrency": {"perJob": 0}}, ["concurrency.perJob"]),
        ({"concurrency": {"perGateway": 1.5}}, ["concurrency.perGateway"]),
        ({"rate": {"perMinute": 60_001}}, ["rate.perMinute"]),
        ({"rate": {"perMinute": 0}}, ["rate.perMinute"]),
        ({"abort": [{"percent": 0}]}, ["abort[0].percent"]),
        ({"abort": [{"percent": 5, "action": "STOP"}]}, ["abort[0].action"]),
        ({"abort": [{"percent": 5}] * 11}, ["abort"]),
        ({"retry": {"max": 11}}, ["retry.max"]),
        ({"retry": {"max": -1}}, ["retry.max"]),
        ({"retry": {"backoffSeconds": 21_601}}, ["retry.backoffSeconds"]),
        ({"timeouts": {"queueMinutes": 0}}, ["timeouts.queueMinutes"]),
        ({"timeouts": {"stepMinutes": 0}}, ["timeouts.stepMinutes"]),
        ({"timeouts": {"totalMinutes": 0.5}}, ["timeouts.totalMinutes"]),
        ({"health": {"heartbeats": 101}}, ["health.heartbeats"]),
        ({"onNewerJob": "ignore"}, ["onNewerJob"]),
        ({"campaign": "x"}, ["campaign"]),
    ],
)
def test_a_wrong_order_is_refused_by_the_field(
    shop: JobEnvironment, order: dict[str, Any], fields: list[str]
) -> None:
    before = shop.count_rows()
    for dry in (False, True):
        answer = shop.post_job(shop.firmware(), {"deviceIds": shop.devices(1)}, **{"dryRun": dry} | order)
        assert answer.status_code == 400, answer.text
        assert [each["field"] for each in answer.json()["errors"]] == fields
    assert shop.count_rows() == before


@pytest.mark.rule("rest-25")
def test_the_same_key_and_body_make_one_job(shop: JobEnvironment) -> None:
    firmware, devices, key = shop.firmware(), shop.devices(2), str(uuid4())
    answers = [shop.post_job(firmware, {"deviceIds": devices}, key, stage=stage) for stage in (False, False)]
    answers.append(shop.post_job(firmware, {"deviceIds": devices}, key, rate=None, waves=[]))
    assert [answer.status_code for answer in answers] == [201] * 3
    assert len({answer.json()["id"] for answer in answers}) == 1
    assert answers[0].json() == answers[1].json() == answers[2].json()
    other = shop.post_job(firmware, {"deviceIds": devices}, str(uuid4()))
    assert other.json()["id"] != answers[0].json()["id"]


@pytest.mark.rule("rest-26")
def test_the_same_key_with_another_body_is_refused(shop: JobEnvironment) -> None:
    firmware, devices, key = shop.firmware(), shop.devices(2), str(uuid4())
    assert shop.post_job(firmware, {"deviceIds": devices}, key).status_code == 201
    before = shop.count_rows()
    for answer in (
        shop.post_job(firmware, {"deviceIds": devices[:1]}, key),
        shop.post_job(firmware, {"deviceIds": devices}, key, name="Another"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "idempotency-key-reused")
    assert shop.count_rows() == before


@pytest.mark.rule("rest-25")
def test_keys_belong_to_who_used_them_and_a_mistake_does_not_use_one_up(shop: JobEnvironment) -> None:
    firmware, devices, key = shop.firmware(), shop.devices(1), str(uuid4())
    assert shop.post_job("fw-0", {"deviceIds": devices}, key).status_code == 400
    mine = shop.post_job(firmware, {"deviceIds": devices}, key)
    body = {"name": "A job", "firmwareId": firmware, "targets": {"deviceIds": devices}}
    theirs = shop.service.admin.post(JOBS, json=body, headers={"Idempotency-Key": key})
    assert (mine.status_code, theirs.status_code) == (201, 201)
    assert mine.json()["id"] != theirs.json()["id"]
    for wrong in ("", "a b", "x" * 256):
        assert shop.post_job(firmware, {"deviceIds": devices}, wrong).status_code == 400


@pytest.mark.rule("rest-25")
def test_the_same_key_at_the_same_time_makes_one_job(shop: JobEnvironment) -> None:
    firmware, devices, key = shop.firmware(), shop.devices(5), str(uuid4())
    before = shop.count_rows()
    with ThreadPoolExecutor(8) as threads:
        asked = [threads.submit(shop.post_job, firmware, {"deviceIds": devices}, key) for _ in range(16)]
        answers = [each.result() for each in asked]
    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1
    after = shop.count_rows()
    assert (after[0] - before[0], after[1] - before[1], after[2] - before[2]) == (1, 0, 5)


def test_a_new_job_is_in_the_audit_log_and_its_history_begins(shop: JobEnvironment) -> None:
    job = shop.create_job(shop.firmware(), shop.devices(3), name="Noted")
    page = shop.service.admin.get("/api/v1/audit", params={"Target": job["id"]}).json()
    (row,) = page["items"]
    assert (row["action"], row["actor"]) == ("job.create", job["createdBy"])
    assert row["detail"] == {"name": "Noted", "firmware": job["firmwareId"], "devices": 3}
    assert shop.transitions(job["id"]) == [(None, "IN_PROGRESS", "the job was created")]


def test_numbers_of_jobs_grow(shop: JobEnvironment) -> None:
    firmware, devices = shop.firmware(), shop.devices(1)
    numbers = [job_number(shop.create_job(firmware, devices)["id"]) for _ in range(3)]
    assert numbers == sorted(set(numbers))


def test_who_may_only_look_makes_no_job(shop: JobEnvironment) -> None:
    body = {"name": "A job", "firmwareId": shop.firmware(), "targets": {"deviceIds": shop.devices(1)}}
    assert shop.service.viewer.post(JOBS, json=body).status_code == 403
