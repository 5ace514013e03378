"""Alarms of the service itself: broker, lag, disk, certificate and backups; and firmware that is old."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import insert, update

from meshfleet.db import bulk
from meshfleet.db.tables import alarm_condition, backup, device, firmware, job
from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem
from meshfleet.service.alarms.conditions import Condition, ConditionState, Subject
from meshfleet.service.alarms.rules import Rule, Severity
from meshfleet.service.alarms.runner import AlarmRunner
from meshfleet.service.alarms.service_facts import ServiceFactsReader
from meshfleet.service.alarms.watches.service import CERTIFICATE, DISK
from meshfleet.service.alarms.watches.versions import SELECT_DEVICES, SELECT_VERSIONS
from meshfleet.service.alarms.watches.watch import ServiceFacts, Sight
from meshfleet.service.ingest.commit_timer import CommitTimer
from meshfleet.service.storage.monitor import StorageMonitor
from meshfleet.settings import Settings
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.test_watches import DAY, add_job, execute, list_alarms

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from tests.service.alarms.presence_log import PresenceLog

GIB = 1 << 30
MODEL = 0x0018
FINE = ServiceFacts(disk_free=50 * GIB, disk_total=100 * GIB)


class Source:
    """Part of the service that receives reports."""

    problem: ReadinessProblem | None = None


# --- Broker and lag ---


@pytest.mark.both_databases
def test_only_the_broker_is_told_while_it_delivers_no_reports(log: PresenceLog) -> None:
    gateways = [log.add_gateway(number, 3) for number in (1, 2, 3)]
    log.run(2 * MINUTE)
    log.is_receiving = False
    log.service = FINE._replace(broker_failing_since=log.now)
    for gateway, _ in gateways:
        log.set_gateway(gateway, connected=False)
    log.run(50, step=25)
    assert list_alarms(log) == []
    log.run(10 * MINUTE, step=60)
    text = "The MQTT broker does not deliver reports. Nothing is known about gateways and devices."
    assert list_alarms(log) == [("broker", "critical", text)]
    log.is_receiving, log.service = True, FINE
    for gateway, _ in gateways:
        log.set_gateway(gateway, connected=True)
    log.run(90)
    assert list_alarms(log) == []
    log.run(5 * MINUTE)
    assert log.told() == [("broker", "opened"), ("broker", "cleared")]
    (_, _, text) = list_alarms(log, "cleared")[0]
    assert text == "The MQTT broker delivers reports again after 12 min."


def test_reports_that_wait_for_five_minutes_to_be_stored_are_an_alarm(log: PresenceLog) -> None:
    log.service = FINE._replace(ingest_lag=31_000)
    log.run(4 * MINUTE)
    log.service = FINE
    log.run(MINUTE)
    log.service = FINE._replace(ingest_lag=45_000)
    log.run(5 * MINUTE)
    assert list_alarms(log) == []
    log.run(MINUTE)
    assert list_alarms(log) == [("ingest-lag", "critical", "Reports wait for 45 s until they are stored.")]
    log.service = FINE._replace(ingest_lag=20_000)
    log.run(5 * MINUTE)
    assert len(list_alarms(log)) == 1  # not fast enough
    log.service = FINE
    log.run(2 * MINUTE)
    assert log.told() == [("ingest-lag", "opened"), ("ingest-lag", "cleared")]


def test_a_lag_is_measured_between_attempts_and_forgotten_without_reports() -> None:
    now = 100.0
    timer = CommitTimer(lambda: now)
    assert timer.compute_lag() == 0
    with suppress(OSError), timer.measure(95.0):
        raise OSError("full")
    now = 140.0
    assert timer.compute_lag() == 45
    with timer.measure(95.0):
        now = 150.0
    with timer.measure(149.0):
        assert timer.compute_lag() == 55
    assert timer.compute_lag() == 1
    now = 211.0
    assert timer.compute_lag() == 0


# --- Disk, certificate and backups ---

DISK_CASES = [
    # free bytes, total bytes, days until it is full, whether the alarm is open; severity
    (50 * GIB, 100 * GIB, None, False, None),
    (11 * GIB, 100 * GIB, None, False, None),
    (9 * GIB, 100 * GIB, None, False, Severity.WARNING),
    (11 * GIB, 100 * GIB, None, True, Severity.WARNING),
    (13 * GIB, 100 * GIB, None, True, None),
    (2 * GIB - 1, 8 * GIB, None, False, Severity.WARNING),
    (2 * GIB + 1, 8 * GIB, None, False, None),
    (2 * GIB + 1, 8 * GIB, None, True, Severity.WARNING),
    (2.9 * GIB, 100 * GIB, None, False, Severity.CRITICAL),
    (0.4 * GIB, 8 * GIB, None, False, Severity.CRITICAL),
    (0.6 * GIB, 8 * GIB, None, False, Severity.WARNING),
    (50 * GIB, 100 * GIB, 6, False, Severity.WARNING),
    (50 * GIB, 100 * GIB, 8, False, None),
    (50 * GIB, 100 * GIB, 8, True, Severity.WARNING),
    (50 * GIB, 100 * GIB, 10, True, None),
]
CERTIFICATE_CASES = [
    (22, None),
    (20, Severity.INFO),
    (15, Severity.INFO),
    (13, Severity.WARNING),
    (4, Severity.WARNING),
    (2, Severity.CRITICAL),
    (-5, Severity.CRITICAL),
]


def test_disks_and_certificates_are_judged_by_what_is_left(log: PresenceLog) -> None:
    def judge(connection: Connection) -> list[str]:
        wrong = []
        for free, total, days, is_open, expected in DISK_CASES:
            full_at = None if days is None else log.now + days * DAY * 1000
            state = ConditionState.ACTIVE if is_open else ConditionState.PENDING
            known = {0: Condition(Subject(Rule.DISK, 0), None, None, state, since=0, due=None)}
            facts = ServiceFacts(disk_free=int(free), disk_total=total, disk_full_at=full_at)
            sight = Sight(connection, log.now, known, facts, DISK.thresholds_in_force)
            found = list(DISK.find(sight) or ())
            if [each.severity for each in found] != [expected] * (expected is not None):
                wrong.append(f"disk {free / GIB:.1f} of {total // GIB} GiB, {days} days, {is_open}: {found}")
        for days, severity in CERTIFICATE_CASES:
            facts = ServiceFacts(certificate_ends_at=log.now + days * DAY * 1000)
            found = list(CERTIFICATE.find(Sight(connection, log.now, {}, facts)) or ())
            if [each.severity for each in found] != [severity] * (severity is not None):
                wrong.append(f"certificate {days} days: {found}")
        return wrong

    assert log.database.read_now(judge) == []


def test_a_disk_that_fills_becomes_critical_and_is_forgotten_when_it_is_not_known(log: PresenceLog) -> None:
    log.service = FINE._replace(disk_free=9 * GIB)
    log.run(4 * MINUTE)
    assert list_alarms(log) == []
    log.run(2 * MINUTE)
    text = "The disk of the data has 9.7 GB of free space (9 %)."
    assert list_alarms(log) == [("disk", "warning", text)]
    full_at = log.now + 2 * DAY * 1000
    log.service = FINE._replace(disk_free=GIB, disk_full_at=full_at)
    log.run(MINUTE)
    text = (
        "The disk of the data has 1.1 GB of free space (1 %)."
        " If it fills as in the last week, it is full on 23 September 2026."
    )
    assert list_alarms(log) == [("disk", "critical", text)]
    log.service = None
    log.run(10 * MINUTE)
    assert len(list_alarms(log)) == 1  # unknown
    log.service = FINE
    log.run(MINUTE)
    assert list_alarms(log) == []


def test_a_certificate_is_told_three_times_before_it_ends(log: PresenceLog) -> None:
    log.service = ServiceFacts(certificate_ends_at=log.now + 23 * DAY * 1000)
    log.run(DAY, step=6 * HOUR)
    assert list_alarms(log) == []
    severities = []
    for _ in range(24):
        log.run(DAY, step=12 * HOUR)
        severities += [severity for _, severity, _ in list_alarms(log)]
    assert [severities.count(each) for each in ("info", "warning", "critical")] == [7, 11, 5 + 1]
    assert log.service.certificate_ends_at is not None
    log.service = ServiceFacts(certificate_ends_at=log.now + 365 * DAY * 1000)
    log.run(HOUR, step=HOUR)
    assert list_alarms(log, "cleared") == [("certificate", "critical", "The TLS certificate is replaced.")]


@pytest.mark.both_databases
def test_backups_that_stop_are_an_alarm_but_not_without_any(log: PresenceLog) -> None:
    def add_backup(*, has_samples: bool = True) -> None:
        row = {"finished_at": log.now, "moment": log.now, "size": 1, "has_samples": has_samples}
        execute(log, insert(backup).values(**row))

    log.run(20 * DAY, step=10 * DAY)
    assert list_alarms(log) == []
    add_backup()
    log.run(7 * DAY, step=DAY)
    add_backup(has_samples=False)
    assert list_alarms(log) == []
    log.run(2 * DAY, step=DAY)
    assert list_alarms(log) == [("backup-old", "info", "The last backup is of 11 October 2026.")]
    add_backup()
    log.run(HOUR, step=HOUR)
    assert list_alarms(log) == []


# --- Firmware ---


def add_firmware(log: PresenceLog, number: str, version: str, *, age: int, **values: Any) -> None:
    """Add a firmware that was released `age` days ago."""
    defaults = {each.name: "" for each in firmware.columns if not each.nullable}
    row: dict[str, Any] = {
        "id": number,
        "model": MODEL,
        "version": version,
        "type": 1,
        "bare": False,
        "size": 1,
        "sha256": b"",
        "hardware": "[]",
        "state": "released",
        "created_at": 0,
        "released_at": log.now - age * DAY * 1000,
    }
    execute(log, insert(firmware).values(**defaults | row | values))


def set_firmware(log: PresenceLog, macs: list[str], version: str, **values: Any) -> None:
    """Store which firmware devices run."""
    numbers = [int(each, 16) for each in macs]
    statement = update(device).where(device.c.id.in_(numbers))
    execute(log, statement.values(model=MODEL, firmware=version, hardware="1.0.0", **values))


@pytest.mark.both_databases
def test_devices_with_old_firmware_are_told_once_per_model(log: PresenceLog) -> None:
    _, macs = log.add_gateway(1, 12)
    set_firmware(log, macs[:3], "3.0.2")
    set_firmware(log, macs[3:5], "3.1.0", beta=2)
    set_firmware(log, macs[5:8], "3.1.0")
    set_firmware(log, macs[8:9], "3.2.0")
    set_firmware(log, macs[9:10], "0.0.0")
    set_firmware(log, macs[10:], "2.9.0", beta=0)
    add_firmware(log, "fw-old", "2.0.0", age=300)
    add_firmware(log, "fw-new", "3.1.0", age=13, min_version="3.0.0")
    add_firmware(log, "fw-beta", "3.3.0-beta.1", age=100)
    add_firmware(log, "fw-draft", "3.4.0", age=100, state="draft")
    log.run(20 * HOUR, step=10 * HOUR)
    assert list_alarms(log) == []
    log.run(30 * HOUR, step=5 * HOUR)
    ((rule, severity, sentence),) = list_alarms(log)
    assert (rule, severity) == ("version-skew", "info")
    assert sentence.startswith("5 devices ")
    assert sentence.endswith(" run older firmware than 3.1.0, which is released for 14 days or longer.")
    add_job(log, 1)
    execute(log, update(job).values(firmware="fw-new"))
    log.run(2 * HOUR, step=HOUR)
    assert list_alarms(log) == []
    assert list_alarms(log, "cleared")[0][2].endswith(" run 3.1.0 or newer, or an update to it is under way.")


def test_devices_that_no_job_would_update_are_not_told(log: PresenceLog) -> None:
    _, macs = log.add_gateway(1, 3)
    set_firmware(log, macs, "3.0.2")
    add_firmware(log, "fw-new", "3.1.0", age=20, hardware='["2.0.0"]')
    log.run(30 * HOUR, step=5 * HOUR)
    assert list_alarms(log) == []


@pytest.mark.both_databases
def test_versions_are_counted_through_the_index(log: PresenceLog) -> None:
    queries = {SELECT_VERSIONS: (1, 1), SELECT_DEVICES: (1, "3.0.0", 10)}

    def explain(connection: Connection) -> list[str]:
        if connection.dialect.name == "sqlite":
            return [
                row[3]
                for query, values in queries.items()
                for row in bulk.query_rows(connection, f"EXPLAIN QUERY PLAN {query}", values)
            ]
        # The table is empty: without this, it would be read as a whole.
        connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        connection.exec_driver_sql("SET LOCAL enable_bitmapscan = off")
        return [
            row[0]
            for query, values in queries.items()
            for row in bulk.query_rows(connection, f"EXPLAIN {query}", values)
        ]

    plan = log.database.read_now(explain)
    steps = [each for each in plan if "Scan" in each or "SEARCH device" in each or "SCAN device" in each]
    steps = [each for each in steps if "device" in each]
    assert len(steps) >= 2  # PostgreSQL does not show the step of the recursion
    assert [each for each in steps if "ix_device_model_firmware" not in each] == []


# --- Facts ---


@pytest.mark.anyio
async def test_the_runner_reads_facts_of_the_service(database: Database, tmp_path: Path) -> None:
    now, source = 1_790_000_000_000, Source()
    storage = StorageMonitor(database, Settings(data=tmp_path), lambda: now)
    reader = ServiceFactsReader(
        tmp_path,
        source=source,
        commit_timer=CommitTimer(),
        storage=storage,
        certificate=None,
        now=lambda: now,
    )
    facts = reader.read()
    assert facts.disk_free is not None
    assert facts == ServiceFacts(disk_free=facts.disk_free, disk_total=facts.disk_total)
    source.problem = ReadinessProblem(ReadinessCode.DATABASE_LOCKED, "locked")
    assert reader.read().broker_failing_since is None
    changed: set[int] = set()
    runner = AlarmRunner(
        database,
        changed.update,
        is_receiving=lambda: source.problem is None,
        read_service_facts=reader.read,
        owner=None,
        retention_ms=None,
        now=lambda: now,
    )
    source.problem = ReadinessProblem(ReadinessCode.BROKER, "refused")
    for _ in range(8):
        await runner.evaluate()
        now += 10_000
    assert changed == {1}
    rows = database.read_now(lambda connection: connection.execute(alarm_condition.select()).all())
    assert [(row.rule, row.state) for row in rows if row.state == "active"] == [("broker", "active")]
