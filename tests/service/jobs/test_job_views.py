"""Tests of jobs and executions as the REST API shows them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import insert, update

from meshfleet.db import bulk
from meshfleet.db.tables import evidence, transition
from meshfleet.protocol.times import format_millis
from meshfleet.rest.jobs import ExecutionDetail, ExecutionPage, JobPage
from meshfleet.service import clock
from tests.row_tables import each_row
from tests.service.jobs.job_environment import JOBS, MINUTE, job_number, number_of

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment


def list_all_pages(env: JobEnvironment, path: str, size: int, **query: Any) -> list[dict[str, Any]]:
    """Return all items of a list, page by page."""
    items: list[dict[str, Any]] = []
    token: str | None = None
    for _ in range(100):
        page_query: dict[str, str] = {} if token is None else {"NextToken": token}
        page = env.service.viewer.get(path, params={"MaxResults": size} | query | page_query)
        assert page.status_code == 200, page.text
        items += page.json()["items"]
        token = page.json()["nextToken"]
        if token is None:
            return items
    raise AssertionError("the list has too many pages")


@pytest.mark.rule("rest-136", "rest-16", "rest-20")
def test_jobs_are_listed_newest_first_page_by_page(env: JobEnvironment) -> None:
    firmware, devices = env.firmware(), env.devices(1)
    jobs = [env.create_job(firmware, devices) for _ in range(5)]
    other = env.create_job(env.firmware("4.0.0"), devices)
    listed = list_all_pages(env, JOBS, 2, FirmwareId=firmware)
    assert listed == list(reversed(jobs))
    assert [each["id"] for each in list_all_pages(env, JOBS, 2)][:6] == [
        other["id"],
        *(each["id"] for each in listed),
    ]
    page = env.service.viewer.get(JOBS, params={"FirmwareId": firmware}).content
    assert len(msgspec.json.decode(page, type=JobPage).items) == 5


@pytest.mark.rule("rest-136")
def test_jobs_are_selected_by_state_and_firmware(env: JobEnvironment) -> None:
    firmware, devices = env.firmware(), env.devices(1)
    jobs = {
        state: env.create_job(firmware, devices)["id"] for state in ("PAUSED", "CANCELING", "IN_PROGRESS")
    }
    for state, job in jobs.items():
        env.set_job(job, state=state)
    for states in (["PAUSED"], ["PAUSED", "CANCELING"], ["COMPLETED"], []):
        items = list_all_pages(env, JOBS, 10, FirmwareId=firmware, State=states)
        expected = [job for state, job in jobs.items() if state in states or not states]
        assert [each["id"] for each in items] == expected[::-1]
    assert list_all_pages(env, JOBS, 10, FirmwareId="fw-none") == []


@each_row(
    ("query", "field"),
    [
        ({"State": "DONE"}, "State"),
        ({"State": "paused"}, "State"),
        ({"State": ["PAUSED", ""]}, "State"),
        ({"Firmware": "x"}, "Firmware"),
        ({"FirmwareId": ["x", "y"]}, "FirmwareId"),
        ({"MaxResults": 0}, "MaxResults"),
    ],
)
def test_an_invalid_filter_of_jobs_is_reported(
    env: JobEnvironment, query: dict[str, Any], field: str
) -> None:
    response = env.service.viewer.get(JOBS, params=query)
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == [field]


@pytest.mark.rule("rest-19")
def test_a_page_token_is_valid_only_for_its_filters(env: JobEnvironment) -> None:
    job = env.create_job(env.firmware(), env.devices(2))
    path = f"{JOBS}/{job['id']}/executions"
    token = env.service.viewer.get(path, params={"MaxResults": 1}).json()["nextToken"]
    for query in ({"State": "QUEUED"}, {"Gateway": "c0ffee000001"}):
        response = env.service.viewer.get(path, params={"NextToken": token} | query)
        assert (response.status_code, response.json()["code"]) == (400, "invalid-token")


@pytest.mark.rule("rest-131", "rest-121")
def test_progress_is_the_mean_of_all_executions_in_waves(env: JobEnvironment) -> None:
    devices = [*env.devices(4), *env.devices(1, "4.0.0")]
    job = env.create_job(env.firmware(), devices)["id"]
    assert env.get_job(job)["progress"] == 0
    env.set_execution(job, devices[0], state="TRANSFERRING", progress=40)
    env.set_execution(job, devices[1], state="CONFIRMING", progress=100)
    assert env.get_job(job)["progress"] == 35
    env.set_execution(job, devices[2], state="FAILED", progress=10)
    assert env.get_job(job)["progress"] == 60
    counts = env.get_job(job)["counts"]
    assert {state: count for state, count in counts.items() if count} == {
        "TRANSFERRING": 1,
        "CONFIRMING": 1,
        "FAILED": 1,
        "QUEUED": 1,
        "SKIPPED": 1,
    }


@pytest.mark.rule("rest-131")
def test_the_eta_follows_from_the_pace_so_far(env: JobEnvironment) -> None:
    devices = [*env.devices(4), *env.devices(3, "3.4.2")]
    job = env.create_job(env.firmware(), devices)["id"]
    env.set_job(job, started_at=env.now - 10 * MINUTE)
    assert env.get_job(job)["eta"] is None
    env.set_execution(job, devices[0], state="SUCCEEDED")
    env.set_execution(job, devices[1], state="TRANSFERRING", progress=50)
    before = env.now
    eta = env.get_job(job)["eta"]
    assert format_millis(before + 29 * MINUTE) < eta < format_millis(env.now + 31 * MINUTE)
    env.set_job(job, state="PAUSED")
    assert env.get_job(job)["eta"] is None


@pytest.mark.rule("rest-209")
def test_there_is_no_eta_while_no_update_makes_progress(env: JobEnvironment) -> None:
    devices = env.devices(4)
    job = env.create_job(env.firmware(), devices, stage=True)["id"]
    env.set_job(job, started_at=env.now - 10 * MINUTE)
    env.set_execution(job, devices[0], state="SUCCEEDED")
    env.set_execution(job, devices[1], waiting="gateway-offline")
    assert env.get_job(job)["eta"] is None
    env.set_execution(job, devices[2], state="STAGED")
    assert env.get_job(job)["eta"] is None
    env.set_execution(job, devices[2], state="CONFIRMING")
    assert env.get_job(job)["eta"] is not None


@pytest.mark.rule("rest-209")
def test_the_eta_ignores_the_time_of_a_pause(env: JobEnvironment) -> None:
    devices = env.devices(6)
    job = env.create_job(env.firmware(), devices)["id"]
    env.set_job(job, started_at=env.now - 600 * MINUTE)
    for device in devices[:2]:
        env.set_execution(job, device, state="SUCCEEDED")
    env.set_execution(job, devices[2], state="TRANSFERRING")
    assert env.run_command("pause", job).status_code == 200
    assert env.run_command("resume", job).status_code == 200
    resumed = (transition.c.job == job_number(job)) & (transition.c.after == "IN_PROGRESS")
    earlier = update(transition).where(resumed).values(time=env.now - 10 * MINUTE)
    env.service.database.write_now(lambda c: c.execute(earlier))
    assert env.get_job(job)["eta"] is None  # nothing has ended since
    env.set_execution(job, devices[3], state="FAILED")
    before = env.now
    for eta in (env.get_job(job)["eta"], env.service.viewer.get(JOBS).json()["items"][0]["eta"]):
        assert format_millis(before + 29 * MINUTE) < eta < format_millis(env.now + 31 * MINUTE)


@pytest.mark.rule("rest-199")
def test_waves_show_their_states(env: JobEnvironment) -> None:
    devices = env.devices(3)
    waves = [{"name": "canary", "count": 1}, {"count": 1}, {"name": "rest", "percent": 100}]
    job = env.create_job(env.firmware(), devices, waves=waves, gate={"successPercent": 90})["id"]
    first = {row["wave"]: f"bmac-{row['device']:012x}" for row in env.rows(job)}

    def states() -> list[str]:
        return [each["state"] for each in env.get_job(job)["waveStates"]]

    assert states() == ["RUNNING", "WAITING", "WAITING"]
    env.set_job(job, soaks_until=env.now)
    assert states() == ["SOAKING", "WAITING", "WAITING"]
    soaking = [each["soaksUntil"] for each in env.get_job(job)["waveStates"]]
    assert soaking[0] is not None
    assert soaking[1:] == [None, None]
    env.set_job(job, state="PAUSED", pause_reason="GATE")
    assert states() == ["HELD", "WAITING", "WAITING"]
    assert env.get_job(job)["waveStates"][0]["soaksUntil"] is None
    env.set_job(job, pause_reason="GATE_FAILED")
    assert states() == ["FAILED", "WAITING", "WAITING"]
    env.set_job(job, pause_reason="USER", soaks_until=None)
    assert states() == ["RUNNING", "WAITING", "WAITING"]
    env.set_execution(job, first[0], state="SUCCEEDED")
    env.set_job(job, wave=1)
    assert states() == ["PASSED", "RUNNING", "WAITING"]
    env.set_execution(job, first[1], state="FAILED")
    env.set_job(job, wave=2)
    assert states() == ["PASSED", "FAILED", "RUNNING"]
    env.set_execution(job, first[2], state="CANCELED")
    env.set_job(job, state="CANCELED", finished_at=env.now)
    assert states() == ["PASSED", "FAILED", "SKIPPED"]
    fields = ("name", "size", "succeeded", "failed", "soaksUntil")
    assert [tuple(each[field] for field in fields) for each in env.get_job(job)["waveStates"]] == [
        ("canary", 1, 1, 0, None),
        (None, 1, 0, 1, None),
        ("rest", 1, 0, 0, None),
    ]


@pytest.mark.rule("rest-199", "rest-133")
def test_deadlines_are_shown_by_the_wall_clock(env: JobEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    (device,) = env.devices(1)
    job = env.create_job(env.firmware(), [device])["id"]
    until = env.now + MINUTE
    env.set_job(job, soaks_until=until)
    env.set_execution(job, device, waiting="back-off", due=until)

    def read_times() -> tuple[str, str]:
        return env.get_job(job)["waveStates"][0]["soaksUntil"], env.executions(job)[device]["waitingFor"]

    assert read_times() == (format_millis(until), f"back-off: next attempt at {format_millis(until)}")
    clock_offset = 60 * MINUTE  # the clock of the machine is set
    monkeypatch.setattr(clock.monotonic, "_tick", lambda: 0.0)
    monkeypatch.setattr(clock.monotonic, "_now", lambda: clock.monotonic() + clock_offset)
    at = format_millis(until + clock_offset)
    assert read_times() == (at, f"back-off: next attempt at {at}")


@pytest.mark.rule("rest-140", "rest-16", "rest-20")
def test_executions_are_listed_by_device_page_by_page(env: JobEnvironment) -> None:
    one, other = env.service.new_mac(), env.service.new_mac()
    here, there = env.devices(4, gateway=one), env.devices(3, gateway=other)
    job = env.create_job(env.firmware(), [*here, *there])["id"]
    path = f"{JOBS}/{job}/executions"
    devices = sorted([*here, *there])
    assert [each["deviceId"] for each in list_all_pages(env, path, 2)] == devices
    assert [each["deviceId"] for each in list_all_pages(env, path, 2, Gateway=one)] == here
    assert [
        each["deviceId"] for each in list_all_pages(env, path, 7, Gateway=f"bmac-{other.upper()}")
    ] == there
    for device in here[:2]:
        env.set_execution(job, device, state="FAILED")
    env.set_execution(job, there[0], state="SUCCEEDED")
    assert [each["deviceId"] for each in list_all_pages(env, path, 1, State="FAILED")] == here[:2]
    assert [
        each["deviceId"] for each in list_all_pages(env, path, 2, State=["FAILED", "SUCCEEDED"])
    ] == sorted([*here[:2], there[0]])
    assert list_all_pages(env, path, 2, State="FAILED", Gateway=other) == []
    env.set_execution(job, here[0], code="STALLED")
    assert [
        each["deviceId"] for each in list_all_pages(env, path, 2, ReasonCode=["STALLED", "BATTERY"])
    ] == here[:1]
    assert list_all_pages(env, path, 2, ReasonCode="BATTERY") == []
    selected = [there[1], here[3], env.device()]
    assert [each["deviceId"] for each in list_all_pages(env, path, 1, Ids=selected)] == sorted(selected[:2])
    assert list_all_pages(env, path, 2, Ids=selected, State="FAILED") == []
    msgspec.json.decode(env.service.viewer.get(path).content, type=ExecutionPage)


@pytest.mark.rule("rest-140", "rest-133", "rest-199")
def test_an_execution_shows_all_its_fields(env: JobEnvironment) -> None:
    gateway = env.service.new_mac()
    (device,) = env.devices(1, "3.4.1-beta.2", gateway=gateway)
    job = env.create_job(env.firmware("3.4.2-beta.1"), [device], waves=[{"name": "canary", "count": 1}])
    body = env.executions(job["id"])[device]
    assert body == {
        "deviceId": device,
        "state": "QUEUED",
        "attempt": 1,
        "progress": 0,
        "waitingFor": "rate: it is waiting for its turn",
        "reason": None,
        "reasonCode": None,
        "method": "download",
        "wave": "canary",
        "gateway": gateway,
        "startedAt": None,
        "updatedAt": body["updatedAt"],
        "fromVersion": "3.4.1-beta.2",
        "toVersion": "3.4.2-beta.1",
    }
    env.set_execution(job["id"], device, waiting="gateway-offline")
    waiting = "gateway-offline: its gateway is not connected"
    assert env.executions(job["id"])[device]["waitingFor"] == waiting
    env.run_command("pause", job["id"])
    assert env.executions(job["id"])[device]["waitingFor"] == "paused: the job is paused"
    env.set_execution(job["id"], device, state="TRANSFERRING", waiting=None, progress=7, started_at=env.now)
    transferring = env.executions(job["id"])[device]
    assert (transferring["waitingFor"], transferring["progress"]) == ("the image is being transferred", 7)
    assert transferring["startedAt"] is not None
    env.set_execution(job["id"], device, state="FAILED", code="STALLED", reason="no progress")
    ended = env.executions(job["id"])[device]
    assert (ended["waitingFor"], ended["reasonCode"], ended["reason"]) == (None, "STALLED", "no progress")


@pytest.mark.rule("rest-141", "rest-143")
def test_an_execution_shows_its_transitions_with_evidence_and_late_evidence(env: JobEnvironment) -> None:
    (device,) = env.devices(1)
    job = env.create_job(env.firmware(), [device])
    number, device_number = job_number(job["id"]), number_of(device)

    def insert_evidence(kind: str, **content: Any) -> int:
        content_json = msgspec.json.encode(content).decode()
        return env.service.database.write_now(
            lambda c: bulk.insert_row(c, evidence, number, device_number, 1, 5, kind, content_json)
        )

    def insert_transition(before: str, after: str, proof: int | None) -> None:
        row = insert(transition).values(
            job=number,
            device=device_number,
            time=6,
            before=before,
            after=after,
            attempt=1,
            version=1,
            actor="program: service",
            cause="a cause",
            evidence=proof,
        )
        env.service.database.write_now(lambda c: c.execute(row))

    insert_transition("QUEUED", "DISPATCHED", None)
    insert_transition("DISPATCHED", "FAILED", insert_evidence("response", status=7))
    insert_evidence("heartbeat", status=0, time=5)
    insert_evidence("dfu", gateway=0x02005E000003, parent=0x0A5BDA180016, rssi=-60)
    insert_evidence("dfu", gateway=None, parent=None, rssi=None)
    insert_evidence("news", time=5, parent=7)
    env.set_execution(job["id"], device, state="FAILED")
    response = env.service.viewer.get(f"{JOBS}/{job['id']}/executions/{device}")
    detail = msgspec.json.decode(response.content, type=ExecutionDetail)
    assert [(each.from_, each.to, each.cause) for each in detail.transitions] == [
        (None, "QUEUED", "the job was created"),
        ("QUEUED", "DISPATCHED", "a cause"),
        ("DISPATCHED", "FAILED", "a cause"),
    ]
    assert detail.transitions[0].actor == job["createdBy"]
    assert detail.transitions[0].time == job["createdAt"]
    proof = detail.transitions[2].evidence
    assert proof is not None
    assert (proof.kind, proof.content) == ("response", {"status": 7})
    assert [(each.kind, each.content) for each in detail.later] == [
        ("heartbeat", {"status": 0, "time": "1970-01-01T00:00:00.005Z"}),
        ("dfu", {"gateway": "02005e000003", "parent": "0a5bda180016", "rssi": -60}),
        ("dfu", {"gateway": None, "parent": None, "rssi": None}),
        ("news", {"time": 5, "parent": 7}),
    ]


@pytest.mark.rule("rest-141")
def test_an_excluded_device_has_one_transition_with_the_reason(env: JobEnvironment) -> None:
    (device,) = env.devices(1, "4.0.0")
    job = env.create_job(env.firmware(), [device])
    detail = env.service.viewer.get(f"{JOBS}/{job['id']}/executions/{device}").json()
    (step,) = detail["transitions"]
    assert (step["from"], step["to"], step["cause"]) == (
        None,
        "SKIPPED",
        "it runs 4.0.0, which is newer than 3.4.2",
    )
    assert detail["later"] == []


def test_devices_and_jobs_that_do_not_exist_are_not_found(env: JobEnvironment) -> None:
    job = env.create_job(env.firmware(), env.devices(1))["id"]
    for path in (
        f"{job}/executions/{env.device()}",
        f"{job}/executions/bmac-0",
        f"{job}/executions/x",
        "job-999999/executions",
        "job-999999",
        "job-x",
        "x",
    ):
        assert env.service.viewer.get(f"{JOBS}/{path}").status_code == 404, path


@each_row(
    ("query", "fields"),
    [
        ({"State": "DONE"}, ["State"]),
        ({"Gateway": "x"}, ["Gateway"]),
        ({"Ids": "x"}, ["Ids"]),
        ({"Label": "x"}, ["Label"]),
        ({"Ids": "x", "Gateway": "x", "State": "DONE"}, ["State", "Gateway", "Ids"]),
    ],
)
def test_invalid_filters_of_executions_are_reported(
    env: JobEnvironment, query: dict[str, str], fields: list[str]
) -> None:
    job = env.create_job(env.firmware(), env.devices(1))["id"]
    response = env.service.viewer.get(f"{JOBS}/{job}/executions", params=query)
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == fields


@pytest.mark.rule("rest-38", "rest-142")
def test_a_device_is_updating_while_it_has_an_active_execution(env: JobEnvironment) -> None:
    one, other = env.devices(2)
    job = env.create_job(env.firmware(), [one, other])["id"]

    def updating() -> list[bool]:
        query = {"Ids": [one, other], "Include": "live"}
        listed = env.service.viewer.get("/api/v1/devices", params=query).json()["items"]
        devices = [env.service.viewer.get(f"/api/v1/devices/{each}").json() for each in (one, other)]
        flags = [each["live"]["updating"] for each in listed]
        assert flags == [each["live"]["updating"] for each in devices]
        return flags

    assert updating() == [False, False]
    for state in ("DISPATCHED", "TRANSFERRING", "VERIFYING", "STAGED", "APPLYING", "CONFIRMING"):
        env.set_execution(job, other, state=state)
        assert updating() == [False, True]
    env.set_execution(job, other, state="SUCCEEDED")
    assert updating() == [False, False]


@pytest.mark.rule("rest-219")
def test_a_device_in_its_version_check_shows_that_and_its_history(env: JobEnvironment) -> None:
    device = env.device("3.4.2")
    job = env.create_job(env.firmware(), [device])["id"]
    body = env.get_job(job)
    assert (body["state"], body["leftOut"], body["waveStates"]) == ("IN_PROGRESS", {"QUEUED": 1}, [])
    env.set_execution(job, device, state="DISPATCHED", step="check", version=1)
    waiting_for = env.executions(job)[device]["waitingFor"]
    assert waiting_for == "its version is being read: it reports that it already runs the new one"
    env.set_execution(job, device, state="SKIPPED", reason="the device already runs 3.4.2", version=2)
    detail = env.service.viewer.get(f"{JOBS}/{job}/executions/{device}").json()
    assert [(each["to"], each["cause"]) for each in detail["transitions"]] == [
        ("QUEUED", "the job was created")
    ]
