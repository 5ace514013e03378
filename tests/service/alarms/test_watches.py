"""Alarms of clocks, firmware updates and channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, update

from meshfleet.db.tables import channel, execution, firmware, gateway, job, tally
from meshfleet.protocol.ids import Mac
from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms import views
from meshfleet.service.alarms.progress import load_progress
from meshfleet.service.alarms.runner import AlarmRunner
from meshfleet.service.gateways import store as gateway_store
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.ingest.messages import mac_to_number

if TYPE_CHECKING:
    from sqlalchemy import Executable

    from tests.service.alarms.presence_log import PresenceLog

DAY = 24 * HOUR


def execute(log: PresenceLog, *statements: Executable) -> None:
    log.database.write_now(lambda connection: [connection.execute(each) for each in statements])


def set_clock(log: PresenceLog, mac: str, seconds: int) -> None:
    """Store by how much the clock of a gateway is ahead."""
    condition = gateway.c.device == mac_to_number(mac)
    execute(log, update(gateway).where(condition).values(clock_offset=seconds * 1000))


def add_job(log: PresenceLog, number: int, **values: Any) -> None:
    """Add an update job of a single firmware."""
    if number == 1:
        defaults = {each.name: "" for each in firmware.columns if not each.nullable}
        image = {"id": "fw-1", "model": 1, "type": 1, "bare": False, "size": 1, "sha256": b""}
        execute(log, insert(firmware).values(**defaults | image | {"created_at": 0}))
    row = {
        "id": number,
        "firmware": "fw-1",
        "body": "{}",
        "state": "IN_PROGRESS",
        "seed": 0,
        "waves": "[]",
        "wave": 0,
        "paced_until": 0,
        "armed": "{}",
        "created_by": "alice",
        "created_at": log.now,
    }
    execute(log, insert(job).values(**row | values))


def list_alarms(log: PresenceLog, *states: str) -> list[tuple[str, str, str]]:
    """Return rule, severity and sentence of alarms, oldest first."""
    query = views.AlarmListing(states=states or ("open", "acknowledged"))
    found = log.database.read_now(views.list_alarms, query, after=None, limit=100, now=log.now)
    bodies = sorted((each.body for each in found), key=lambda body: int(body.id.rpartition("-")[2]))
    return [(str(body.rule), str(body.severity), body.sentence) for body in bodies]


@pytest.mark.both_databases
def test_a_wrong_clock_is_told_with_its_offset_and_clears_when_it_is_right(log: PresenceLog) -> None:
    first, second, *_ = (log.add_gateway(number)[0] for number in range(1, 8))
    set_clock(log, first, 2 * HOUR)
    set_clock(log, second, -75)
    log.run(4 * MINUTE)
    assert list_alarms(log) == []
    log.run(2 * MINUTE)
    assert list_alarms(log) == [
        (
            "gateway-clock",
            "critical",
            "The clock of gateway Gateway 1 is 2 h ahead. It looks like a wrong time zone.",
        ),
        ("gateway-clock", "warning", "The clock of gateway Gateway 2 is 1 min behind."),
    ]
    set_clock(log, first, 45)
    log.run(2 * MINUTE)
    assert len(list_alarms(log)) == 2  # not right enough
    set_clock(log, first, 2)
    log.run(2 * MINUTE)
    assert [sentence for _, _, sentence in list_alarms(log, "cleared")] == [
        "The clock of gateway Gateway 1 is right again after 8 min."
    ]


def test_the_same_offset_of_most_gateways_is_the_clock_of_the_service(log: PresenceLog) -> None:
    macs = [log.add_gateway(number)[0] for number in range(1, 6)]
    for each in macs[:4]:
        set_clock(log, each, 6 * HOUR)
    log.run(10 * MINUTE)
    assert list_alarms(log) == [
        ("service-clock", "critical", "The clock of this service seems to be 6 h behind.")
    ]


def test_an_offset_that_was_wrong_only_for_a_moment_is_no_alarm(log: PresenceLog) -> None:
    mac, _ = (log.add_gateway(number)[0] for number in (1, 2))
    set_clock(log, mac, 61)
    log.run(MINUTE)
    set_clock(log, mac, 35)
    log.run(10 * MINUTE)
    assert list_alarms(log) == []


def test_nothing_is_known_of_the_clock_of_a_gateway_that_is_away(log: PresenceLog) -> None:
    macs = [log.add_gateway(number)[0] for number in range(1, 9)]
    set_clock(log, macs[0], -75)
    log.run(6 * MINUTE)
    for each in macs[:4]:
        log.set_gateway(each, connected=False)
        set_clock(log, each, 6 * HOUR)  # before it was lost
    log.run(10 * MINUTE)
    clocks = [each for each in list_alarms(log) if each[0] in {"gateway-clock", "service-clock"}]
    assert clocks == [("gateway-clock", "warning", "The clock of gateway Gateway 1 is 1 min behind.")]
    set_clock(log, macs[0], 0)
    log.set_gateway(macs[0], connected=True)
    log.run(MINUTE)
    assert [rule for rule, _, _ in list_alarms(log, "cleared")].count("gateway-clock") == 1


def test_the_clock_of_the_service_is_unknown_without_gateways(log: PresenceLog) -> None:
    macs = [log.add_gateway(number)[0] for number in range(1, 4)]
    for each in macs:
        set_clock(log, each, -HOUR)
    log.run(6 * MINUTE)
    for each in macs:
        log.set_gateway(each, connected=False)
    log.run(10 * MINUTE)
    assert "service-clock" in [rule for rule, _, _ in list_alarms(log)]


def test_the_alarm_of_a_clock_ends_when_its_gateway_is_released(log: PresenceLog) -> None:
    mac, *_ = (log.add_gateway(number)[0] for number in range(1, 3))
    set_clock(log, mac, -HOUR)
    log.run(6 * MINUTE)
    assert [rule for rule, _, _ in list_alarms(log)] == ["gateway-clock"]
    log.database.write_now(gateway_store.release_gateway, Mac(mac), by=SERVICE, now=log.now)
    log.run(MINUTE)
    assert list_alarms(log) == []


@pytest.mark.anyio
async def test_a_clock_that_cannot_be_judged_causes_no_evaluations(log: PresenceLog) -> None:
    macs = [log.add_gateway(number)[0] for number in range(1, 4)]
    for each in macs:
        set_clock(log, each, -HOUR)
    log.run(3 * MINUTE)
    for each in macs:
        log.set_gateway(each, connected=False)
    log.run(10 * MINUTE)
    assert log.conditions()["service-clock", "pending"] == 1
    changes: list[int] = []
    runner = AlarmRunner(
        log.database,
        lambda _changed: None,
        is_receiving=lambda: True,
        owner=None,
        retention_ms=None,
        now=lambda: log.now,
    )
    for _ in range(60):
        log.now += 2000
        await runner.evaluate()
        found = log.database.read_now(load_progress)
        if found is not None and found.evaluated_at not in changes:
            changes.append(found.evaluated_at)
    assert len(changes) <= 8, "once every 20 s"


def test_updates_that_stop_end_badly_or_are_stuck_are_alarms(log: PresenceLog) -> None:
    add_job(log, 1, state="PAUSED", pause_reason="ABORT_CRITERIA")
    add_job(log, 2, state="PAUSED", pause_reason="USER")
    add_job(log, 3, state="COMPLETED", outcome="PARTIAL", finished_at=log.now)
    add_job(log, 4, state="COMPLETED", outcome="SUCCEEDED", finished_at=log.now)
    add_job(log, 5)
    execute(log, insert(tally).values(job=3, wave=0, state="FAILED", count=2))
    columns = {each.name: 0 for each in execution.columns if not each.nullable}
    values = {"job": 5, "device": 1, "state": "APPLYING", "is_read": False, "updated_at": log.now}
    execute(log, insert(execution).values(**columns | values))
    log.run(2 * MINUTE)
    assert list_alarms(log) == [
        (
            "job-stopped",
            "critical",
            "Update job-1 has paused itself because too many updates failed.",
        ),
        ("job-ended-badly", "warning", "Update job-3 has ended, but failed on 2 devices."),
    ]
    execute(log, update(job).where(job.c.id == 1).values(state="IN_PROGRESS", pause_reason=None))
    add_job(log, 6, parent=3, state="COMPLETED", outcome="SUCCEEDED", finished_at=log.now)
    log.run(65 * MINUTE)
    assert list_alarms(log) == [
        ("job-stuck", "warning", "Update job-5 has made no progress for 61 min, with 1 update under way.")
    ]


@pytest.mark.both_databases
def test_a_job_is_not_stuck_while_it_waits_or_its_deadlines_move(log: PresenceLog) -> None:
    cases = (
        # state, minutes until its deadline, minutes since its gateway was lost, whether the job is stuck
        ("STAGED", -90, None, False),
        ("TRANSFERRING", 8, None, False),
        ("CONFIRMING", 600, None, False),
        ("TRANSFERRING", -61, None, True),
        ("TRANSFERRING", 8, 55, False),
        ("TRANSFERRING", 8, 61, True),
        ("APPLYING", None, None, True),
    )
    columns = {each.name: 0 for each in execution.columns if not each.nullable}
    began_at, minute = log.now - 3 * HOUR * 1000, MINUTE * 1000
    for number, (state, deadline, lost, _) in enumerate(cases, 1):
        add_job(log, number)
        values = {
            "job": number,
            "device": number,
            "state": state,
            "is_read": False,
            "updated_at": began_at,
            "expires": None if deadline is None else log.now + deadline * minute,
            "suspended_at": None if lost is None else log.now - lost * minute,
        }
        execute(log, insert(execution).values(**columns | values))
    log.run(3 * MINUTE)
    stuck = [each.key for each in log.alarms(state="open") if each.rule == "job-stuck"]
    expected = [f"job-stuck/no-progress/job:{number}" for number, each in enumerate(cases, 1) if each[3]]
    assert sorted(stuck) == expected


def test_an_update_that_a_user_canceled_without_failures_is_no_alarm(log: PresenceLog) -> None:
    ended = {"state": "CANCELED", "outcome": "PARTIAL", "finished_at": log.now}
    add_job(log, 1, stop_cause="USER", **ended)
    add_job(log, 2, stop_cause="DEADLINE", **ended)
    add_job(log, 3, state="COMPLETED", outcome="FAILED", finished_at=log.now)
    execute(log, insert(tally).values(job=3, wave=0, state="REJECTED", count=1))
    log.run(3 * MINUTE)
    assert list_alarms(log) == [
        ("job-ended-badly", "warning", "Update job-2 was not finished at its deadline."),
        ("job-ended-badly", "critical", "Update job-3 has ended, but failed on 1 device."),
    ]


def test_an_update_that_ended_badly_is_forgotten_after_a_week(log: PresenceLog) -> None:
    add_job(log, 1, state="CANCELED", stop_cause="DEADLINE", outcome="NONE", finished_at=log.now)
    log.run(6 * DAY, step=HOUR)
    assert [rule for rule, _, _ in list_alarms(log)] == ["job-ended-badly"]
    log.run(2 * DAY, step=HOUR)
    assert list_alarms(log) == []


def test_a_channel_that_fails_for_a_quarter_of_an_hour_is_an_alarm(log: PresenceLog) -> None:
    values = {"kind": "email", "enabled": True, "target": "{}", "created_at": 0, "failures": 1, "version": 1}
    execute(log, insert(channel).values(id=3, name="Ops", failing_since=log.now, **values))
    log.run(14 * MINUTE)
    assert list_alarms(log) == []
    log.run(2 * MINUTE)
    assert list_alarms(log) == [
        ("channel-failing", "warning", "Channel Ops does not deliver messages about alarms.")
    ]
    execute(log, update(channel).values(failing_since=None))
    log.run(MINUTE)
    assert list_alarms(log) == []
