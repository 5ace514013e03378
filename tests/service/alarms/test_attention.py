"""Attention: news that a user has not seen, and many alarms that are acknowledged together."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import event, insert, select

from meshfleet.db.tables import alarm, device, fleet_count
from meshfleet.protocol.ids import Mac
from meshfleet.service.alarms import views
from meshfleet.service.devices import fleet_count as counts
from meshfleet.service.devices import registry
from tests.service.alarms.alarm_harness import MINUTE
from tests.service.alarms.presence_log import PresenceLog
from tests.service.http.running_service import run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

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
        assert service.viewer.put("/api/v1/alarms/seen", json={"upTo": 1}).status_code == 409
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


def load_counts(database: Database) -> tuple[counts.FleetCount, tuple[int, int], int]:
    """Return the kept numbers of devices, those that are counted, and the number of kept rows."""

    def load(connection: Connection) -> tuple[counts.FleetCount, tuple[int, int], int]:
        states = list(connection.execute(select(device.c.connected)).scalars())
        rows = connection.execute(select(fleet_count)).all()
        return counts.load_count(connection), (len(states), sum(states)), len(rows)

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


@pytest.mark.rule("rest-273")
def test_eight_fleets_have_a_sentence_each(service: RunningService) -> None:
    log = PresenceLog(service.database, service.clock())
    said: list[tuple[str, str]] = []

    def look() -> None:
        attention = service.viewer.get("/api/v1/attention").json()
        said.append((attention["verdict"]["tone"], attention["verdict"]["sentence"]))

    def run(minutes: int) -> None:
        log.run(minutes * MINUTE)
        service.clock.move(seconds=minutes * MINUTE)

    look()
    gateways = [log.add_gateway(number, 3) for number in range(1, 4)]
    run(3)
    look()
    for office, (first, *_) in gateways:
        log.set_device(first, office, connected=False)
        run(11)
        look()
    for office, devices in gateways:
        log.change(*devices[1:], connected=False, cause=log.WITH_GATEWAY, gateway=office)
        log.set_gateway(office, connected=False)
    run(6)
    look()

    def open_many(connection: Connection) -> None:
        (row,) = connection.execute(select(alarm).where(alarm.c.rule == "gateways-lost")).mappings()
        copies = [
            {**row, "id": number, "key": f"gateways-lost/test/{number}"} for number in range(1_000, 10_999)
        ]
        connection.execute(insert(alarm), copies)

    service.database.write_now(open_many)
    look()
    attention = service.viewer.get("/api/v1/attention").json()
    assert (len(attention["items"]), attention["more"]) == (50, 10_003 - 50)
    service.clock.move(seconds=3 * MINUTE)
    look()
    assert said == [
        ("unknown", "No gateway is set up yet. Claim the first one."),
        ("ok", "All 12 devices are online."),
        ("warning", "11 of 12 devices are online. 1 thing needs you."),
        ("warning", "10 of 12 devices are online. 2 things need you."),
        ("warning", "9 of 12 devices are online. 3 things need you."),
        ("critical", "None of 12 devices is online. 4 things need you."),
        ("critical", "None of 12 devices is online. 10,003 things need you."),
        ("unknown", "The state of the fleet is not known yet."),
    ]


@pytest.mark.both_databases
def test_what_needs_attention_is_found_with_indexes(database: Database) -> None:
    """Find queries that read a whole table, which may have a million devices or ten thousand alarms."""
    log = PresenceLog(database)
    log.add_gateway(1, 3)
    statements: list[tuple[str, Any]] = []

    def note(*arguments: Any) -> None:
        statements.append((arguments[2], arguments[3]))

    def explain(connection: Connection) -> list[str]:
        event.listen(connection, "before_cursor_execute", note)
        views.build_attention(connection, log.now)
        event.remove(connection, "before_cursor_execute", note)
        if connection.dialect.name != "sqlite":
            connection.exec_driver_sql("SET LOCAL enable_seqscan = off")
        prefix = "EXPLAIN QUERY PLAN " if connection.dialect.name == "sqlite" else "EXPLAIN "
        return [
            str(row[-1])
            for statement, values in statements
            for row in connection.exec_driver_sql(prefix + statement, values)
        ]

    plan = database.read_now(explain)
    assert plan
    scans = [
        each for each in plan if re.search(r"^SCAN (?:device|alarm)\b|Seq Scan on (?:device|alarm)\b", each)
    ]
    assert scans == []
