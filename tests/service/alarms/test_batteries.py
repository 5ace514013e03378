"""Alarms of batteries."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import astuple
from sqlalchemy import delete, update

from meshfleet.db.tables import device_state
from meshfleet.service.alarms.watches.batteries import SELECT_LOW
from meshfleet.service.devices import states
from meshfleet.service.devices.states import DeviceState
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.test_watches import execute, list_alarms
from tests.service.ingest.messages import mac_to_number

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from tests.service.alarms.presence_log import PresenceLog


def report(log: PresenceLog, mac: str, *levels: int, pause: int = 10 * MINUTE) -> list[str]:
    """Let a device report levels one after the other. Return the sentences of all open alarms after each."""
    sentences = []
    for level in levels:
        row = astuple(DeviceState(mac_to_number(mac), battery=level, battery_at=log.now))
        log.database.write_now(states.merge_states, [row])
        log.run(pause, step=pause // 2)
        sentences.append(" ".join(sentence for _, _, sentence in list_alarms(log)))
    return sentences


@pytest.mark.both_databases
def test_a_low_battery_is_one_alarm_until_it_is_replaced(log: PresenceLog) -> None:
    _, (device, *_) = log.add_gateway(1, 2)
    low = "The battery of Device 0000 is at {} %.".format
    assert report(log, device, 16, 15, 16, 15, 14) == ["", "", "", "", low(14)]
    assert report(log, device, 17, 20, 24, 13) == [low(17), low(20), low(24), low(13)]
    assert report(log, device, 100) == [""]
    assert log.told() == [("battery-low", "opened"), ("battery-low", "cleared")]
    assert list_alarms(log, "cleared") == [
        ("battery-low", "info", "The battery of Device 0000 was replaced or charged after 65 min.")
    ]


def test_low_batteries_behind_a_gateway_are_one_alarm_with_the_lowest_level(log: PresenceLog) -> None:
    _, first = log.add_gateway(1, 3)
    _, second = log.add_gateway(2, 1)
    for each in (*first, *second):
        report(log, each, 12, 12, pause=5 * MINUTE)
    assert [(severity, sentence.partition(";")[0]) for _, severity, sentence in list_alarms(log)] == [
        ("info", "3 batteries behind Gateway 1 are low"),
        ("info", list_alarms(log)[1][2]),
    ]
    report(log, first[1], 5)
    _, severity, sentence = list_alarms(log)[0]
    assert (severity, sentence.endswith("is at 5 %.")) == ("warning", True)
    report(log, first[1], 90)
    assert list_alarms(log)[0][2].startswith("2 batteries behind Gateway 1 are low; the lowest, of ")
    assert list_alarms(log)[0][2].endswith("is at 12 %.")


def test_nothing_is_known_of_the_battery_of_a_device_that_is_cut_off(log: PresenceLog) -> None:
    office, devices = log.add_gateway(1, 3)
    open_one, pending, healthy = devices
    report(log, open_one, 10, 10)
    report(log, pending, 10)
    log.change(office, connected=False, cause=log.WITH_GATEWAY, gateway=office)
    log.change(*devices, connected=False, cause=log.WITH_GATEWAY, gateway=office)
    report(log, open_one, 100)
    report(log, pending, 10)
    report(log, healthy, 10, 10)
    states_of_battery = {
        state: count for (rule, state), count in log.conditions().items() if rule == "battery-low"
    }
    assert states_of_battery == {"active": 1, "pending": 1}
    log.set_gateway(office, connected=True)
    log.change(*devices, connected=True, cause=log.WITH_GATEWAY, gateway=office)
    log.run(HOUR)
    assert {state: count for (rule, state), count in log.conditions().items() if rule == "battery-low"} == {
        "active": 1,
        "pending": 1,
        "quiet": 1,
    }
    (alarm,) = [each for each in log.alarms(state="open") if each.rule == "battery-low"]
    assert log.members(alarm.id) == [pending]


def test_a_battery_without_a_level_keeps_its_alarm(log: PresenceLog) -> None:
    _, (device, other) = log.add_gateway(1, 2)
    report(log, device, 10, 10)
    statement = update(device_state).where(device_state.c.device == mac_to_number(device))
    execute(log, statement.values(battery=None, battery_at=None))
    log.run(10 * MINUTE, step=5 * MINUTE)
    assert len(list_alarms(log)) == 1
    assert report(log, other, 12, 12)[1].startswith("2 batteries behind Gateway 1 are low")
    execute(log, delete(device_state).where(device_state.c.device == mac_to_number(device)))
    log.run(10 * MINUTE, step=5 * MINUTE)
    assert log.told() == [("battery-low", "opened")]
    report(log, other, 100)
    report(log, device, 100)
    assert list_alarms(log) == []


def test_low_batteries_are_found_by_their_index(log: PresenceLog) -> None:
    def explain(connection: Connection) -> str:
        rows = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {SELECT_LOW}")
        return "; ".join(row[3] for row in rows)

    plan = log.database.read_now(explain)
    assert "SEARCH device_state USING INDEX ix_device_state_low_battery" in plan
    assert "SCAN" not in plan
