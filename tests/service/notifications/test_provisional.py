"""A database that is away: told once and directly, and written when it is back."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, select

from meshfleet.db.tables import alarm, alarm_event, channel, channel_alarm
from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem
from meshfleet.service.notifications.messages import EventMessage
from tests.service.alarms.alarm_harness import MINUTE, STEP
from tests.service.embedded_broker.mqtt_accounts import database_outage
from tests.service.notifications.notifier_harness import DELIVERED, FAILED

if TYPE_CHECKING:
    from meshfleet.db import Database
    from tests.service.notifications.fleet_harness import NotifiedFleet, NotifiedLog

pytestmark = pytest.mark.anyio

TABLES = ("device", "gateway", "alarm", "channel", "notification")
SENTENCE = "The database cannot be used. Reports are not stored, and no other alarm opens."


async def look(harness: NotifiedLog | NotifiedFleet) -> None:
    """Let the notifier look once, as it does every second."""
    with suppress(DatabaseUnavailable):
        await harness.notifications.notifier.look()
        await harness.notifications.notifier.run_once()


async def pass_outage(log: NotifiedLog, seconds: int, *, step: int = 20) -> None:
    """Advance the clock while the database is away."""
    with database_outage(log.database, tables=TABLES):
        for _ in range(0, seconds, step):
            log.now += step * 1000
            with pytest.raises(DatabaseUnavailable):
                log.evaluate()
            await look(log)


async def pass_time(log: NotifiedLog, seconds: int) -> None:
    """Advance the clock while the database works."""
    for _ in range(0, seconds, 30):
        log.run(30)
        await look(log)


def list_events(database: Database, number: int) -> list[tuple[str, int]]:
    """Return kind and time of the events of an alarm, oldest first."""
    query = select(alarm_event).where(alarm_event.c.alarm == number).order_by(alarm_event.c.id)
    rows = database.read_now(lambda connection: connection.execute(query).all())
    return [(row.kind, row.time) for row in rows]


def list_received(log: NotifiedLog | NotifiedFleet) -> list[tuple[str, str, bool]]:
    """Return channel, type and whether it is provisional, of all messages about the database."""
    found = []
    for name, message in log.recorder.received:
        if isinstance(message.body, EventMessage):
            data: dict[str, Any] = message.body.data
            if data["rule"] == "database":
                found.append((name, message.body.type, data.get("provisional", False)))
        else:
            found += [
                (name, str(each.kind), False) for each in message.body.entries if "database" in each.sentence
            ]
    return found


async def test_a_database_that_is_away_for_five_minutes_is_told_once_and_written_afterwards(
    fleet: NotifiedFleet,
) -> None:
    fleet.notifications.add_route(fleet.hook, fleet.mail, groupSeconds=0)
    fleet.add_gateway(1, 3)
    await fleet.run(3 * MINUTE)
    await look(fleet)
    lost_at = fleet.now
    with database_outage(fleet.database, tables=TABLES):
        for _ in range(0, 5 * MINUTE, STEP):
            fleet.now += STEP * 1000
            fleet.presence.ingest_harness.now = fleet.now
            fleet.presence.tracker.pause_detection(fleet.now)
            with pytest.raises(DatabaseUnavailable):
                fleet.evaluate()
            await look(fleet)
    assert sorted(list_received(fleet)) == [("hook", "alarm.opened", True), ("mail", "opened", False)]
    assert fleet.recorder.texts() == [[f"opened: {SENTENCE}"]]
    ((_, number),) = fleet.recorder.events()
    for _ in range(0, 14 * MINUTE, STEP):
        await fleet.step()
        await look(fleet)
    assert fleet.recorder.events() == [("alarm.opened", number), ("alarm.cleared", number)]
    assert fleet.recorder.texts()[1:] == [["cleared: The database can be used again after 5 min."]]
    (row,) = fleet.alarms()
    assert f"alarm-{row.id}" == number
    assert (row.rule, row.state, row.severity) == ("database", "cleared", 3)
    assert 0 < row.since - lost_at <= STEP * 1000
    assert row.opened_at - row.since == MINUTE * 1000
    kinds = [kind for kind, _ in list_events(fleet.database, row.id)]
    assert kinds[:4] == ["opened", "notified", "notified", "cleared"]
    assert set(kinds[4:]) == {"notified"}
    threads = {message.thread for name, message in fleet.recorder.received if name == "hook"}
    assert threads == {number}


async def test_a_short_outage_is_not_told(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, log.mail, groupSeconds=0)
    await pass_time(log, 30)
    for _ in range(2):
        await pass_outage(log, 60)
        await pass_time(log, 30)
    assert log.recorder.attempts == []
    assert log.alarms() == []


@pytest.mark.both_databases
async def test_only_channels_that_were_told_are_told_of_the_end(log: NotifiedLog) -> None:
    third = log.notifications.add_hook("deaf")
    fourth = log.notifications.add_hook("deleted")
    log.notifications.add_hook("not routed")
    log.notifications.add_route(log.mail, match={"severityAtLeast": "info", "rules": ["gateway-offline"]})
    log.notifications.add_route(log.hook, third, fourth)
    log.recorder.answer = lambda name, _message: FAILED if name == "deaf" else DELIVERED
    await pass_time(log, 30)
    await pass_outage(log, 2 * MINUTE)
    log.recorder.answer = lambda _name, _message: DELIVERED
    log.database.write_now(
        lambda connection: connection.execute(delete(channel).where(channel.c.name == "deleted"))
    )
    await pass_time(log, 5 * MINUTE)
    assert list_received(log) == [
        ("hook", "alarm.opened", True),
        ("deleted", "alarm.opened", True),
        ("hook", "alarm.cleared", False),
    ]
    (row,) = log.alarms()
    kinds = [kind for kind, _ in list_events(log.database, row.id)]
    assert kinds == ["opened", "notified", "not-delivered", "cleared", "notified"]
    told = log.database.read_now(lambda connection: connection.execute(select(channel_alarm)).all())
    assert told == []


async def test_an_outage_without_channels_is_written_all_the_same(log: NotifiedLog) -> None:
    await pass_time(log, 30)
    await pass_outage(log, 2 * MINUTE)
    await pass_time(log, MINUTE)
    assert log.recorder.attempts == []
    assert [(row.id, row.rule, row.state) for row in log.alarms()] == [(1, "database", "cleared")]


async def test_the_same_day_it_is_the_same_alarm_and_another_number_is_not_used_twice(
    log: NotifiedLog,
) -> None:
    log.notifications.add_route(log.hook)
    gateway, _ = log.add_gateway(1)
    await pass_time(log, 30)
    await pass_outage(log, 2 * MINUTE)
    await pass_time(log, MINUTE)
    await pass_outage(log, 2 * MINUTE)
    await pass_time(log, 5 * MINUTE)
    log.set_gateway(gateway, connected=False)
    await pass_time(log, 10 * MINUTE)
    log.now += 25 * 3600 * 1000
    await look(log)
    await pass_outage(log, 2 * MINUTE)
    await pass_time(log, MINUTE)
    events = log.recorder.events()
    turns = ["alarm.opened", "alarm.cleared"]
    assert [kind for kind, _ in events] == [*turns, *turns, "alarm.opened", *turns]
    first, *_, gone, last, _ = [number for _, number in events]
    assert [number for _, number in events] == [first] * 4 + [gone, last, last]
    assert len({first, gone, last}) == 3
    rows = log.database.read_now(
        lambda connection: connection.execute(select(alarm).where(alarm.c.rule == "database")).all()
    )
    assert [(f"alarm-{row.id}", row.reopened) for row in rows] == [(first, 1), (last, 0)]
    assert [kind for kind, _ in list_events(log.database, rows[0].id)].count("reopened") == 1


async def test_a_full_disk_is_told_although_queries_work(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    await pass_time(log, 30)
    for _ in range(0, 2 * MINUTE, 20):
        log.now += 20_000
        log.database.write_problem = ReadinessProblem(ReadinessCode.DISK_FULL, "full")
        await look(log)
    text = SENTENCE.replace("used", "used because its disk is full")
    assert log.recorder.texts() == [[f"opened: {text}"]]
    await pass_time(log, MINUTE)
    assert log.recorder.kinds() == [["opened"], ["cleared"]]
