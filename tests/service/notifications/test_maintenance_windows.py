"""Silences of places and rules: what is told before, within and after a maintenance window."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from sqlalchemy import insert

from meshfleet.db.tables import alarm, alarm_condition
from meshfleet.protocol.times import format_millis
from meshfleet.rest.silences import NewSilence, Repetition
from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms import silence_commands, views
from meshfleet.service.alarms.silence_overlay import apply_silences
from meshfleet.service.alarms.silence_windows import Occurrence, SilenceTimes
from meshfleet.service.notifications import planner
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.ingest.messages import mac_to_number
from tests.service.notifications.test_transitions import add_label, lose_devices, lose_gateway

if TYPE_CHECKING:
    from tests.service.notifications.fleet_harness import NotifiedLog

pytestmark = pytest.mark.anyio


def add_silence(log: NotifiedLog, seconds: int, *, after: int = 0, **options: Any) -> int:
    """Create a silence that begins after some time and lasts for `seconds`. Return its number."""
    times = {"from": log.now + after * 1000, "until": log.now + (after + seconds) * 1000}
    body = {name: format_millis(each) for name, each in times.items()} | options
    new = msgspec.convert(body, NewSilence)
    created = log.database.write_now(silence_commands.create_silence, new, by=SERVICE, now=log.now)
    return int(created.id.removeprefix("silence-"))


def list_silenced(log: NotifiedLog) -> list[tuple[str, str | None]]:
    """Return the alarms that are silenced now, with who silences them."""
    query = views.AlarmListing(states=("silenced",))
    found = log.database.read_now(views.list_alarms, query, after=None, limit=100, now=log.now)
    return [(each.body.id, each.body.silenced_by) for each in found]


@pytest.mark.both_databases
@pytest.mark.rule("rest-297")
async def test_an_alarm_in_a_window_is_told_once_when_it_ends(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, log.mail, groupSeconds=0)
    gateway, devices = log.add_gateway(1, 4)
    add_silence(log, HOUR, scope={"gateways": [gateway]})
    await lose_devices(log, gateway, devices[:2])
    assert list_silenced(log) == [("alarm-1", "silence-1")]
    assert log.recorder.received == []
    assert log.database.read_now(views.build_attention, log.now).hidden.silences == 1
    await log.pass_time(HOUR, step=300)
    assert list_silenced(log) == []
    assert log.recorder.kinds() == [["still-open"]]
    assert [kind for kind, _ in log.recorder.events()] == ["alarm.updated"]
    for each in devices[:2]:
        log.set_device(each, gateway, connected=True)
    await log.pass_time(5 * MINUTE)
    assert log.recorder.kinds() == [["still-open"], ["cleared"]]
    assert not log.database.read_now(planner.needs_plan, log.now)


@pytest.mark.rule("rest-297")
async def test_an_alarm_that_ends_in_its_window_is_never_told(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, log.mail, groupSeconds=0)
    gateway, _ = log.add_gateway(1)
    add_silence(log, HOUR, scope={"rules": ["gateway-offline"]})
    await lose_gateway(log, gateway)
    log.set_gateway(gateway, connected=True)
    await log.pass_time(2 * HOUR, step=300)
    assert log.recorder.received == []


@pytest.mark.rule("rest-297")
async def test_a_member_elsewhere_is_told_in_a_window(log: NotifiedLog) -> None:
    log.notifications.add_route(log.hook, log.mail, groupSeconds=0)
    gateway, devices = log.add_gateway(1, 4)
    add_label(log, "Cold room", devices[0])
    add_silence(log, 4 * HOUR, scope={"labels": ["Cold room"]})
    await lose_devices(log, gateway, devices[:1])
    assert (list_silenced(log), log.recorder.received) == ([("alarm-1", "silence-1")], [])
    await lose_devices(log, gateway, devices[1:2])
    assert (list_silenced(log), log.recorder.kinds()) == ([], [["opened"]])
    log.set_device(devices[1], gateway, connected=True)
    await log.pass_time(5 * MINUTE)
    assert list_silenced(log) == [("alarm-1", "silence-1")]


@pytest.mark.rule("rest-297")
async def test_a_window_that_begins_changes_or_is_deleted_is_applied_to_open_alarms(
    log: NotifiedLog,
) -> None:
    log.notifications.add_route(log.mail, groupSeconds=0)
    gateways = [log.add_gateway(number, 2) for number in (1, 2)]
    for gateway, devices in gateways:
        log.set_device(devices[0], gateway, connected=False)
    await log.pass_time(12 * MINUTE)
    assert log.recorder.kinds() == [["opened", "opened"]]
    scope = {"devices": [f"bmac-{gateways[0][1][0]}"]}
    number = add_silence(log, HOUR, after=10 * MINUTE, scope=scope)
    await log.pass_time(9 * MINUTE)
    assert list_silenced(log) == []
    await log.pass_time(2 * MINUTE)
    assert list_silenced(log) == [("alarm-1", "silence-1")]
    body = {
        "scope": {"gateways": [gateways[1][0]]},
        "from": format_millis(log.now),
        "until": format_millis(log.now + HOUR * 1000),
    }
    new = msgspec.convert(body, NewSilence)
    log.database.write_now(silence_commands.replace_silence, number, new, by=SERVICE, now=log.now)
    await log.pass_time(MINUTE)
    assert list_silenced(log) == [("alarm-2", "silence-1")]
    assert log.recorder.kinds()[1:] == [["updated"]]
    log.database.write_now(silence_commands.delete_silence, number, by=SERVICE, now=log.now)
    await log.pass_time(MINUTE)
    assert list_silenced(log) == []
    assert log.recorder.kinds()[2:] == [["still-open"]]


def test_repetitions_begin_at_the_same_time_of_day() -> None:
    def millis(text: str) -> int:
        return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)

    first = Occurrence(millis("2026-03-27T21:00"), millis("2026-03-27T23:00"))
    until = millis("2026-03-29T21:00")
    times = SilenceTimes(first, Repetition.DAILY, until, "Europe/Zurich")
    found = [datetime.fromtimestamp(each.start / 1000, UTC) for each in times.list_occurrences()]
    assert [f"{each:%d %H:%M}" for each in found] == ["27 21:00", "28 21:00", "29 20:00"], "summer time"
    assert times.ends_at == until
    assert times.find_active(millis("2026-03-28T22:59")) == (first.start + 86_400_000, first.end + 86_400_000)
    assert times.find_active(first.end) is None
    assert times.find_next_start(first.end) == millis("2026-03-28T21:00")
    assert times.find_next_start(until) is None
    assert list(SilenceTimes(first).list_occurrences()) == [first]


def add_alarm(log: NotifiedLog, rule: str, members: dict[str, str]) -> int:
    """Store an open alarm with conditions of the given rules by device. Return its number."""
    zeros = {each.name: 0 for each in alarm.columns if not each.nullable and each.name != "id"}
    values = zeros | {"key": rule, "rule": rule, "cause": "", "severity": 2, "state": "open"}
    number = log.database.write_now(
        lambda connection: connection.execute(insert(alarm).values(values).returning(alarm.c.id)).scalar_one()
    )
    for device, name in members.items():
        subject = {"subject": mac_to_number(device), "device": mac_to_number(device), "since": log.now}
        row = {"rule": name, "state": "active", "cause": "", "alarm": number, "opens": 1, **subject}
        log.execute(insert(alarm_condition).values(row))
    return int(number)


@pytest.mark.rule("rest-297")
def test_members_of_rules_of_users_and_of_extenders_are_in_a_window_too(log: NotifiedLog) -> None:
    _, (relay, cut_off, warm) = log.add_gateway(1, 3)
    add_silence(log, HOUR, scope={"devices": [f"bmac-{each}" for each in (relay, warm)]})
    measured = add_alarm(log, "measurement", {warm: "measurement/7"})
    lost = add_alarm(log, "relay-lost", {relay: "relay-lost", cut_off: "device-offline"})
    changes = log.database.write_now(apply_silences, [measured, lost], log.now)
    assert changes.silenced == {measured}, "a device that the extender cuts off is elsewhere"
