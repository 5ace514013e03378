"""What needs attention: what a user has not seen, and many alarms that are acknowledged together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select

from meshfleet.db.tables import device, fleet_count
from meshfleet.protocol.ids import Mac
from meshfleet.service.devices import fleet_count as counts
from meshfleet.service.devices import registry
from tests.service.alarms.alarm_harness import MINUTE
from tests.service.alarms.presence_log import PresenceLog
from tests.service.http.running_service import run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from tests.service.http.running_service import RunningService


@pytest.fixture
def service(database: Database) -> Iterator[RunningService]:
    with run_service(database) as running:
        yield running


def open_alarms(service: RunningService, number: int) -> PresenceLog:
    """Open alarms of silent devices behind as many gateways."""
    log = PresenceLog(service.database, service.clock())
    for each in range(number):
        office, (first, *_) = log.add_gateway(each + 1, 2)
        log.set_device(first, office, connected=False)
    log.run(11 * MINUTE)
    service.clock.move(seconds=11 * MINUTE)
    return log


@pytest.mark.both_databases
@pytest.mark.rule("rest-290")
def test_what_a_user_has_seen_is_the_same_on_all_devices(service: RunningService) -> None:
    names = [service.new_user() for _ in range(2)]
    log = open_alarms(service, 2)
    clients = [service.client(service.log_in(each)) for each in names]
    with clients[0] as user, clients[1] as other:
        attention = user.get("/api/v1/attention").json()
        unread = attention["unread"]
        assert (unread["count"], unread["critical"]) == (2, False)
        assert service.viewer.get("/api/v1/attention").json()["unread"] is None
        news = user.get("/api/v1/alarms/events", params={"MaxResults": 1}).json()
        (newest,) = news["items"]
        assert (newest["number"], newest["kind"]) == (unread["upTo"], "opened")
        assert newest["sentence"] == "Device 0000 stopped without a warning."
        (older,) = user.get("/api/v1/alarms/events", params={"NextToken": news["nextToken"]}).json()["items"]
        assert older["number"] < newest["number"]

        seen = user.put("/api/v1/alarms/seen", json={"upTo": unread["upTo"]})
        assert seen.json() == {"count": 0, "critical": False, "upTo": unread["upTo"]}
        assert user.put("/api/v1/alarms/seen", json={"upTo": 0}).json()["count"] == 0
        assert other.get("/api/v1/attention").json()["unread"]["count"] == 2
        # What has not happened yet cannot have been seen.
        assert user.put("/api/v1/alarms/seen", json={"upTo": 2**62}).status_code == 200
        office, _ = log.add_gateway(9)
        log.set_gateway(office, connected=False)
        log.run(6 * MINUTE)
        now_unread = user.get("/api/v1/attention").json()["unread"]
        assert (now_unread["count"], now_unread["critical"]) == (1, False)
        assert service.viewer.put("/api/v1/alarms/seen", json={"upTo": 1}).status_code == 403
        assert user.put("/api/v1/alarms/seen", json={"upTo": -1}).status_code == 400
        # The end is news, too, and the opening is still told as it was.
        log.set_gateway(office, connected=True)
        log.run(3 * MINUTE)
        ended, opened = user.get("/api/v1/alarms/events", params={"MaxResults": 2}).json()["items"]
        assert (ended["kind"], ended["sentence"]) == ("cleared", "Gateway Gateway 9 is back after 8 min.")
        assert opened["sentence"] == "Gateway Gateway 9 is offline. No device depends on it."


@pytest.mark.rule("rest-291")
def test_many_alarms_are_acknowledged_with_an_answer_for_each(service: RunningService) -> None:
    log = open_alarms(service, 3)
    ids = [each["id"] for each in service.viewer.get("/api/v1/alarms").json()["items"]]
    log.set_device("ca0001000000", "02005e000001", connected=True)
    log.run(5 * MINUTE)
    body = {"ids": [*ids, "alarm-99", "alarm-x", ids[0]]}
    assert service.viewer.post("/api/v1/alarms/acknowledge", json=body).status_code == 403
    done = service.operator.post("/api/v1/alarms/acknowledge", json=body).json()["items"]
    assert [each["id"] for each in done] == body["ids"]
    assert [each["code"] for each in done] == [None, None, "alarm-cleared", "not-found", "not-found", None]
    assert [each["acknowledged"] for each in done] == [True, True, False, False, False, True]
    states = [each["state"] for each in service.viewer.get("/api/v1/alarms").json()["items"]]
    assert states == ["acknowledged", "acknowledged"]
    for ids in ([], ["alarm-1"] * 1001):
        assert service.operator.post("/api/v1/alarms/acknowledge", json={"ids": ids}).status_code == 400


def load_counts(database: Database) -> tuple[tuple[int, int], tuple[int, int], int]:
    """Return the kept numbers of devices, those that are counted, and the number of kept rows."""

    def load(connection: Any) -> tuple[tuple[int, int], tuple[int, int], int]:
        states = list(connection.execute(select(device.c.connected)).scalars())
        rows = connection.execute(select(fleet_count)).all()
        return tuple(counts.load_count(connection)), (len(states), sum(states)), len(rows)

    return database.read_now(load)


@pytest.mark.both_databases
@pytest.mark.rule("rest-273")
def test_the_numbers_of_devices_are_kept_by_what_changes_them(database: Database) -> None:
    log = PresenceLog(database)
    for number in range(1, 5):
        office, devices = log.add_gateway(number, 5)
        log.change(*devices[:number], connected=False, cause=log.WITH_GATEWAY, gateway=office)
        log.change(*devices[:number], connected=False, cause=log.WITH_GATEWAY, gateway=office)
    for mac in ("ca0001000000", "ca0001000004", "00000000dead"):
        database.write_now(registry.delete_device, Mac(mac))
    kept, counted, rows = load_counts(database)
    assert kept == counted == (22, 13)
    assert rows > 10
    database.write_now(counts.merge_counts)
    assert load_counts(database) == (kept, counted, 1)
    database.write_now(counts.add_to_count, devices=7)
    database.write_now(counts.count_again)
    assert load_counts(database) == (kept, counted, 1)
