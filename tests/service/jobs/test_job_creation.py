"""Tests of creating jobs over REST."""

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
from meshfleet.rest.job_requests import Wave
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.waves import WaveAssignment
from tests.row_tables import each_row
from tests.service.jobs.job_environment import JOBS, MINUTE, UNTOUCHED, job_number, number_of

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment

DEFAULTS: dict[str, Any] = {
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
"""Fields of a job request with their default values."""

ALL_FIELDS: dict[str, Any] = {
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
def test_a_job_shows_its_request_and_its_progress(env: JobEnvironment) -> None:
    devices, firmware = env.devices(3), env.firmware()
    before = env.now
    job = env.create_job(firmware, devices, name="Sensors")
    assert {name: job[name] for name in DEFAULTS} == DEFAULTS
    assert job["targets"] == {"deviceIds": devices, "all": False}
    assert (job["name"], job["firmwareId"]) == ("Sensors", firmware)
    assert (job["modelNumber"], job["version"]) == (env.model, "3.4.2")
    assert (job["state"], job["outcome"], job["stopCause"], job["pauseReason"]) == (
        "IN_PROGRESS",
        None,
        None,
        None,
    )
    assert job["counts"] == dict.fromkeys(ExecutionState, 0) | {"QUEUED": 3}
    assert (job["progress"], job["eta"], job["parentJobId"], job["finishedAt"]) == (0, None, None, None)
    assert job["waveStates"] == [{"name": None, "state": "RUNNING", "size": 3} | UNTOUCHED]
    assert format_millis(before) <= job["createdAt"] == job["startedAt"] <= format_millis(env.now)
    assert job["createdBy"] == "api-key: key of a operator"
    assert env.get_job(job["id"]) == job


@pytest.mark.rule("rest-115", "rest-131", "rest-128", "rest-130")
def test_all_fields_of_a_request_are_stored(env: JobEnvironment) -> None:
    job = env.create_job(env.firmware(), env.devices(4), **ALL_FIELDS)
    assert {name: job[name] for name in ALL_FIELDS} == ALL_FIELDS
    assert (job["state"], job["startedAt"]) == ("CREATED", None)
    assert [each["size"] for each in job["waveStates"]] == [1, 1, 2]
    assert [each["state"] for each in job["waveStates"]] == ["WAITING"] * 3


@pytest.mark.rule("rest-115")
def test_defaults_are_stored_with_the_job(env: JobEnvironment) -> None:
    row = env.row(env.create_job(env.firmware(), env.devices(1))["id"])
    assert msgspec.json.decode(row["body"]).items() >= DEFAULTS.items()
    assert (row["wave"], row["paced_until"], row["armed"], row["soaks_until"]) == (0, 0, "{}", None)
    assert row["queue_until"] is None  # the job runner sets the deadline
    assert 0 <= row["seed"] < 2**63


@pytest.mark.rule("rest-121", "rest-123")
def test_executions_are_queued_in_the_order_of_the_seed(env: JobEnvironment) -> None:
    gateway_mac = env.service.new_mac()
    devices = env.devices(20, gateway=gateway_mac)
    unknown = env.device(None)
    job = env.create_job(env.firmware(), [*devices, unknown], waves=[{"count": 5}, {"percent": 50}])
    row, rows = env.row(job["id"]), env.rows(job["id"])
    waves = WaveAssignment(
        row["seed"], map(number_of, [*devices, unknown]), (Wave(count=5), Wave(percent=50))
    )
    assert msgspec.json.decode(row["waves"]) == [{"name": None, "size": size} for size in (5, 6, 10)]
    for each in rows:
        assert (each["wave"], each["due"]) == waves.find_position(each["device"])
        is_known = each["device"] != number_of(unknown)
        assert each["gateway"] == (mac_to_int(gateway_mac) if is_known else None)
        assert each["from_version"] == ("3.4.1" if is_known else None)
        assert (each["state"], each["method"], each["attempt"]) == ("QUEUED", "download", 1)
        assert (each["tries"], each["progress"], each["beats"], each["version"]) == (0, 0, 0, 0)
        assert not each["is_read"]
        assert row["created_at"] - 30_000 < each["updated_at"] <= row["created_at"]
        empty = {"waiting", "code", "reason", "step", "ask", "batch", "expires", "total_until", "moved_at"}
        empty |= {"status_before", "beat_at", "started_at"}
        assert {each[name] for name in empty} == {None}
    assert env.tallies(job["id"]) == {(0, "QUEUED"): 5, (1, "QUEUED"): 6, (2, "QUEUED"): 10}


@pytest.mark.rule("rest-208")
def test_connected_devices_are_in_the_first_waves(env: JobEnvironment) -> None:
    offline, online = env.devices(20, connected=False), env.devices(3, connected=True)
    fields_set: dict[str, Any] = {"waves": [{"count": 2}, {"count": 2}]}
    executions = env.executions(env.create_job(env.firmware(), [*offline, *online], **fields_set)["id"])
    waves = [executions[each]["wave"] for each in online]
    assert sorted(waves) == ["1", "1", "2"]
    assert {executions[each]["wave"] for each in offline} == {"2", "3"}
    result = env.dry_run(env.firmware(), {"deviceIds": [*offline, *online]}, **fields_set)
    assert set(result["deviceIds"][:3]) == set(online)


def test_a_claimed_gateway_is_its_own_gateway(env: JobEnvironment) -> None:
    other = env.service.new_mac()
    device = env.device(gateway=other)
    number = number_of(device)
    claim = insert(gateway).values(device=number, claimed_at=1)
    env.service.database.write_now(lambda c: c.execute(claim))
    (row,) = env.rows(env.create_job(env.firmware(), [device])["id"])
    assert row["gateway"] == number


@pytest.mark.rule("rest-119", "rest-120", "rest-121", "rest-145")
def test_incompatible_devices_are_skipped_with_the_reason(env: JobEnvironment) -> None:
    firmware = env.firmware(hardware='["1.0.0", "1.1.0"]', min_version="3.0.0")
    valid: dict[str, Any] = {"hardware": Version(1, 0, 0)}
    expected = {
        env.device(**valid): (None, None),
        env.device("3.4.2-beta.1", **valid): (None, None),
        env.device(**valid | {"model": ModelNumber("0018")}): (
            "WRONG_MODEL",
            f"its model is 0018; the firmware is for {env.model}",
        ),
        env.device(None, hardware=Version(1, 0, 0)): (
            "TOO_OLD",
            "its version is unknown; the firmware requires 3.0.0 or newer",
        ),
        env.device(hardware=Version(2, 0, 0)): (
            "WRONG_HARDWARE",
            "its hardware is 2.0.0; the firmware is for 1.0.0, 1.1.0",
        ),
        env.device(): ("WRONG_HARDWARE", "its hardware is unknown; the firmware is for 1.0.0, 1.1.0"),
        env.device("3.4.2", **valid): ("ALREADY_THERE", None),
        env.device("3.5.0-beta.1", **valid): (
            "DOWNGRADE",
            "it runs 3.5.0-beta.1, which is newer than 3.4.2",
        ),
        env.device("2.9.9", **valid): ("TOO_OLD", "it runs 2.9.9; the firmware requires 3.0.0 or newer"),
    }
    job = env.create_job(firmware, expected)
    executions = env.executions(job["id"])
    assert {device: (each["reasonCode"], each["reason"]) for device, each in executions.items()} == expected
    for each in executions.values():
        assert each["state"] == ("QUEUED" if each["reason"] is None else "SKIPPED")
        assert each["wave"] == ("1" if each["reasonCode"] is None else None)
    assert job["counts"] == dict.fromkeys(ExecutionState, 0) | {"QUEUED": 3, "SKIPPED": 6}
    assert env.tallies(job["id"]) == {(0, "QUEUED"): 2, (-1, "QUEUED"): 1, (-1, "SKIPPED"): 6}


@pytest.mark.rule("rest-119", "rest-122")
def test_a_bundle_is_for_claimed_gateways_only(env: JobEnvironment) -> None:
    # For the devices around them, gateways request type 1, so they would find no image (firmware-17).
    claimed, leaf, unclaimed = env.device(), env.device(gateway=env.service.new_mac()), env.device()
    claim = insert(gateway).values(device=number_of(claimed), claimed_at=1)
    env.service.database.write_now(lambda c: c.execute(claim))
    firmware, devices = env.firmware(type=2), [claimed, leaf, unclaimed]
    reason = "it is not a claimed gateway; RAUC bundles (type 2) are for gateways"
    result = env.dry_run(firmware, {"deviceIds": devices})
    assert (result["eligible"], result["skipped"]) == (1, 2)
    assert [(each["code"], each["reason"]) for each in result["refusals"]] == [("WRONG_TYPE", reason)]
    executions = env.executions(env.create_job(firmware, devices)["id"])
    assert {device: (each["state"], each["reasonCode"]) for device, each in executions.items()} == {
        claimed: ("QUEUED", None),
        leaf: ("SKIPPED", "WRONG_TYPE"),
        unclaimed: ("SKIPPED", "WRONG_TYPE"),
    }


@pytest.mark.rule("rest-120")
def test_a_downgrade_needs_permission(env: JobEnvironment) -> None:
    device, firmware = env.device("4.0.0"), env.firmware()
    assert env.states(env.create_job(firmware, [device])["id"]) == {device: "SKIPPED"}
    assert env.states(env.create_job(firmware, [device], allowDowngrade=True)["id"]) == {device: "QUEUED"}


@pytest.mark.rule("rest-135", "rest-134")
def test_a_job_without_eligible_devices_is_completed_at_once(env: JobEnvironment) -> None:
    for fields_set in ({}, {"autoApply": False}, {"startAt": "2100-01-01T00:00:00Z"}):
        job = env.create_job(env.firmware(), env.devices(2, "4.0.0"), **fields_set)
        assert (job["state"], job["outcome"], job["startedAt"]) == ("COMPLETED", "NONE", None)
        assert job["finishedAt"] == job["createdAt"]
        assert (job["progress"], job["waveStates"], job["counts"]["SKIPPED"]) == (100, [], 2)


@pytest.mark.rule("rest-132")
def test_a_job_waits_to_be_applied_or_for_its_start_time(env: JobEnvironment) -> None:
    firmware, devices = env.firmware(), env.devices(1)
    future, past = format_millis(env.now + 60 * MINUTE), format_millis(env.now - MINUTE)
    for fields_set, state in (
        ({"autoApply": False}, "CREATED"),
        ({"autoApply": False, "startAt": future}, "CREATED"),
        ({"startAt": future}, "SCHEDULED"),
        ({"startAt": past}, "IN_PROGRESS"),
    ):
        job = env.create_job(firmware, devices, **fields_set)
        assert job["state"] == state
        assert (job["startedAt"] is None) == (state != "IN_PROGRESS")
        assert (env.row(job["id"])["started_at"] is None) == (state != "IN_PROGRESS")


def test_times_are_accepted_in_several_formats_and_returned_in_one(env: JobEnvironment) -> None:
    job = env.create_job(
        env.firmware(), env.devices(1), startAt="2100-01-01T02:00+02:00", deadline="2100-01-02 00:00:00,5"
    )
    assert job["startAt"] == "2100-01-01T00:00:00.000Z"
    assert job["deadline"] == "2100-01-02T00:00:00.500Z"


@pytest.mark.rule("rest-118")
@pytest.mark.parametrize("state", ["draft", "withdrawn"])
def test_a_job_needs_released_firmware(env: JobEnvironment, state: str) -> None:
    firmware = env.firmware(state=state)
    for is_dry_run in (False, True):
        response = env.post_job(firmware, {"deviceIds": env.devices(1)}, dryRun=is_dry_run)
        assert (response.status_code, response.json()["code"]) == (409, "not-released")


@each_row("firmware", ["", "fw-0", "fw-0123456789abcdef", "FW-0123456789ABCDEF", "\0", "x" * 1000])
def test_unknown_firmware_is_rejected(env: JobEnvironment, firmware: str) -> None:
    response = env.post_job(firmware, {"deviceIds": env.devices(1)})
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == ["firmwareId"]


@pytest.mark.rule("rest-122")
@each_row(
    ("fields_set", "fields"),
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
def test_an_invalid_request_is_rejected_by_field(
    env: JobEnvironment, fields_set: dict[str, Any], fields: list[str]
) -> None:
    before = env.count_rows()
    for is_dry_run in (False, True):
        response = env.post_job(
            env.firmware(), {"deviceIds": env.devices(1)}, **{"dryRun": is_dry_run} | fields_set
        )
        assert response.status_code == 400, response.text
        assert [each["field"] for each in response.json()["errors"]] == fields
    assert env.count_rows() == before


@pytest.mark.rule("rest-25")
def test_the_same_key_and_body_create_one_job(env: JobEnvironment) -> None:
    firmware, devices, key = env.firmware(), env.devices(2), str(uuid4())
    responses = [env.post_job(firmware, {"deviceIds": devices}, key, stage=stage) for stage in (False, False)]
    responses.append(env.post_job(firmware, {"deviceIds": devices}, key, rate=None, waves=[]))
    assert [response.status_code for response in responses] == [201] * 3
    assert len({response.json()["id"] for response in responses}) == 1
    assert responses[0].json() == responses[1].json() == responses[2].json()
    other = env.post_job(firmware, {"deviceIds": devices}, str(uuid4()))
    assert other.json()["id"] != responses[0].json()["id"]


@pytest.mark.rule("rest-26")
def test_the_same_key_with_another_body_is_rejected(env: JobEnvironment) -> None:
    firmware, devices, key = env.firmware(), env.devices(2), str(uuid4())
    assert env.post_job(firmware, {"deviceIds": devices}, key).status_code == 201
    before = env.count_rows()
    for response in (
        env.post_job(firmware, {"deviceIds": devices[:1]}, key),
        env.post_job(firmware, {"deviceIds": devices}, key, name="Another"),
    ):
        assert (response.status_code, response.json()["code"]) == (409, "idempotency-key-reused")
    assert env.count_rows() == before


@pytest.mark.rule("rest-25")
def test_keys_belong_to_an_account_and_a_rejected_request_does_not_use_one(env: JobEnvironment) -> None:
    firmware, devices, key = env.firmware(), env.devices(1), str(uuid4())
    assert env.post_job("fw-0", {"deviceIds": devices}, key).status_code == 400
    own = env.post_job(firmware, {"deviceIds": devices}, key)
    body = {"name": "A job", "firmwareId": firmware, "targets": {"deviceIds": devices}}
    others = env.service.admin.post(JOBS, json=body, headers={"Idempotency-Key": key})
    assert (own.status_code, others.status_code) == (201, 201)
    assert own.json()["id"] != others.json()["id"]
    for invalid_key in ("", "a b", "x" * 256):
        assert env.post_job(firmware, {"deviceIds": devices}, invalid_key).status_code == 400


@pytest.mark.rule("rest-25")
def test_concurrent_requests_with_the_same_key_create_one_job(env: JobEnvironment) -> None:
    firmware, devices, key = env.firmware(), env.devices(5), str(uuid4())
    before = env.count_rows()
    with ThreadPoolExecutor(8) as threads:
        futures = [threads.submit(env.post_job, firmware, {"deviceIds": devices}, key) for _ in range(16)]
        responses = [each.result() for each in futures]
    assert {response.status_code for response in responses} == {201}
    assert len({response.json()["id"] for response in responses}) == 1
    after = env.count_rows()
    assert (after[0] - before[0], after[1] - before[1], after[2] - before[2]) == (1, 0, 5)


def test_a_new_job_is_in_the_audit_log_and_has_a_first_transition(env: JobEnvironment) -> None:
    job = env.create_job(env.firmware(), env.devices(3), name="Noted")
    page = env.service.admin.get("/api/v1/audit", params={"Target": job["id"]}).json()
    (row,) = page["items"]
    assert (row["action"], row["actor"]) == ("job.create", job["createdBy"])
    assert row["detail"] == {"name": "Noted", "firmware": job["firmwareId"], "devices": 3}
    assert env.transitions(job["id"]) == [(None, "IN_PROGRESS", "the job was created")]


def test_job_numbers_increase(env: JobEnvironment) -> None:
    firmware, devices = env.firmware(), env.devices(1)
    numbers = [job_number(env.create_job(firmware, devices)["id"]) for _ in range(3)]
    assert numbers == sorted(set(numbers))


def test_a_viewer_cannot_create_a_job(env: JobEnvironment) -> None:
    body = {"name": "A job", "firmwareId": env.firmware(), "targets": {"deviceIds": env.devices(1)}}
    assert env.service.viewer.post(JOBS, json=body).status_code == 403
