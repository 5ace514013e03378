"""How many devices were online in each hour, recorded on a moved clock."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import format_millis
from meshfleet.service.alarms.runner import AlarmRunner
from meshfleet.service.availability.recorder import HOUR_MS, AvailabilityRecorder
from tests.service.alarms.presence_log import PresenceLog
from tests.service.http.running_service import run_service

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from tests.service.http.running_service import RunningService

MINUTE_MS = 60_000


@pytest.fixture
def service(database: Database) -> Iterator[RunningService]:
    with run_service(database) as running:
        yield running


class RecordedFleet:
    """Fleet whose availability is recorded every half minute of a moved clock."""

    def __init__(self, service: RunningService) -> None:
        self._service = service
        self.log = PresenceLog(service.database, service.clock() // HOUR_MS * HOUR_MS)
        self.recorder = AvailabilityRecorder(None)

    def run(self, minutes: float, *, is_known: bool = True) -> None:
        """Let time pass, and record the numbers of devices every half minute."""

        def record(connection: Connection) -> None:
            end = self.log.now + int(minutes * MINUTE_MS)
            while self.log.now < end:
                self.log.now += MINUTE_MS // 2
                self.recorder.record(connection, self.log.now, is_known=is_known)

        self.log.database.write_now(record)

    def list_points(self, hours: int, **query: Any) -> Any:
        """Return the points of the last hours, up to now."""
        self._service.clock.move(seconds=(self.log.now - self._service.clock()) / 1000)
        query |= {"From": format_millis(self.log.now - hours * HOUR_MS), "To": format_millis(self.log.now)}
        response = self._service.viewer.get("/api/v1/fleet/availability", params=query)
        assert response.status_code == 200, response.text
        return response.json()["items"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-292")
def test_hours_say_how_much_was_online_and_how_much_is_known(service: RunningService) -> None:
    fleet = RecordedFleet(service)
    log = fleet.log
    start = log.now
    office, devices = log.add_gateway(1, 3)
    fleet.run(0.5)
    fleet.run(29.5)
    log.set_device(devices[0], office, connected=False)
    fleet.run(30)
    first, *_ = fleet.list_points(1)
    assert first["start"] == format_millis(start)
    # Before the first look nothing is known, and a change counts from the next look on.
    assert (first["known"], first["devices"], first["offline"]) == (0.9917, 4, 1)
    assert first["online"] == round((29.5 * 4 + 0.5 * 4 + 29.5 * 3) / (59.5 * 4), 5)
    assert (first["alarms"], first["jobs"]) == (0, 0)

    # An hour away, and a quarter in which nothing is known.
    log.now += HOUR_MS
    fleet.run(15, is_known=False)
    log.set_device(devices[0], office, connected=True)
    fleet.run(45)
    away, partly = fleet.list_points(2)
    assert (away["known"], away["online"], away["offline"]) == (0.0, None, None)
    assert (partly["known"], partly["offline"]) == (0.75, 0)
    assert partly["online"] == round((45 * 4 - 0.5) / (45 * 4), 5)

    # Long times have wider points, and a clock that is set back neither fails nor counts twice.
    (whole,) = fleet.list_points(3, Points=1)
    assert (whole["start"], whole["known"], whole["offline"]) == (format_millis(start), 0.5806, 0)
    log.now -= 10 * MINUTE_MS
    fleet.run(9.5)
    assert round(fleet.list_points(1)[-1]["online"], 2) == 1.0


@pytest.mark.rule("rest-292")
def test_a_time_range_that_is_too_long_is_refused(service: RunningService) -> None:
    path = "/api/v1/fleet/availability"
    for query in (
        {"From": "2020-01-01T00:00:00Z", "To": "2026-01-01T00:00:00Z"},
        {"From": "2026-01-01T00:00:00Z", "To": "2025-01-01T00:00:00Z"},
        {"Points": "0"},
        {"Label": "Cold room"},
    ):
        assert service.viewer.get(path, params=query).status_code == 400, query


@pytest.mark.both_databases
@pytest.mark.rule("rest-293")
def test_the_changes_of_an_hour_are_listed_page_by_page(service: RunningService) -> None:
    log = PresenceLog(service.database)
    office, devices = log.add_gateway(1, 3)
    start = log.now
    for mac in devices:
        log.now += MINUTE_MS
        log.set_device(mac, office, connected=False)
    query = {"From": format_millis(start + 1), "To": format_millis(log.now + 1), "MaxResults": "2"}

    def get(**more: str) -> Any:
        return service.viewer.get("/api/v1/fleet/connectivity", params=query | more).json()

    page = get()
    items = [*page["items"], *get(NextToken=page["nextToken"])["items"]]
    assert [each["device"] for each in items] == [f"bmac-{each}" for each in reversed(devices)]
    assert [each["name"] for each in items] == ["Device 0002", "Device 0001", "Device 0000"]
    assert {(each["connected"], each["cause"], each["gateway"]) for each in items} == {
        (False, "silent", office)
    }


@pytest.mark.anyio
async def test_the_evaluation_of_alarms_records_what_it_knows(database: Database) -> None:
    log = PresenceLog(database)
    log.add_gateway(1, 1)
    is_receiving = True
    runner = AlarmRunner(
        database,
        lambda _: None,
        is_receiving=lambda: is_receiving,
        owner=None,
        retention_ms=None,
        availability=AvailabilityRecorder(2 * HOUR_MS),
        now=lambda: log.now,
    )

    def load() -> list[Any]:
        query = "SELECT known_ms, devices_end, online_end FROM availability ORDER BY hour"
        return database.read_now(lambda connection: list(connection.exec_driver_sql(query)))

    # After its start the service waits for gateways that connect again: that time is not known.
    for _ in range(20):
        await runner.evaluate()
        log.now += MINUTE_MS // 2
    known = sum(row[0] for row in load())
    assert 6 * MINUTE_MS <= known <= 8 * MINUTE_MS
    assert tuple(load()[-1][1:]) == (2, 2)
    is_receiving = False
    for _ in range(4):
        await runner.evaluate()
        log.now += MINUTE_MS // 2
    assert sum(row[0] for row in load()) == known
    log.now += 4 * HOUR_MS
    await runner.evaluate()
    assert [tuple(row) for row in load()] == [(0, 2, 2)]
