"""Changes of an alarm, of its routes and of a channel while messages are held: nothing is lost or wrong."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import insert, update

from meshfleet.db.tables import alarm, channel, device_label, label
from meshfleet.rest.channels import AlarmRoute
from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms import commands
from meshfleet.service.notifications import planner, route_commands
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.ingest.messages import mac_to_number
from tests.service.notifications.fleet_harness import NotifiedLog
from tests.service.notifications.notifier_harness import DELIVERED, FAILED

if TYPE_CHECKING:
    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

DAYTIME = {"from": "07:00", "to": "20:00"}
CRITICAL = {"severityAtLeast": "critical"}


def to_millis(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


@pytest.fixture
def night(database: Database) -> NotifiedLog:
    """Begin an hour after the end of the hours `DAYTIME`."""
    return NotifiedLog(database, to_millis("2026-03-28T21:00"))


async def lose_gateway(log: NotifiedLog, gateway: str, seconds: int = 10 * MINUTE) -> None:
    log.set_gateway(gateway, connected=False)
    await log.pass_time(seconds)


async def lose_devices(log: NotifiedLog, gateway: str, devices: list[str]) -> None:
    for each in devices:
        log.set_device(each, gateway, connected=False)
    await log.pass_time(15 * MINUTE)


def make_critical(log: NotifiedLog) -> None:
    log.execute(update(alarm).values(severity=3, version=alarm.c.version + 1))


def add_label(log: NotifiedLog, text: str, mac: str) -> None:
    log.execute(insert(label).values(id=1, text=text, created_at=0))
    log.execute(insert(device_label).values(device=mac_to_number(mac), label=1))


def replace_routes(log: NotifiedLog, *routes: dict[str, Any]) -> None:
    parsed = msgspec.convert(routes, tuple[AlarmRoute, ...])
    log.database.write_now(route_commands.replace_routes, parsed, by=SERVICE, now=log.now)


async def test_a_silenced_alarm_is_not_looked_at_again_and_again(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, repeatSeconds=3600)
    gateway, _ = log.add_gateway(1)
    await lose_gateway(log, gateway)
    log.silence(1, 4 * HOUR)
    await log.pass_time(90 * MINUTE, step=300)
    assert not log.database.read_now(planner.needs_plan, log.now)


async def test_what_is_held_of_an_alarm_that_is_silenced_is_not_sent(night: NotifiedLog) -> None:
    night.notifications.add_route(night.mail, hours=DAYTIME)
    gateway, _ = night.add_gateway(1)
    await lose_gateway(night, gateway)
    night.silence(1, 48 * HOUR)
    await night.pass_time(12 * HOUR, step=600)
    assert night.recorder.kinds() == []


async def test_an_alarm_that_becomes_critical_at_night_is_told_at_night(night: NotifiedLog) -> None:
    night.notifications.add_route(night.mail, match=CRITICAL, groupSeconds=0)
    night.notifications.add_route(night.mail, hours=DAYTIME)
    gateway, _ = night.add_gateway(1)
    await lose_gateway(night, gateway)
    make_critical(night)
    await night.pass_time(2 * MINUTE)
    assert night.recorder.kinds() == [["opened"]]


async def test_an_alarm_that_becomes_severe_in_a_silence_is_told_after_it(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, match=CRITICAL, groupSeconds=0)
    log.notifications.add_route(log.hook)
    gateway, _ = log.add_gateway(1)
    await lose_gateway(log, gateway)
    log.silence(1, 10 * HOUR)
    make_critical(log)
    await log.pass_time(2 * MINUTE)
    assert log.recorder.kinds() == []
    log.database.write_now(commands.unsilence_alarm, 1, by=SERVICE, now=log.now)
    await log.pass_time(2 * MINUTE)
    assert log.recorder.kinds() == [["opened"]]


async def test_news_that_were_held_when_an_alarm_was_silenced_are_told_after_the_silence(
    log: NotifiedLog,
) -> None:
    log.notifications.add_route(log.mail, groupSeconds=3600)
    gateway, _ = log.add_gateway(1)
    await lose_gateway(log, gateway)
    make_critical(log)
    await log.pass_time(2 * MINUTE)
    log.silence(1, 2 * HOUR)
    await log.pass_time(MINUTE)
    log.database.write_now(commands.unsilence_alarm, 1, by=SERVICE, now=log.now)
    await log.pass_time(2 * HOUR, step=600)
    assert log.recorder.kinds() == [["opened"], ["updated"]]


async def test_a_labeled_device_is_told_although_another_one_was_silent_before(log: NotifiedLog) -> None:
    gateway, devices = log.add_gateway(1, 3)
    add_label(log, "Freezer", devices[1])
    log.notifications.add_route(log.mail, match={"labels": ["Freezer"]}, groupSeconds=0)
    await lose_devices(log, gateway, devices[:1])
    assert log.recorder.kinds() == []
    await lose_devices(log, gateway, devices[1:2])
    assert log.recorder.kinds() == [["opened"]]
    for each in devices[:2]:
        log.set_device(each, gateway, connected=True)
    await log.pass_time(10 * MINUTE)
    assert log.recorder.kinds() == [["opened"], ["cleared"]]


async def test_each_new_member_after_an_acknowledgment_is_told(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, log.mail, groupSeconds=0)
    gateway, devices = log.add_gateway(1, 12)
    await lose_devices(log, gateway, devices[:4])
    for number in (4, 5):
        log.acknowledge(1)
        await log.pass_time(2 * MINUTE)
        await lose_devices(log, gateway, devices[number : number + 1])
    assert log.recorder.kinds() == [["opened"], ["updated"], ["updated"]]
    log.acknowledge(1)
    await log.pass_time(MINUTE)
    log.database.write_now(commands.unacknowledge_alarm, 1, by=SERVICE, now=log.now)
    await log.pass_time(MINUTE)
    assert [kind for kind, _ in log.recorder.events()] == [
        "alarm.opened",
        *("alarm.acknowledged", "alarm.updated") * 3,
    ]
    assert len(log.recorder.kinds()) == 3


async def test_a_member_that_joins_right_after_an_acknowledgment_is_told(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, log.mail, groupSeconds=0)
    gateway, devices = log.add_gateway(1, 12)
    await lose_devices(log, gateway, devices[:4])
    told = len(log.recorder.events())
    for number in (4, 5, 6):
        log.set_device(devices[number], gateway, connected=False)
        await log.pass_time(9 * MINUTE)
        log.acknowledge(1)
        log.run(2 * MINUTE)  # without a plan
        await log.pass_time(2 * MINUTE)
    assert log.recorder.kinds() == [["opened"], ["updated"], ["updated"], ["updated"]]
    assert [kind for kind, _ in log.recorder.events()[told:]] == ["alarm.acknowledged", "alarm.updated"] * 3


async def test_programs_are_told_of_growth_although_people_get_repetitions(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, repeatSeconds=600)
    gateway, devices = log.add_gateway(1, 12)
    for number in range(4):
        log.set_device(devices[number], gateway, connected=False)
        await log.pass_time(2 * MINUTE)
    await log.pass_time(30 * MINUTE)
    assert [kind for kind, _ in log.recorder.events()] == ["alarm.opened", "alarm.updated"]


async def test_alarms_that_open_one_after_the_other_are_grouped(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=300)
    gateways = [log.add_gateway(number, 3) for number in range(1, 7)]
    for gateway, devices in gateways:
        log.set_device(devices[0], gateway, connected=False)
        await log.pass_time(5, step=5)
    await log.pass_time(12 * MINUTE, step=5)
    times = [message.now for _, message in log.recorder.received]
    assert sum(map(len, log.recorder.kinds())) == 6
    assert all(after - before >= 300_000 for before, after in pairwise(times))


async def test_a_program_is_told_of_an_end_that_came_while_its_channel_was_off(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook)
    gateway, _ = log.add_gateway(1)
    await lose_gateway(log, gateway)
    log.execute(update(channel).where(channel.c.name == "hook").values(enabled=False))
    log.set_gateway(gateway, connected=True)
    await log.pass_time(10 * MINUTE)
    log.execute(update(channel).where(channel.c.name == "hook").values(enabled=True))
    await log.pass_time(2 * MINUTE)
    assert [kind for kind, _ in log.recorder.events()] == ["alarm.opened", "alarm.cleared"]


async def test_the_end_of_an_alarm_that_was_dropped_in_quiet_hours_is_not_told(database: Database) -> None:
    log = NotifiedLog(database, to_millis("2026-03-28T06:30"))
    log.notifications.add_route(log.mail, hours=DAYTIME, quiet="drop", groupSeconds=0)
    gateway, _ = log.add_gateway(1)
    await lose_gateway(log, gateway, 50 * MINUTE)
    log.set_gateway(gateway, connected=True)
    await log.pass_time(HOUR, step=60)
    assert log.recorder.kinds() == []


async def test_the_end_that_was_held_is_told_although_the_alarm_came_and_went_again(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    first, second = (log.add_gateway(number)[0] for number in (1, 2))
    await lose_gateway(log, first)
    log.recorder.answer = lambda _name, _message: FAILED
    await lose_gateway(log, second)
    for connected in (True, False, True):
        log.set_gateway(first, connected=connected)
        await log.pass_time(10 * MINUTE)
    await log.pass_time(30 * MINUTE, step=60)
    log.recorder.answer = lambda _name, _message: DELIVERED
    await log.pass_time(10 * MINUTE)
    assert any("cleared: Gateway Gateway 1" in line for lines in log.recorder.texts() for line in lines)


async def test_alarms_that_have_one_cause_now_are_not_told_as_over(night: NotifiedLog) -> None:
    night.notifications.add_route(night.mail, match=CRITICAL, groupSeconds=0)
    night.notifications.add_route(night.mail, hours=DAYTIME)
    gateways = [night.add_gateway(number)[0] for number in range(1, 7)]
    for each in gateways[:2]:
        night.set_gateway(each, connected=False)
    await night.pass_time(7 * MINUTE)
    for each in gateways[2:]:
        night.set_gateway(each, connected=False)
    await night.pass_time(14 * HOUR, step=600)
    assert [lines[0].partition(":")[0] for lines in night.recorder.texts()] == ["opened"]


async def test_a_route_that_is_renamed_still_says_how_the_end_is_told(database: Database) -> None:
    log = NotifiedLog(database, to_millis("2026-03-28T18:00"))
    silent = {"name": "Silent", "channels": [log.hook], "cleared": False, "continue": True}
    by_day = {"name": "By day", "channels": [log.mail], "hours": DAYTIME, "groupSeconds": 0}
    replace_routes(log, silent, by_day)
    gateway, _ = log.add_gateway(1)
    await lose_gateway(log, gateway)
    assert (log.recorder.kinds(), len(log.recorder.events())) == ([["opened"]], 1)
    replace_routes(log, {**by_day, "name": "Office hours"}, {**silent, "name": "Quiet"})
    await log.pass_time(2 * HOUR, step=600)
    log.set_gateway(gateway, connected=True)
    await log.pass_time(2 * HOUR, step=600)
    assert (log.recorder.kinds(), len(log.recorder.events())) == ([["opened"]], 1)
    await log.pass_time(10 * HOUR, step=600)
    assert log.recorder.kinds() == [["opened"], ["cleared"]]


def test_a_renamed_route_is_found_by_what_it_does_or_by_its_place() -> None:
    def find(before: str, after: str) -> dict[str, str]:
        lists = [
            [AlarmRoute(name=each[0], channels=[f"channel-{each[1]}"]) for each in text.split()]
            for text in (before, after)
        ]
        return route_commands.find_renamed_routes(*lists)

    assert find("A1 B2", "A1 B2") == {}
    assert find("A1 B2", "B2 C1") == {"A": "C"}  # moved, too
    assert find("A1 B2", "C3 B2") == {"A": "C"}  # changed, too
    assert find("A1 B2", "B2 A1") == {}
    assert find("A1 B2", "B2") == {}
