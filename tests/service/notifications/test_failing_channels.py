"""Channels that fail, messages that no one takes, full disks, and clocks that are set back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import delete, event, func, insert, select, update

from meshfleet.db.tables import alarm, channel, notification
from meshfleet.db.tables.notifications import IS_SENT
from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem
from meshfleet.mqtt.broker import take_ownership
from meshfleet.rest.channels import ChannelKind, NewChannel
from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms import commands
from meshfleet.service.notifications import (
    channel_commands,
    clock_changes,
    delivery_commands,
    outbox,
    views,
)
from meshfleet.service.notifications.channels import load_channels
from meshfleet.service.notifications.delivery import DeliveryResult, Outcome
from meshfleet.service.notifications.messages import HumanMessage
from meshfleet.service.notifications.notifier import Notifier
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.notifications.fleet_harness import NotifiedLog
from tests.service.notifications.notifier_harness import DELIVERED, FAILED, REFUSED, NotifierHarness

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

NOW = 1_790_000_000_000
EVENT = '{"type":"alarm.opened","timestamp":"","data":{"id":"alarm-1"}}'
LIMITED = DeliveryResult(Outcome.CHANNEL_FAILED, 429, "too many requests", 3600.0)


def add_messages(database: Database, count: int, **values: Any) -> None:
    """Add messages that wait in the channel 1."""
    row = {"channel": 1, "kind": "opened", "state": "waiting", "attempts": 0, "body": EVENT}
    rows = [{**row, "created_at": NOW, "due": NOW, **values} for _ in range(count)]
    database.write_now(lambda connection: connection.execute(insert(notification), rows))


def add_watchdog(database: Database) -> None:
    """Add a watchdog named `dog`."""
    new = NewChannel(name="dog", kind=ChannelKind.WATCHDOG, url="https://example.com/")
    database.write_now(channel_commands.create_channel, new, by=SERVICE, now=NOW)


def set_channel(database: Database, **values: Any) -> None:
    """Change the row of the channel 1."""
    statement = update(channel).where(channel.c.id == 1).values(**values)
    database.write_now(lambda connection: connection.execute(statement))


async def test_a_delivery_that_cannot_be_recorded_is_not_repeated(database: Database) -> None:
    harness = NotifierHarness(database, lambda: NOW)
    harness.add_hook()

    async def fail(*_args: object, **_options: object) -> None:
        raise DatabaseUnavailable("the disk is full")

    await harness.notifier.run_once()
    add_messages(database, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "write", fail)
        for _ in range(3):
            await harness.notifier.run_once()
    assert len(harness.recorder.received) == 1
    assert harness.states() == {"waiting": 1}
    database.write_problem = ReadinessProblem(ReadinessCode.DISK_FULL, "full")
    add_messages(database, 1)
    database.write_problem = ReadinessProblem(ReadinessCode.DISK_FULL, "full")
    await harness.notifier.run_once()  # stores the result, so the disk is known to have space again
    assert harness.states() == {"sent": 1, "waiting": 1}
    await harness.notifier.run_once()
    assert len(harness.recorder.received) == 2
    assert harness.states() == {"sent": 2}


async def test_nothing_is_sent_while_nothing_can_be_stored(database: Database) -> None:
    harness = NotifierHarness(database, lambda: NOW)
    harness.add_hook()
    add_messages(database, 1)
    database.write_problem = ReadinessProblem(ReadinessCode.DISK_FULL, "full")
    await harness.notifier.run_once()
    assert harness.recorder.attempts == []
    database.write_problem = None
    await harness.notifier.run_once()
    assert len(harness.recorder.received) == 1


async def test_a_process_whose_database_another_has_taken_over_sends_nothing(database: Database) -> None:
    harness = NotifierHarness(database, lambda: NOW)
    harness.add_hook()
    options: dict[str, Any] = {
        "on_changed": lambda _changed: None,
        "is_well": lambda: True,
        "batch_seconds": 0,
    }
    deliverers = dict.fromkeys(ChannelKind, harness.recorder)
    token = database.write_now(take_ownership)
    notifier = Notifier(database, deliverers, owner=token, now=lambda: NOW, **options)
    add_messages(database, 1)
    await notifier.run_once()
    assert len(harness.recorder.received) == 1
    database.write_now(take_ownership)
    add_messages(database, 1)
    await notifier.run_once()
    assert len(harness.recorder.attempts) == 1


async def test_a_message_that_fails_does_not_keep_others_from_people(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    gateways = [log.add_gateway(number)[0] for number in (1, 2)]
    log.recorder.answer = lambda _name, message: FAILED if message.thread == "alarm-1" else DELIVERED
    for each in gateways:
        log.set_gateway(each, connected=False)
        await log.pass_time(10 * MINUTE)
    await log.pass_time(15 * MINUTE)
    assert ["Gateway 2" in text for (text,) in log.recorder.texts()] == [True]


async def test_a_second_message_beside_a_failing_one_is_about_other_alarms(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    gateways = [log.add_gateway(number)[0] for number in range(1, 6)]
    log.recorder.answer = lambda _name, _message: FAILED
    log.set_gateway(gateways[0], connected=False)
    await log.pass_time(6 * MINUTE)
    log.set_gateway(gateways[0], connected=True)
    log.set_gateway(gateways[1], connected=False)
    await log.pass_time(30 * MINUTE, step=60)
    composed = [each.body.entries for _, each in log.recorder.attempts if isinstance(each.body, HumanMessage)]
    assert {entry.alarm for entries in composed for entry in entries} == {"alarm-1", "alarm-2"}
    log.recorder.answer = lambda _name, _message: DELIVERED
    await log.pass_time(10 * MINUTE, step=60)
    assert [len(lines) for lines in log.recorder.texts()] == [1, 1, 1]
    assert log.recorder.kinds()[2] == ["cleared"]


async def test_too_many_requests_never_count_on_a_message(database: Database) -> None:
    now = NOW
    harness = NotifierHarness(database, lambda: now)
    harness.add_hook()
    add_messages(database, 1, failed_at=NOW - 2 * MINUTE * 1000)
    set_channel(database, delivered_at=NOW - MINUTE * 1000)
    harness.recorder.answer = lambda _name, _message: LIMITED
    for _ in range(12):
        await harness.notifier.run_once()
        now += 5 * MINUTE * 1000
    assert len(harness.recorder.attempts) == 1
    assert harness.states() == {"waiting": 1}
    row = database.read_now(lambda connection: connection.execute(select(notification)).one())
    assert row.attempts == 0


async def test_a_message_of_its_own_waits_as_long_as_the_receiver_wants(database: Database) -> None:
    harness = NotifierHarness(database, lambda: NOW)
    harness.add_hook()
    add_messages(database, 1)
    harness.recorder.answer = lambda _name, _message: REFUSED._replace(retry_after=90.0)
    await harness.notifier.run_once()
    row = database.read_now(lambda connection: connection.execute(select(notification)).one())
    assert (row.attempts, row.due) == (1, NOW + 90_000)


async def lose_devices(log: NotifiedLog, count: int) -> None:
    """Let one device of each gateway fall silent at the same time, and send the messages."""
    gateways = [log.add_gateway(number, 2) for number in range(1, count + 1)]
    for gateway, devices in gateways:
        log.set_device(devices[0], gateway, connected=False)
    await log.pass_time(11 * MINUTE)


async def test_a_receiver_that_wants_a_pause_gets_it_although_it_took_another_message(
    log: NotifiedLog,
) -> None:
    log.notifications.add_route(log.hook)
    log.recorder.answer = lambda _name, message: LIMITED if message.thread == "alarm-1" else DELIVERED
    await lose_devices(log, 4)
    assert len(log.recorder.attempts) == 4
    await log.pass_time(45 * MINUTE, step=60)
    assert len(log.recorder.attempts) == 4
    log.recorder.answer = lambda _name, _message: DELIVERED
    await log.pass_time(15 * MINUTE, step=60)
    assert log.notifications.states() == {"sent": 4}


async def test_messages_that_fail_at_the_same_moment_are_one_failure(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook)
    log.recorder.answer = lambda _name, _message: FAILED
    await lose_devices(log, 4)
    stored = log.database.read_now(load_channels, log.now)[1]
    assert (stored.failures, len(log.recorder.attempts)) == (3, 6)


async def test_a_message_that_is_never_answered_is_given_up_after_five_attempts(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook)
    unanswered = DeliveryResult(Outcome.CHANNEL_FAILED, problem="the receiver did not answer in time")
    log.recorder.answer = lambda _name, message: unanswered if message.thread == "alarm-1" else DELIVERED
    await lose_devices(log, 3)
    gateway, devices = log.add_gateway(9, 20)
    for each in devices[:8]:
        log.set_device(each, gateway, connected=False)
        log.acknowledge(2)
        await log.pass_time(10 * MINUTE, step=60)
        log.database.write_now(commands.unacknowledge_alarm, 2, by=SERVICE, now=log.now)
    assert log.notifications.states()["dead"] == 1
    assert "given-up" in [each.cause for each in log.alarms(state="open")]


async def test_a_clock_that_is_set_back_delays_nothing(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    add_watchdog(log.database)
    gateways = [log.add_gateway(number)[0] for number in (1, 2, 3)]
    for number, each in enumerate(gateways):
        calls = [name for name, _ in log.recorder.received].count("dog")
        log.set_gateway(each, connected=False)
        await log.pass_time(20 * MINUTE)
        assert len(log.recorder.kinds()) == number + 1
        assert [name for name, _ in log.recorder.received].count("dog") >= calls + 3
        log.now -= 6 * HOUR * 1000
        if number == 1:
            log.notifications.start()  # after a restart
        await log.pass_time(MINUTE)


def test_the_end_of_quiet_hours_stays_when_the_clock_is_set_back(database: Database) -> None:
    NotifierHarness(database, lambda: NOW).add_mail()
    for hold in ("group", "quiet", "digest"):
        add_messages(database, 1, state="held", hold=hold, due=NOW + 1000)
    database.write_now(clock_changes.shift_times, -5000, NOW - 5000)
    query = select(notification.c.due).order_by(notification.c.id)
    assert database.read_now(lambda connection: connection.scalars(query).all()) == [
        NOW - 4000,
        NOW + 1000,
        NOW + 1000,
    ]


async def test_a_digest_that_was_planned_with_a_wrong_clock_comes_at_its_next_hour(
    database: Database,
) -> None:
    right = NOW - NOW % (24 * HOUR * 1000) + 12 * HOUR * 1000  # at noon
    log = NotifiedLog(database, right + 400 * 24 * HOUR * 1000)
    log.notifications.add_route(log.mail, match={"rules": ["gateway-offline"]}, digest="08:00")
    log.notifications.add_route(log.mail, hours={"from": "13:00", "to": "20:00"}, groupSeconds=0)
    gateway, devices = log.add_gateway(1, 2)
    log.add_gateway(2)
    log.set_device(devices[0], gateway, connected=False)
    await log.pass_time(11 * MINUTE)
    log.set_gateway(gateway, connected=False)
    await log.pass_time(6 * MINUTE)
    assert log.notifications.states() == {"held": 2}
    log.now = right
    times = []
    for _ in range(42):
        before = len(log.recorder.kinds())
        await log.pass_time(30 * MINUTE, step=1800)
        if len(log.recorder.kinds()) > before:
            times.append((log.now - right) / HOUR / 1000)
    assert times == [1, 20]


class CountedWrites:
    """Transactions of a database, which are counted."""

    def __init__(self, database: Database) -> None:
        self.number = 0
        self._write = database.write_now

    def __call__(self, *args: Any) -> Any:
        """Run a transaction."""
        self.number += 1
        return self._write(*args)


async def test_a_refused_message_that_waits_causes_no_transactions(
    log: NotifiedLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    log.recorder.answer = lambda _name, _message: REFUSED._replace(retry_after=3000.0)
    gateways = [log.add_gateway(number)[0] for number in (1, 2)]
    for each in gateways:
        log.set_gateway(each, connected=False)
        await log.pass_time(8 * MINUTE)
    assert log.notifications.states() == {"folded": 1, "waiting": 1, "held": 1}
    await log.notifications.notifier.run_once()
    counted = CountedWrites(log.database)
    monkeypatch.setattr(log.database, "write_now", counted)
    for _ in range(5):
        log.now += 1000
        await log.notifications.notifier.run_once()
    assert counted.number == 0


async def test_a_message_that_was_given_up_before_it_was_composed_is_tried_again(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, hours={"from": "00:00", "to": "00:01"})
    gateways = [log.add_gateway(number)[0] for number in (1, 2)]
    log.set_gateway(gateways[0], connected=False)
    await log.pass_time(8 * MINUTE)
    assert log.notifications.states() == {"held": 1}
    give_up = update(notification).values(state="dead", finished_at=log.now)
    log.execute(give_up)
    number = int(log.mail.removeprefix("channel-"))
    answer = log.database.write_now(delivery_commands.retry_dead_deliveries, number, by=SERVICE, now=log.now)
    assert (answer.retried, log.notifications.states()) == (1, {"held": 1})
    await log.pass_time(MINUTE)
    assert log.recorder.kinds() == [["opened"]]


@pytest.mark.both_databases
@pytest.mark.parametrize("change", [{"failing_since": NOW - 80 * HOUR * 1000}, {"enabled": False}])
def test_all_messages_are_given_up_after_three_days(database: Database, change: dict[str, Any]) -> None:
    harness = NotifierHarness(database, lambda: NOW)
    harness.add_hook()
    old = NOW - 73 * HOUR * 1000
    add_messages(database, 1100, created_at=old)
    add_messages(database, 1, created_at=old, retried_at=NOW - 71 * HOUR * 1000)
    add_messages(database, 1)
    assert not database.write_now(outbox.remove_old_messages, NOW)
    set_channel(database, **change)
    assert database.write_now(outbox.remove_old_messages, NOW)
    assert harness.states() == {"dead": 1000, "waiting": 102}
    assert not database.write_now(outbox.remove_old_messages, NOW)
    assert harness.states() == {"dead": 1100, "waiting": 2}


@pytest.mark.both_databases
async def test_only_dead_messages_that_are_still_news_are_tried_again(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, match={"rules": ["gateway-offline"]})
    gateway, _ = log.add_gateway(1)
    log.recorder.answer = lambda _name, _message: REFUSED
    log.set_gateway(gateway, connected=False)
    await log.pass_time(20 * MINUTE)
    log.recorder.answer = lambda _name, _message: DELIVERED
    assert log.notifications.states() == {"dead": 1}
    add_messages(log.database, 1, state="sent", alarm=1)
    add_messages(log.database, 1, state="dead", alarm=1)
    answer = log.database.write_now(delivery_commands.retry_dead_deliveries, 1, by=SERVICE, now=log.now)
    assert answer.retried == 1  # the other one is older than the message that was sent
    assert log.notifications.states() == {"folded": 1, "sent": 1, "waiting": 1}


async def test_an_alarm_that_is_over_and_was_never_told_is_not_told_later(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, match={"rules": ["gateway-offline"]})
    gateway, _ = log.add_gateway(1)
    log.recorder.answer = lambda _name, _message: REFUSED
    log.set_gateway(gateway, connected=False)
    await log.pass_time(20 * MINUTE)
    log.set_gateway(gateway, connected=True)
    await log.pass_time(30 * MINUTE)
    answer = log.database.write_now(delivery_commands.retry_dead_deliveries, 1, by=SERVICE, now=log.now)
    assert answer.retried == 0
    assert log.notifications.states() == {"folded": 2}


async def test_a_watchdog_that_fails_is_called_again_soon(database: Database) -> None:
    now = NOW
    harness = NotifierHarness(database, lambda: now)
    add_watchdog(database)
    harness.recorder.answer = lambda _name, _message: FAILED
    for _ in range(40):
        await harness.notifier.run_once()
        now += 1000
    assert [message.now - NOW for _, message in harness.recorder.attempts] == [0, 5000, 35_000]


@pytest.mark.both_databases
def test_two_first_channels_at_once_get_one_set_of_routes(database: Database) -> None:
    def create(name: str) -> object:
        new = NewChannel(name=name, kind=ChannelKind.EMAIL, recipients=["ops@example.com"])
        return database.write_now(channel_commands.create_channel, new, by=SERVICE, now=NOW)

    with ThreadPoolExecutor() as threads:
        assert len(list(threads.map(create, ["first", "second"]))) == 2
    assert len(database.read_now(views.load_routes).items) == 3


def test_queries_use_the_partial_indexes(database: Database) -> None:
    harness = NotifierHarness(database, lambda: NOW)
    harness.add_hook()
    harness.add_mail()

    def explain(connection: Connection) -> list[str]:
        executed: list[tuple[str, Any]] = []
        stored = load_channels(connection, NOW)
        event.listen(
            connection,
            "before_cursor_execute",
            lambda _connection, _cursor, text, values, _context, _many: executed.append((text, values)),
        )
        outbox.find_channels_with_work(connection, NOW)
        for each in stored.values():
            outbox.find_due(connection, each, NOW, limit=4)
            outbox.count_waiting(connection, each)
        plans = []
        for text, values in executed.copy():
            rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}", values)
            plans.append(" / ".join(row[3] for row in rows))
        return plans

    first, *others = database.read_now(explain)
    assert "ix_notification_due (channel=? AND due<?)" in first
    assert all("INDEX ix_notification_" in each and "SCAN notification" not in each for each in others)
    assert "ix_notification_waiting (channel=?)" in others[0]


def test_the_rate_of_messages_is_counted_with_an_index(database: Database) -> None:
    columns = notification.c
    query = select(func.min(columns.finished_at), func.count()).where(
        columns.channel == 1, IS_SENT, columns.finished_at > 0
    )

    def explain(connection: Connection) -> str:
        text = query.compile(dialect=connection.dialect, compile_kwargs={"literal_binds": True})
        return " ".join(row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}"))

    assert "ix_notification_sent (channel=? AND finished_at>?)" in database.read_now(explain)


async def test_a_result_for_an_alarm_that_was_deleted_meanwhile_is_recorded_on_the_channel(
    log: NotifiedLog,
) -> None:
    log.notifications.add_route(log.hook)
    gateway, _ = log.add_gateway(1)

    def delete_alarms(_name: str, _message: object) -> DeliveryResult:
        log.database.write_now(lambda connection: connection.execute(delete(alarm)))
        return DELIVERED

    log.recorder.answer = delete_alarms
    log.set_gateway(gateway, connected=False)
    await log.pass_time(6 * MINUTE)
    channels = log.database.read_now(load_channels, log.now)
    assert len(log.recorder.received) == 1
    assert channels[1].delivered_at is not None
