"""Messages about an alarm after it has opened, and the time at which people get them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.notifications.fleet_harness import NotifiedLog

if TYPE_CHECKING:
    from meshfleet.db import Database

pytestmark = pytest.mark.anyio

DAY = 24 * HOUR


def to_millis(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


async def lose_devices(log: NotifiedLog, gateway: str, devices: list[str]) -> None:
    """Let devices fall silent, and wait until that is an alarm."""
    for each in devices:
        log.set_device(each, gateway, connected=False)
    await log.pass_time(15 * MINUTE)


@pytest.mark.both_databases
async def test_a_new_member_of_an_acknowledged_alarm_is_told(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, log.mail, groupSeconds=0)
    gateway, devices = log.add_gateway(1, 5)
    await lose_devices(log, gateway, devices[:2])
    log.acknowledge(1)
    await log.pass_time(10 * MINUTE)
    assert log.recorder.kinds() == [["opened"]]
    await lose_devices(log, gateway, devices[2:3])
    assert log.recorder.kinds() == [["opened"], ["updated"]]
    assert [kind for kind, _ in log.recorder.events()] == [
        "alarm.opened",
        "alarm.acknowledged",
        "alarm.updated",
    ]


async def test_an_alarm_is_told_again_when_it_has_doubled_and_not_before(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    gateway, devices = log.add_gateway(1, 12)
    await lose_devices(log, gateway, devices[:3])
    await lose_devices(log, gateway, devices[3:5])
    assert log.recorder.kinds() == [["opened"]]
    await lose_devices(log, gateway, devices[5:6])
    assert log.recorder.texts()[1:] == [["updated: 6 devices behind Gateway 1 stopped without a warning."]]


async def test_an_open_alarm_is_repeated_until_it_is_acknowledged(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, repeatSeconds=3600)
    gateway, _ = log.add_gateway(1)
    log.set_gateway(gateway, connected=False)
    await log.pass_time(10 * HOUR, step=300)
    assert log.recorder.kinds() == [["opened"], ["repeated"], ["repeated"], ["repeated"]]
    log.acknowledge(1)
    await log.pass_time(10 * HOUR, step=600)
    assert len(log.recorder.kinds()) == 4


async def test_alarms_that_open_together_are_one_message_and_the_first_waits_only_for_seconds(
    log: NotifiedLog,
) -> None:
    log.notifications.add_route(log.mail, groupSeconds=600)
    first, second, third = (log.add_gateway(number, 4) for number in (1, 2, 3))
    for gateway, devices in (first, second):
        log.set_device(devices[0], gateway, connected=False)
    await log.pass_time(15 * MINUTE, step=10)
    assert log.recorder.kinds() == [["opened", "opened"]]
    sent = log.recorder.received[0][1].now
    log.set_device(third[1][0], third[0], connected=False)
    await log.pass_time(15 * MINUTE, step=10)
    assert log.recorder.kinds()[1:] == [["opened"]]
    assert log.recorder.received[1][1].now - sent >= 600_000


async def test_an_alarm_that_ends_before_it_was_told_is_not_told(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=3600)
    log.notifications.add_route(log.hook)
    first, second = (log.add_gateway(number)[0] for number in (1, 2))
    log.set_gateway(first, connected=False)
    await log.pass_time(10 * MINUTE)
    assert log.recorder.kinds() == [["opened"]]
    log.set_gateway(second, connected=False)
    await log.pass_time(10 * MINUTE)
    log.set_gateway(second, connected=True)
    await log.pass_time(2 * HOUR, step=60)
    assert log.recorder.kinds() == [["opened"]]


async def test_nothing_is_told_during_a_silence_and_the_open_alarm_after_it(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, log.hook, groupSeconds=0, repeatSeconds=1800)
    first, second = (log.add_gateway(number)[0] for number in (1, 2))
    log.set_gateway(first, connected=False)
    await log.pass_time(10 * MINUTE)
    log.silence(1, 4 * HOUR)
    log.set_gateway(second, connected=False)
    await log.pass_time(3 * HOUR, step=300)
    told = [lines for lines in log.recorder.texts() if "Gateway 1" in lines[0]]
    assert [lines[0].partition(":")[0] for lines in told] == ["opened"]
    await log.pass_time(61 * MINUTE, step=300)
    told = [lines for lines in log.recorder.texts() if "Gateway 1" in lines[0]]
    assert [lines[0].partition(":")[0] for lines in told] == ["opened", "still-open"]
    assert ("alarm.updated", "alarm-1") in log.recorder.events()


async def test_an_alarm_that_ends_during_a_silence_ends_it_without_a_message(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    gateway, _ = log.add_gateway(1)
    log.set_gateway(gateway, connected=False)
    await log.pass_time(10 * MINUTE)
    log.silence(1, 4 * HOUR)
    log.set_gateway(gateway, connected=True)
    await log.pass_time(HOUR)
    assert log.recorder.kinds() == [["opened"]]
    log.set_gateway(gateway, connected=False)
    await log.pass_time(10 * MINUTE)
    assert log.recorder.kinds() == [["opened"], ["opened"]]


async def test_quiet_hours_end_at_the_local_time_after_a_change_of_the_clocks(
    database: Database,
) -> None:
    # The clocks in Zurich are set forward on 29 March 2026: 07:00 is 06:00 UTC before, 05:00 UTC after.
    log = NotifiedLog(database, to_millis("2026-03-28T19:00"))
    hours = {"from": "07:00", "to": "20:00"}
    log.notifications.add_route(log.mail, hours=hours, timeZone="Europe/Zurich", groupSeconds=0)
    (first, devices), (second, others) = (log.add_gateway(number, 5) for number in (1, 2))
    log.set_device(devices[0], first, connected=False)
    await log.pass_time(HOUR, step=300)
    log.set_device(others[0], second, connected=False)
    await log.pass_time(HOUR, step=300)
    log.set_device(others[0], second, connected=True)
    await log.pass_time(7 * HOUR + 59 * MINUTE, step=300)
    assert log.recorder.texts() == []
    await log.pass_time(2 * MINUTE, step=60)
    assert log.recorder.texts() == [["opened: Device 0000 stopped without a warning.", "1 passed"]]
    assert log.recorder.received[0][1].now >= to_millis("2026-03-29T05:00")


async def test_quiet_hours_do_not_hold_what_is_critical(database: Database) -> None:
    log = NotifiedLog(database, to_millis("2026-03-28T22:00"))
    log.notifications.add_route(log.mail, hours={"from": "07:00", "to": "20:00"}, groupSeconds=0)
    gateway, devices = log.add_gateway(1, 5)
    log.set_gateway(gateway, connected=False)
    log.change(*devices, connected=False, cause=log.WITH_GATEWAY, gateway=gateway)
    await log.pass_time(10 * MINUTE)
    assert log.recorder.kinds() == [["opened"]]


async def test_a_digest_tells_everything_at_its_hour(database: Database) -> None:
    log = NotifiedLog(database, to_millis("2026-03-28T10:00"))
    log.notifications.add_route(log.mail, digest="08:00")
    (first, devices), (second, others) = (log.add_gateway(number, 5) for number in (1, 2))
    log.set_device(devices[0], first, connected=False)
    log.set_device(others[0], second, connected=False)
    await log.pass_time(21 * HOUR, step=600)
    assert log.recorder.kinds() == []
    await log.pass_time(2 * HOUR, step=600)
    assert log.recorder.kinds() == [["opened", "opened"]]


async def test_the_first_route_that_matches_is_used(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, match={"severityAtLeast": "critical"}, groupSeconds=0)
    log.notifications.add_route(log.hook, match={"gateways": ["02005e000002"]})
    first, _ = log.add_gateway(1)
    second, devices = log.add_gateway(2, 3)
    log.set_gateway(first, connected=False)  # a warning: no device depends on it
    log.set_device(devices[0], second, connected=False)
    await log.pass_time(15 * MINUTE)
    assert log.recorder.kinds() == []
    assert [kind for kind, _ in log.recorder.events()] == ["alarm.opened"]


async def test_many_messages_in_an_hour_become_fewer(log: NotifiedLog) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    gateways = [log.add_gateway(number, 2) for number in range(1, 31)]
    for gateway, devices in gateways:
        log.set_device(devices[0], gateway, connected=False)
        await log.pass_time(MINUTE, step=60)
    await log.pass_time(90 * MINUTE, step=300)
    messages = log.recorder.kinds()
    assert sum(map(len, messages)) == 30
    assert len(messages) <= 23
