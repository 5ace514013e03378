"""Jobs and executions, as people see them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import insert, update

from meshfleet.db import bulk
from meshfleet.db.tables import evidence, transition
from meshfleet.protocol.times import format_millis
from meshfleet.rest import ExecutionDetail, ExecutionPage, JobPage
from meshfleet.service import clock
from tests.row_tables import each_row
from tests.service.jobs.job_environment import JOBS, MINUTE, job_number, number_of

if TYPE_CHECKING:
    from tests.service.jobs.job_environment import JobEnvironment


def walk(shop: JobEnvironment, path: str, size: int, **query: Any) -> list[dict[str, Any]]:
    """All items of a list, page by page."""
    found: list[dict[str, Any]] = []
    token: str | None = None
    for _ in range(100):
        more: dict[str, str] = {} if token is None else {"NextToken": token}
        page = shop.service.viewer.get(path, params={"MaxResults": size} | query | more)
        assert page.status_code == 200, page.text
        found += page.json()["items"]
        token = page.json()["nextToken"]
        if token is None:
            return found
    raise AssertionError("it never ends")


@pytest.mark.rule("rest-136", "rest-16", "rest-20")
def test_jobs_are_listed_newest_first_page_by_page(shop: JobEnvironment) -> None:
    firmware, devices = shop.firmware(), shop.devices(1)
    jobs = [shop.create_job(firmware, devices) for _ in range(5)]
    other = shop.create_job(shop.firmware("4.0.0"), devices)
    listed = walk(shop, JOBS, 2, FirmwareId=firmware)
    assert listed == list(reversed(jobs))
    assert [each["id"] for each in walk(shop, JOBS, 2)][:6] == [other["id"], *(each["id"] for each in listed)]
    page = shop.service.viewer.get(JOBS, params={"FirmwareId": firmware}).content
    assert len(msgspec.json.decode(page, type=JobPage).items) == 5


@pytest.mark.rule("rest-136")
def test_jobs_are_selected_by_state_and_firmware(shop: JobEnvironment) -> None:
    firmware, devices = shop.firmware(), shop.devices(1)
    jobs = {
        state: shop.create_job(firmware, devices)["id"] for state in ("PAUSED", "CANCELING", "IN_PROGRESS")
    }
    for state, job in jobs.items():
        shop.set_job(job, state=state)
    for states in (["PAUSED"], ["PAUSED", "CANCELING"], ["COMPLETED"], []):
        found = walk(shop, JOBS, 10, FirmwareId=firmware, State=states)
        expected = [job for state, job in jobs.items() if state in states or not states]
        assert [each["id"] for each in found] == expected[::-1]
    assert walk(shop, JOBS, 10, FirmwareId="fw-none") == []


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
def test_a_wrong_filter_of_jobs_is_named(shop: JobEnvironment, query: dict[str, Any], field: str) -> None:
    answer = shop.service.viewer.get(JOBS, params=query)
    assert answer.status_code == 400
    assert [each["field"] for each in answer.json()["errors"]] == [field]


@pytest.mark.rule("rest-19")
def test_a_token_belongs_to_its_filters(shop: JobEnvironment) -> None:
    job = shop.create_job(shop.firmware(), shop.devices(2))
    path = f"{JOBS}/{job['id']}/executions"
    token = shop.service.viewer.get(path, params={"MaxResults": 1}).json()["nextToken"]
    for query in ({"State": "QUEUED"}, {"Gateway": "c0ffee000001"}):
        answer = shop.service.viewer.get(path, params={"NextToken": token} | query)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid-token")


@pytest.mark.rule("rest-131", "rest-121")
def test_progress_is_the_mean_over_all_that_are_not_left_out(shop: JobEnvironment) -> None:
    devices = [*shop.devices(4), *shop.devices(1, "4.0.0")]
    job = shop.create_job(shop.firmware(), devices)["id"]
    assert shop.get_job(job)["progress"] == 0
    shop.set_execution(job, devices[0], state="TRANSFERRING", progress=40)
    shop.set_execution(job, devices[1], state="CONFIRMING", progress=100)
    assert shop.get_job(job)["progress"] == 35
    shop.set_execution(job, devices[2], state="FAILED", progress=10)
    assert shop.get_job(job)["progress"] == 60
    shown = shop.get_job(job)["counts"]
    assert {state: found for state, found in shown.items() if found} == {
        "TRANSFERRING": 1,
        "CONFIRMING": 1,
        "FAILED": 1,
        "QUEUED": 1,
        "SKIPPED": 1,
    }


@pytest.mark.rule("rest-131")
def test_the_end_is_foretold_by_how_it_went_up_to_now(shop: JobEnvironment) -> None:
    devices = [*shop.devices(4), *shop.devices(3, "3.4.2")]
    job = shop.create_job(shop.firmware(), devices)["id"]
    shop.set_job(job, started_at=shop.now - 10 * MINUTE)
    assert shop.get_job(job)["eta"] is None
    shop.set_execution(job, devices[0], state="SUCCEEDED")
    shop.set_execution(job, devices[1], state="TRANSFERRING", progress=50)
    before = shop.now
    eta = shop.get_job(job)["eta"]
    assert format_millis(before + 29 * MINUTE) < eta < format_millis(shop.now + 31 * MINUTE)
    shop.set_job(job, state="PAUSED")
    assert shop.get_job(job)["eta"] is None


@pytest.mark.rule("rest-209")
def test_nobody_foretells_the_end_while_nothing_is_under_way(shop: JobEnvironment) -> None:
    devices = shop.devices(4)
    job = shop.create_job(shop.firmware(), devices, stage=True)["id"]
    shop.set_job(job, started_at=shop.now - 10 * MINUTE)
    shop.set_execution(job, devices[0], state="SUCCEEDED")
    shop.set_execution(job, devices[1], waiting="gateway-offline")
    assert shop.get_job(job)["eta"] is None
    shop.set_execution(job, devices[2], state="STAGED")
    assert shop.get_job(job)["eta"] is None
    shop.set_execution(job, devices[2], state="CONFIRMING")
    assert shop.get_job(job)["eta"] is not None


@pytest.mark.rule("rest-209")
def test_time_for_which_a_job_rested_is_no_work(shop: JobEnvironment) -> None:
    devices = shop.devices(6)
    job = shop.create_job(shop.firmware(), devices)["id"]
    shop.set_job(job, started_at=shop.now - 600 * MINUTE)
    for device in devices[:2]:
        shop.set_execution(job, device, state="SUCCEEDED")
    shop.set_execution(job, devices[2], state="TRANSFERRING")
    assert shop.run_command("pause", job).status_code == 200
    assert shop.run_command("resume", job).status_code == 200
    resumed = (transition.c.job == job_number(job)) & (transition.c.after == "IN_PROGRESS")
    earlier = update(transition).where(resumed).values(time=shop.now - 10 * MINUTE)
    shop.service.database.write_now(lambda c: c.execute(earlier))
    assert shop.get_job(job)["eta"] is None  # nothing has ended since
    shop.set_execution(job, devices[3], state="FAILED")
    before = shop.now
    for eta in (shop.get_job(job)["eta"], shop.service.viewer.get(JOBS).json()["items"][0]["eta"]):
        assert format_millis(before + 29 * MINUTE) < eta < format_millis(shop.now + 31 * MINUTE)


@pytest.mark.rule("rest-199")
def test_waves_tell_where_they_are(shop: JobEnvironment) -> None:
    devices = shop.devices(3)
    waves = [{"name": "canary", "count": 1}, {"count": 1}, {"name": "rest", "percent": 100}]
    job = shop.create_job(shop.firmware(), devices, waves=waves, gate={"successPercent": 90})["id"]
    first = {row["wave"]: f"bmac-{row['device']:012x}" for row in shop.rows(job)}

    def states() -> list[str]:
        return [each["state"] for each in shop.get_job(job)["waveStates"]]

    assert states() == ["RUNNING", "WAITING", "WAITING"]
    shop.set_job(job, soaks_until=shop.now)
    assert states() == ["SOAKING", "WAITING", "WAITING"]
    soaking = [each["soaksUntil"] for each in shop.get_job(job)["waveStates"]]
    assert soaking[0] is not None
    assert soaking[1:] == [None, None]
    shop.set_job(job, state="PAUSED", pause_reason="GATE")
    assert states() == ["HELD", "WAITING", "WAITING"]
    assert shop.get_job(job)["waveStates"][0]["soaksUntil"] is None
    shop.set_job(job, pause_reason="GATE_FAILED")
    assert states() == ["FAILED", "WAITING", "WAITING"]
    shop.set_job(job, pause_reason="USER", soaks_until=None)
    assert states() == ["RUNNING", "WAITING", "WAITING"]
    shop.set_execution(job, first[0], state="SUCCEEDED")
    shop.set_job(job, wave=1)
    assert states() == ["PASSED", "RUNNING", "WAITING"]
    shop.set_execution(job, first[1], state="FAILED")
    shop.set_job(job, wave=2)
    assert states() == ["PASSED", "FAILED", "RUNNING"]
    shop.set_execution(job, first[2], state="CANCELED")
    shop.set_job(job, state="CANCELED", finished_at=shop.now)
    assert states() == ["PASSED", "FAILED", "SKIPPED"]
    told = ("name", "size", "succeeded", "failed", "soaksUntil")
    assert [tuple(each[field] for field in told) for each in shop.get_job(job)["waveStates"]] == [
        ("canary", 1, 1, 0, None),
        (None, 1, 0, 1, None),
        ("rest", 1, 0, 0, None),
    ]


@pytest.mark.rule("rest-199", "rest-133")
def test_until_when_is_told_by_the_clock_that_people_read(
    shop: JobEnvironment, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,) = shop.devices(1)
    job = shop.create_job(shop.firmware(), [device])["id"]
    until = shop.now + MINUTE
    shop.set_job(job, soaks_until=until)
    shop.set_execution(job, device, waiting="back-off", due=until)

    def told() -> tuple[str, str]:
        return shop.get_job(job)["waveStates"][0]["soaksUntil"], shop.executions(job)[device]["waitingFor"]

    assert told() == (format_millis(until), f"back-off: next attempt at {format_millis(until)}")
    ahead = 60 * MINUTE  # somebody sets the clock of the machine
    monkeypatch.setattr(clock.steady, "_tick", lambda: 0.0)
    monkeypatch.setattr(clock.steady, "_now", lambda: clock.steady() + ahead)
    at = format_millis(until + ahead)
    assert told() == (at, f"back-off: next attempt at {at}")


@pytest.mark.rule("rest-140", "rest-16", "rest-20")
def test_executions_are_listed_by_device_page_by_page(shop: JobEnvironment) -> None:
    one, other = shop.service.new_mac(), shop.service.new_mac()
    here, there = shop.devices(4, gateway=one), shop.devices(3, gateway=other)
    job = shop.create_job(shop.firmware(), [*here, *there])["id"]
    path = f"{JOBS}/{job}/executions"
    devices = sorted([*here, *there])
    assert [each["deviceId"] for each in walk(shop, path, 2)] == devices
    assert [each["deviceId"] for each in walk(shop, path, 2, Gateway=one)] == here
    assert [each["deviceId"] for each in walk(shop, path, 7, Gateway=f"bmac-{other.upper()}")] == there
    for device in here[:2]:
        shop.set_execution(job, device, state="FAILED")
    shop.set_execution(job, there[0], state="SUCCEEDED")
    assert [each["deviceId"] for each in walk(shop, path, 1, State="FAILED")] == here[:2]
    assert [each["deviceId"] for each in walk(shop, path, 2, State=["FAILED", "SUCCEEDED"])] == sorted(
        [*here[:2], there[0]]
    )
    assert walk(shop, path, 2, State="FAILED", Gateway=other) == []
    shop.set_execution(job, here[0], code="STALLED")
    assert [each["deviceId"] for each in walk(shop, path, 2, ReasonCode=["STALLED", "BATTERY"])] == here[:1]
    assert walk(shop, path, 2, ReasonCode="BATTERY") == []
    some = [there[1], here[3], shop.device()]
    assert [each["deviceId"] for each in walk(shop, path, 1, Ids=some)] == sorted(some[:2])
    assert walk(shop, path, 2, Ids=some, State="FAILED") == []
    msgspec.json.decode(shop.service.viewer.get(path).content, type=ExecutionPage)


@pytest.mark.rule("rest-140", "rest-133", "rest-199")
def test_an_execution_tells_all_there_is_to_know(shop: JobEnvironment) -> None:
    gateway = shop.service.new_mac()
    (device,) = shop.devices(1, "3.4.1-beta.2", gateway=gateway)
    job = shop.create_job(shop.firmware("3.4.2-beta.1"), [device], waves=[{"name": "canary", "count": 1}])
    shown = shop.executions(job["id"])[device]
    assert shown == {
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
        "updatedAt": shown["updatedAt"],
        "fromVersion": "3.4.1-beta.2",
        "toVersion": "3.4.2-beta.1",
    }
    shop.set_execution(job["id"], device, waiting="gateway-offline")
    waiting = "gateway-offline: its gateway is not connected"
    assert shop.executions(job["id"])[device]["waitingFor"] == waiting
    shop.run_command("pause", job["id"])
    assert shop.executions(job["id"])[device]["waitingFor"] == "paused: the job is paused"
    shop.set_execution(job["id"], device, state="TRANSFERRING", waiting=None, progress=7, started_at=shop.now)
    moving = shop.executions(job["id"])[device]
    assert (moving["waitingFor"], moving["progress"]) == ("the image is being transferred", 7)
    assert moving["startedAt"] is not None
    shop.set_execution(job["id"], device, state="FAILED", code="STALLED", reason="it did not move")
    ended = shop.executions(job["id"])[device]
    assert (ended["waitingFor"], ended["reasonCode"], ended["reason"]) == (None, "STALLED", "it did not move")


@pytest.mark.rule("rest-141", "rest-143")
def test_an_execution_shows_its_steps_with_their_evidence_and_what_came_later(shop: JobEnvironment) -> None:
    (device,) = shop.devices(1)
    job = shop.create_job(shop.firmware(), [device])
    number, mine = job_number(job["id"]), number_of(device)

    def heard(kind: str, **content: Any) -> int:
        said = msgspec.json.encode(content).decode()
        return shop.service.database.write_now(
            lambda c: bulk.insert_row(c, evidence, number, mine, 1, 5, kind, said)
        )

    def moved(before: str, after: str, proof: int | None) -> None:
        row = insert(transition).values(
            job=number,
            device=mine,
            time=6,
            before=before,
            after=after,
            attempt=1,
            version=1,
            actor="program: service",
            cause="it moved",
            evidence=proof,
        )
        shop.service.database.write_now(lambda c: c.execute(row))

    moved("QUEUED", "DISPATCHED", None)
    moved("DISPATCHED", "FAILED", heard("response", status=7))
    heard("heartbeat", status=0, time=5)
    heard("dfu", gateway=0x02005E000003, parent=0x0A5BDA180016, rssi=-60)
    heard("dfu", gateway=None, parent=None, rssi=None)
    heard("news", time=5, parent=7)
    shop.set_execution(job["id"], device, state="FAILED")
    answer = shop.service.viewer.get(f"{JOBS}/{job['id']}/executions/{device}")
    detail = msgspec.json.decode(answer.content, type=ExecutionDetail)
    assert [(each.from_, each.to, each.cause) for each in detail.transitions] == [
        (None, "QUEUED", "the job was created"),
        ("QUEUED", "DISPATCHED", "it moved"),
        ("DISPATCHED", "FAILED", "it moved"),
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
def test_who_was_left_out_has_one_step_that_tells_why(shop: JobEnvironment) -> None:
    (device,) = shop.devices(1, "4.0.0")
    job = shop.create_job(shop.firmware(), [device])
    detail = shop.service.viewer.get(f"{JOBS}/{job['id']}/executions/{device}").json()
    (step,) = detail["transitions"]
    assert (step["from"], step["to"], step["cause"]) == (
        None,
        "SKIPPED",
        "it runs 4.0.0, which is newer than 3.4.2",
    )
    assert detail["later"] == []


def test_what_is_not_in_a_job_is_not_found(shop: JobEnvironment) -> None:
    job = shop.create_job(shop.firmware(), shop.devices(1))["id"]
    for path in (
        f"{job}/executions/{shop.device()}",
        f"{job}/executions/bmac-0",
        f"{job}/executions/x",
        "job-999999/executions",
        "job-999999",
        "job-x",
        "x",
    ):
        assert shop.service.viewer.get(f"{JOBS}/{path}").status_code == 404, path


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
def test_wrong_filters_of_executions_are_named(
    shop: JobEnvironment, query: dict[str, str], fields: list[str]
) -> None:
    job = shop.create_job(shop.firmware(), shop.devices(1))["id"]
    answer = shop.service.viewer.get(f"{JOBS}/{job}/executions", params=query)
    assert answer.status_code == 400
    assert [each["field"] for each in answer.json()["errors"]] == fields


@pytest.mark.rule("rest-38", "rest-142")
def test_a_device_is_updating_while_it_has_an_active_execution(shop: JobEnvironment) -> None:
    one, other = shop.devices(2)
    job = shop.create_job(shop.firmware(), [one, other])["id"]

    def updating() -> list[bool]:
        query = {"Ids": [one, other], "Include": "live"}
        listed = shop.service.viewer.get("/api/v1/devices", params=query).json()["items"]
        shown = [shop.service.viewer.get(f"/api/v1/devices/{each}").json() for each in (one, other)]
        told = [each["live"]["updating"] for each in listed]
        assert told == [each["live"]["updating"] for each in shown]
        return told

    assert updating() == [False, False]
    for state in ("DISPATCHED", "TRANSFERRING", "VERIFYING", "STAGED", "APPLYING", "CONFIRMING"):
        shop.set_execution(job, other, state=state)
        assert updating() == [False, True]
    shop.set_execution(job, other, state="SUCCEEDED")
    assert updating() == [False, False]


@pytest.mark.rule("rest-219")
def test_who_is_asked_for_its_version_says_so_and_tells_its_whole_story(shop: JobEnvironment) -> None:
    device = shop.device("3.4.2")
    job = shop.create_job(shop.firmware(), [device])["id"]
    told = shop.get_job(job)
    assert (told["state"], told["leftOut"], told["waveStates"]) == ("IN_PROGRESS", {"QUEUED": 1}, [])
    shop.set_execution(job, device, state="DISPATCHED", step="check", version=1)
    said = shop.executions(job)[device]["waitingFor"]
    assert said == "its version is being read: it reports that it already runs the new one"
    shop.set_execution(job, device, state="SKIPPED", reason="it runs 3.4.2 already", version=2)
    detail = shop.service.viewer.get(f"{JOBS}/{job}/executions/{device}").json()
    assert [(each["to"], each["cause"]) for each in detail["transitions"]] == [
        ("QUEUED", "the job was created")
    ]
