"""Devices with the label `parked`: they are in no alarm, and what is wrong with them is not forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete, insert, update

from meshfleet.db.tables import device_label, label
from meshfleet.db.tables import gateway as gateway_table
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.test_watches import execute, list_alarms
from tests.service.ingest.messages import mac_to_number

if TYPE_CHECKING:
    from tests.service.alarms.presence_log import PresenceLog


def park(log: PresenceLog, *macs: str) -> None:
    """Attach the label `parked`."""
    if not log.database.read_now(lambda connection: connection.execute(label.select()).first()):
        execute(log, insert(label).values(id=7, text="parked", created_at=0))
    execute(log, *(insert(device_label).values(device=mac_to_number(each), label=7) for each in macs))


def unpark(log: PresenceLog) -> None:
    """Detach the label `parked` from all devices."""
    execute(log, delete(device_label))


@pytest.mark.both_databases
@pytest.mark.rule("rest-298")
def test_a_parked_device_leaves_its_alarm_and_has_none_until_it_is_back_in_use(log: PresenceLog) -> None:
    gateway, devices = log.add_gateway(1, 5)
    for each in devices[:2]:
        log.set_device(each, gateway, connected=False)
    log.run(11 * MINUTE)
    assert log.members(1) == devices[:2]
    park(log, devices[0])
    log.run(MINUTE)
    assert log.members(1) == devices[1:2]
    park(log, devices[1])
    log.run(MINUTE)
    assert list_alarms(log) == []
    sentence = "This alarm at Gateway 1 is over because its devices are parked now."
    assert [each[2] for each in list_alarms(log, "cleared")] == [sentence]
    assert [each["reason"] for each in log.details("cleared")] == ["parked"]
    log.run(2 * HOUR, step=300)
    assert list_alarms(log) == []
    unpark(log)
    log.set_device(devices[1], gateway, connected=True)
    log.run(9 * MINUTE)
    assert list_alarms(log) == []
    log.run(2 * MINUTE)
    assert log.members(1) == devices[:1]


@pytest.mark.rule("rest-298")
def test_what_fails_while_it_is_parked_opens_no_alarm(log: PresenceLog) -> None:
    gateways = [log.add_gateway(number, 3) for number in range(1, 5)]
    office, devices = gateways[0]
    park(log, office, *devices)
    execute(log, update(gateway_table).values(clock_offset=HOUR * 1000))
    log.set_device(devices[0], office, connected=False)
    for gateway, _ in gateways[:2]:
        log.set_gateway(gateway, connected=False)
    log.run(20 * MINUTE)
    assert [each for each in list_alarms(log) if "Gateway 1" in each[2]] == []
    assert "gateways-lost" not in [rule for rule, _, _ in list_alarms(log)]
    log.set_gateway(office, connected=True)
    log.run(40 * MINUTE)
    assert [each for each in list_alarms(log) if "Gateway 1" in each[2]] == []
