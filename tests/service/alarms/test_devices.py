"""Devices that stop reporting: when it matters, why, and together with which others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete, update

from meshfleet.db.tables import device, device_state, gateway
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.ingest.messages import mac_to_number

if TYPE_CHECKING:
    from typing import Any

    from tests.service.alarms.presence_log import PresenceLog

DAY = 24 * HOUR


def set_state(log: PresenceLog, mac: str, **values: Any) -> None:
    """Store what a device has reported last."""
    statement = update(device_state).where(device_state.c.device == mac_to_number(mac)).values(**values)
    log.database.write_now(lambda connection: connection.execute(statement))


def test_devices_with_the_same_cause_are_one_alarm(log: PresenceLog) -> None:
    gateway, devices = log.add_gateway(1, 8)
    for each in devices[:3]:
        set_state(log, each, battery=2, rssi=-60)
    set_state(log, devices[3], battery=80, rssi=-91)
    for each in devices[:5]:
        log.set_device(each, gateway, connected=False)
    log.run(9 * MINUTE)
    assert log.alarms() == []
    log.run(2 * MINUTE)
    assert log.summarize() == [
        ("device-offline", "battery-empty", "open", 3),
        ("device-offline", "weak-signal", "open", 1),
        ("device-offline", "no-warning", "open", 1),
    ]
    for each in devices[:5]:
        log.set_device(each, gateway, connected=True)
    log.run(5 * MINUTE)
    assert {each.state for each in log.alarms()} == {"cleared"}


def test_a_device_that_is_away_every_night_is_missed_only_when_it_stays_away(log: PresenceLog) -> None:
    gateway, (device,) = log.add_gateway(1, 1)
    for night in range(4):
        log.set_device(device, gateway, connected=False)
        log.run(14 * HOUR, step=600)
        log.set_device(device, gateway, connected=True)
        log.run(10 * HOUR, step=600)
        assert len(log.told()) <= 2 * (night + 1)
    after_two_nights = len(log.told())
    assert after_two_nights <= 4
    log.set_device(device, gateway, connected=False)
    log.run(20 * HOUR, step=600)
    assert len(log.told()) == after_two_nights
    log.run(4 * HOUR, step=600)
    assert len(log.told()) == after_two_nights + 1


def test_a_device_that_was_silent_before_its_gateway_was_lost_is_checked_when_it_returns(
    log: PresenceLog,
) -> None:
    gateway, devices = log.add_gateway(1, 3)
    log.add_gateway(2)
    log.set_device(devices[0], gateway, connected=False)
    log.run(3 * MINUTE)
    log.set_gateway(gateway, connected=False)
    log.run(2 * HOUR)
    assert log.told() == [("gateway-offline", "opened")]
    log.set_gateway(gateway, connected=True)
    log.run(2 * HOUR)
    assert log.told()[1:] == [("gateway-offline", "cleared"), ("device-offline", "opened")]
    assert log.members(log.alarms()[-1].id) == [devices[0]]


def test_a_new_member_opens_an_acknowledged_alarm_again(log: PresenceLog) -> None:
    gateway, devices = log.add_gateway(1, 3)
    log.set_device(devices[0], gateway, connected=False)
    log.run(11 * MINUTE)
    (alarm,) = log.alarms()
    log.acknowledge(alarm.id)
    log.run(MINUTE)
    assert [each.state for each in log.alarms()] == ["acknowledged"]
    log.set_device(devices[1], gateway, connected=False)
    log.run(11 * MINUTE)
    (alarm,) = log.alarms()
    assert (alarm.state, alarm.members, alarm.new_members) == ("open", 2, 1)


@pytest.mark.both_databases
def test_deleted_devices_and_released_gateways_have_no_alarms(log: PresenceLog) -> None:
    offline, devices = log.add_gateway(1, 2)
    lost, _ = log.add_gateway(2)
    log.add_gateway(3)
    log.set_device(devices[0], offline, connected=False)
    log.set_gateway(lost, connected=False)
    log.run(11 * MINUTE)
    assert {each.state for each in log.alarms()} == {"open"}
    log.database.write_now(
        lambda connection: connection.execute(delete(device).where(device.c.id == mac_to_number(devices[0])))
    )
    log.database.write_now(
        lambda connection: connection.execute(delete(gateway).where(gateway.c.device == mac_to_number(lost)))
    )
    log.run(MINUTE)
    assert {each.state for each in log.alarms()} == {"cleared"}
    log.run(2 * DAY, step=3600)
    assert log.conditions() == {}
