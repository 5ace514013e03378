"""Cases in which an alarm would be wrong, hidden, late, or never end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from sqlalchemy import delete, insert

from meshfleet.db.tables import alarm_event, device, gateway
from meshfleet.protocol.ids import Mac
from meshfleet.service.actor import SERVICE
from meshfleet.service.alarms import commands, views
from meshfleet.service.gateways import store as gateway_store
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.ingest.messages import mac_to_number

if TYPE_CHECKING:
    from sqlalchemy import Table

    from tests.service.alarms.presence_log import PresenceLog

DAY = 24 * HOUR


def remove(log: PresenceLog, table: Table, column: str, mac: str) -> None:
    statement = delete(table).where(table.c[column] == mac_to_number(mac))
    log.database.write_now(lambda connection: connection.execute(statement))


def list_sentences(log: PresenceLog) -> list[str]:
    query = views.AlarmListing(states=("open", "acknowledged", "cleared"))
    found = log.database.read_now(views.list_alarms, query, after=None, limit=100, now=log.now)
    return [each.body.sentence for each in found]


def test_a_second_gateway_that_is_away_for_seconds_is_no_common_cause(log: PresenceLog) -> None:
    first, second = (log.add_gateway(number)[0] for number in (1, 2))
    log.run(10 * MINUTE)
    log.set_gateway(first, connected=False)
    log.run(9 * MINUTE)
    log.set_gateway(second, connected=False)
    log.run(4, step=2)
    log.set_gateway(second, connected=True)
    log.run(10 * MINUTE)
    assert log.told() == [("gateway-offline", "opened")]


def test_a_gateway_that_fails_alone_is_not_hidden_in_a_common_cause_that_is_watched(log: PresenceLog) -> None:
    gateways = [log.add_gateway(number)[0] for number in range(1, 11)]
    log.run(5 * MINUTE)
    for _ in range(4):
        for each in gateways:
            log.set_gateway(each, connected=False)
        log.run(10 * MINUTE)
        for each in gateways:
            log.set_gateway(each, connected=True)
        log.run(5 * MINUTE)
    log.set_gateway(gateways[0], connected=False)
    log.run(7 * MINUTE)
    assert log.told()[-1] == ("gateway-offline", "opened")
    for each in gateways[1:]:
        log.set_gateway(each, connected=False)
    log.run(7 * MINUTE)
    (common,) = [each for each in log.alarms(state="open") if each.rule == "gateways-lost"]
    assert (common.recovering_since, common.members >= 9) == (None, True)


def test_a_single_gateway_that_stays_away_is_no_common_cause(log: PresenceLog) -> None:
    first, second = (log.add_gateway(number)[0] for number in (1, 2))
    log.run(5 * MINUTE)
    for each in (first, second):
        log.set_gateway(each, connected=False)
    log.run(10 * MINUTE)
    log.set_gateway(first, connected=True)
    log.run(HOUR)
    assert log.told()[1:] == [("gateways-lost", "cleared"), ("gateway-offline", "opened")]


def test_a_device_with_an_alarm_that_becomes_a_gateway_has_none(log: PresenceLog) -> None:
    office, devices = log.add_gateway(1, 2)
    log.set_device(devices[0], office, connected=False)
    log.run(15 * MINUTE)
    log.database.write_now(gateway_store.claim_gateway, Mac(devices[0]), name="New", by=SERVICE, now=log.now)
    log.set_gateway(devices[0], connected=True)
    log.run(5 * MINUTE)
    assert log.alarms(state="open") == []


def test_a_released_gateway_is_no_silent_device_and_missing_devices_are_found_after_its_return(
    log: PresenceLog,
) -> None:
    office, devices = log.add_gateway(1, 3)
    log.add_gateway(2)
    log.set_gateway(office, connected=False)
    log.change(*devices, connected=False, cause=log.WITH_GATEWAY, gateway=office)
    log.run(10 * MINUTE)
    remove(log, gateway, "device", office)
    log.run(HOUR)
    assert list_sentences(log) == ["Gateway Gateway 1 was offline when it was released."]
    log.database.write_now(gateway_store.claim_gateway, Mac(office), name=None, by=SERVICE, now=log.now)
    log.set_gateway(office, connected=True)
    log.change(devices[0], connected=True, cause=log.WITH_GATEWAY, gateway=office)
    log.run(2 * HOUR)
    assert log.members(log.alarms()[-1].id) == devices[1:]


def test_a_device_that_has_moved_does_not_wait_for_the_gateway_it_had(log: PresenceLog) -> None:
    former, devices = log.add_gateway(1, 1)
    current, _ = log.add_gateway(2)
    log.add_gateway(3)
    for connected, duration in ((False, 15 * MINUTE), (True, HOUR)):
        log.set_device(devices[0], former, connected=connected)
        log.run(duration)
    log.move(devices[0], current)
    log.set_device(devices[0], current, connected=False)
    log.run(MINUTE)
    log.set_gateway(former, connected=False)
    log.run(HOUR)
    assert ("device-offline", "opened") in log.told()[2:]


@pytest.mark.parametrize("seconds", [30, 300])
def test_a_device_that_stops_after_the_return_of_its_gateway_gets_its_usual_time(
    log: PresenceLog, seconds: int
) -> None:
    office, devices = log.add_gateway(1, 1)
    log.add_gateway(2)
    log.run(5 * MINUTE)
    for connected in (False, True):
        log.set_gateway(office, connected=connected)
        log.run(MINUTE)
    log.run(seconds)
    log.set_device(devices[0], office, connected=False)
    log.run(9 * MINUTE)
    assert log.told() == []
    log.run(2 * MINUTE)
    assert log.told() == [("device-offline", "opened")]


def test_a_gateway_that_restarts_every_night_does_not_hide_a_dead_device(log: PresenceLog) -> None:
    office, devices = log.add_gateway(1, 1)
    log.add_gateway(2)
    for _ in range(3):  # the device is away for half a day now and then
        for connected in (False, True):
            log.set_device(devices[0], office, connected=connected)
            log.run(12 * HOUR, step=1800)
    told = len(log.told())
    log.set_device(devices[0], office, connected=False)
    for _ in range(3):
        log.run(DAY - MINUTE, step=1800)
        for connected in (False, True):
            log.set_gateway(office, connected=connected)
            log.run(30)
    assert len(log.told()) > told


def test_a_clock_that_is_set_back_does_not_delay_an_alarm(log: PresenceLog) -> None:
    office, _ = log.add_gateway(1)
    log.add_gateway(2)
    log.run(5 * MINUTE)
    log.set_gateway(office, connected=False)
    log.run(MINUTE)
    log.now -= DAY * 1000
    log.run(8 * MINUTE)
    assert log.told() == [("gateway-offline", "opened")]


def test_members_are_counted_as_they_join_recover_and_are_deleted(log: PresenceLog) -> None:
    office, devices = log.add_gateway(1, 6)
    log.set_device(devices[0], office, connected=False)
    log.run(11 * MINUTE)
    log.acknowledge(log.alarms()[0].id)
    for each in devices[1:4]:
        log.set_device(each, office, connected=False)
    log.run(11 * MINUTE)
    (alarm,) = log.alarms()
    assert (alarm.members, alarm.new_members) == (4, 3)
    log.set_device(devices[0], office, connected=True)
    log.run(MINUTE)
    assert list_sentences(log) == ["3 devices behind Gateway 1 stopped without a warning."]
    for each in devices[:3]:
        remove(log, device, "id", each)
    log.run(MINUTE)
    assert list_sentences(log) == ["Device 0003 stopped without a warning."]
    remove(log, device, "id", devices[3])
    log.run(MINUTE)
    assert list_sentences(log) == ["The devices of this alarm at Gateway 1 were deleted."]


def test_short_blips_do_not_keep_the_memory_of_old_openings(log: PresenceLog) -> None:
    office, _ = log.add_gateway(1)
    log.add_gateway(2)
    for _ in range(2):
        for minutes, pause in ((10, 2 * DAY), (1, DAY), (1, DAY)):
            log.set_gateway(office, connected=False)
            log.run(minutes * MINUTE)
            log.set_gateway(office, connected=True)
            log.run(5 * MINUTE)
            assert log.alarms(state="open") == []
            log.run(pause, step=1800)


def test_only_the_newest_events_of_an_alarm_are_kept(log: PresenceLog) -> None:
    gateway, _ = log.add_gateway(1)
    log.set_gateway(gateway, connected=False)
    log.run(6 * MINUTE)
    rows = [
        {"alarm": 1, "time": 0, "kind": "note", "detail": f'{{"text": "{number}"}}'} for number in range(1200)
    ]
    log.database.write_now(lambda connection: connection.execute(insert(alarm_event), rows))
    log.database.write_now(commands.add_note, 1, "last", by=SERVICE, now=log.now)
    found = log.database.read_now(views.list_events, 1, before=None, limit=2000)
    texts = [event.detail["text"] for _, event in found]
    assert (len(texts), texts[0], texts[1], texts[-1]) == (1000, "last", "1199", "201")
