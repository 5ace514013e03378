"""Positions and zones as live events, and visits to zones over REST."""

from __future__ import annotations

import asyncio
from math import hypot
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import format_millis, parse_millis
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.positions.tracker import PositionTracker
from meshfleet.service.positions.zone_presence import MAX_FIRST_INSIDE, Stay, ZoneChange, ZonePresence
from meshfleet.service.sites.store import delete_site
from tests.row_tables import each_row
from tests.service.positions.synthetic_site import DAY, SECOND, SyntheticSite, TruePlace, get
from tests.service.sites.site_requests import list_faults

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService, SseClient

CORNER = [[0, 0], [9, 0], [9, 9], [0, 9]]
INSIDE, OUTSIDE = TruePlace(3, 3), TruePlace(17, 12)


class Tracking:
    """Tracker of a service, and devices that report once a minute or every second."""

    def __init__(self, site: SyntheticSite) -> None:
        self.site = site
        self.service = site.service
        self.restart()

    def restart(self) -> None:
        """Start a tracker as a new process of the service does."""
        self.tracker = PositionTracker(
            self.service.database,
            self.service.api.positions,
            self.service.api.live.positions,
            retention_ms=30 * DAY,
            now=self.service.clock,
        )
        self.service.run_in_loop(self.tracker.restore())

    def move(self, device: str, *places: TruePlace, seconds: float = 60) -> None:
        """Report a device at places, one after the other, and look at the readings each time."""
        for place in places:
            now = self.service.clock()
            reports = [self.site.read(device, place, now - number * 100) for number in range(5)]
            self.service.ingest(*(each for group in reports for each in group))
            self.service.clock.move(seconds=min(seconds, 2))
            self.service.run_in_loop(self.tracker.track())
            self.service.clock.move(seconds=max(seconds - 2, 0))

    def create_zone(self, **fields: Any) -> str:
        body = {"name": "Corner", "floor": 0, "polygon": CORNER, **fields}
        response = self.service.operator.post(f"{self.site.path}/zones", json=body)
        assert response.status_code == 201, response.text
        zone: str = response.json()["id"]
        return zone

    def list_visits(self, zone: str, **query: Any) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = get(self.service, f"{self.site.path}/zones/{zone}/visits", **query)[
            "items"
        ]
        return items


def _next_of(stream: SseClient, kind: str) -> dict[str, Any]:
    """Return the content of the next event of a type."""
    while (event := stream.next())["type"] != kind:
        pass
    data: dict[str, Any] = event["data"]
    return data


@pytest.mark.both_databases
@pytest.mark.rule("rest-262", "rest-263", "rest-264")
def test_a_device_enters_and_leaves_a_zone_once(service_on_each_database: LiveService) -> None:
    service = service_on_each_database
    site = SyntheticSite(service, number=1)
    site.populate(8, minutes=1)
    tracking, device = Tracking(site), site.new_device()
    zone = tracking.create_zone()
    other = tracking.create_zone(name="Other", polygon=[[12, 9], [20, 9], [20, 14], [12, 14]])
    with service.stream(Types="position,zone", Ids=f"bmac-{device}") as stream:
        tracking.move(device, OUTSIDE, INSIDE)
        assert tracking.list_visits(zone) == []
        position = _next_of(stream, "position")
        assert list(position) == ["device", "site", "floor", "x", "y", "radius", "time"]
        assert hypot(position["x"] - OUTSIDE.x, position["y"] - OUTSIDE.y) <= 2 * position["radius"]
        tracking.move(device, INSIDE)
        entered = _next_of(stream, "zone")
        assert list(entered) == ["zone", "device", "change", "time", "dwellSeconds"]
        assert (entered["zone"], entered["change"], entered["dwellSeconds"]) == (zone, "entered", None)
        tracking.restart()
        tracking.move(device, INSIDE, INSIDE, INSIDE)
        assert tracking.list_visits(zone) == [
            {
                "device": f"bmac-{device}",
                "enteredAt": entered["time"],
                "leftAt": None,
                "dwellSeconds": None,
            }
        ]
        tracking.move(device, OUTSIDE)
        left = _next_of(stream, "zone")
        assert (left["zone"], left["change"]) == (zone, "left")
        seconds = (parse_millis(left["time"]) - parse_millis(entered["time"])) / 1000
        assert left["dwellSeconds"] == seconds >= 300
    visit = {
        "device": f"bmac-{device}",
        "enteredAt": entered["time"],
        "leftAt": left["time"],
        "dwellSeconds": left["dwellSeconds"],
    }
    assert tracking.list_visits(zone) == [visit]
    assert (
        tracking.list_visits(zone, To=entered["time"]) == tracking.list_visits(zone, From=left["time"]) == []
    )
    tracking.move(device, INSIDE, INSIDE, OUTSIDE)
    path = f"{site.path}/zones/{zone}/visits"
    first_page = get(service, path, MaxResults=1)
    assert get(service, path, NextToken=first_page["nextToken"])["items"] == [visit]
    assert list_faults(service.viewer.get(path, params={"From": left["time"], "To": left["time"]}))
    service.operator.delete(f"{site.path}/zones/{zone}")
    assert service.viewer.get(path).status_code == 404
    tracking.move(device, OUTSIDE)  # twice running, so that it enters the other zone
    assert len(tracking.list_visits(other)) == 1
    assert service.admin.delete(f"/api/v1/devices/bmac-{device}").status_code == 204
    assert tracking.list_visits(other) == []
    tracking.move(device, INSIDE)  # its departure has no visit any more
    service.ingest_and_flush()  # registers it again
    tracking.move(device, OUTSIDE, OUTSIDE)
    (visit,) = tracking.list_visits(other)
    assert visit["leftAt"] is None


@pytest.mark.rule("rest-262")
def test_a_walk_is_followed_and_a_still_device_keeps_its_position(site: SyntheticSite) -> None:
    service, tracking = site.service, Tracking(site)
    walker, still = site.new_device(), site.new_device()
    walk = [TruePlace(2 + step, 3 + step / 2) for step in range(14)]
    with service.stream(Types="position", Ids=f"bmac-{walker},bmac-{still}") as stream:
        tracking.move(walker, *walk, seconds=2)
        found = [_next_of(stream, "position")]
        while found[-1]["time"] < format_millis(service.clock() - 6 * SECOND):
            found.append(_next_of(stream, "position"))
        assert len(found) >= 5
        end = walk[-2]
        assert hypot(found[-1]["x"] - end.x, found[-1]["y"] - end.y) < 5.0
        tracking.move(still, *([TruePlace(6, 8)] * 6))
        events = [_next_of(stream, "position") for _ in range(5)]
        places = [(each["x"], each["y"]) for each in events if each["device"] == f"bmac-{still}"][-3:]
        assert len(places) == 3
        assert all(hypot(x - places[0][0], y - places[0][1]) < 0.7 for x, y in places)
        tracking.move(still, TruePlace(6, 8), seconds=2)
        while (last := _next_of(stream, "position"))["time"] < format_millis(service.clock() - 3 * SECOND):
            pass
    # Clients get the position that listeners have got, from the readings of all minutes.
    place = (last["x"], last["y"])
    answer = site.get_position(still)["position"]
    assert (answer["x"], answer["y"]) == place
    assert {each["count"] for each in answer["readings"]} == {35}
    listed = get(service, f"{site.path}/positions")["items"]
    assert [(each["x"], each["y"]) for each in listed if each["device"] == f"bmac-{still}"] == [place]


@pytest.mark.rule("rest-262")
def test_a_device_with_frequent_readings_that_stands_still_is_not_filtered(site: SyntheticSite) -> None:
    tracking, device = Tracking(site), site.new_device()
    tracking.move(device, *([TruePlace(6, 8)] * 25), seconds=2)
    before = site.get_position(device)["position"]
    assert min(each["count"] for each in before["readings"]) > 50
    tracking.move(device, *([TruePlace(6, 8)] * 15), seconds=2)
    after = site.get_position(device)["position"]
    assert hypot(after["x"] - before["x"], after["y"] - before["y"]) < 0.3
    tracking.move(device, *([TruePlace(16, 4)] * 4), seconds=2)
    moved = site.get_position(device)["position"]
    assert hypot(moved["x"] - 16, moved["y"] - 4) < 5.0


@pytest.mark.rule("rest-257", "rest-262")
def test_readings_that_come_late_change_the_position(site: SyntheticSite) -> None:
    """Another gateway may deliver what its anchors received seconds later, with the time of the reception."""
    tracking, device = Tracking(site), site.new_device()
    early, late = list(site.anchors)[:4], list(site.anchors)[4:]
    for number in range(4):
        now = site.service.clock()
        for anchors, seconds in ((early, 6), (late, 48)):
            site.service.ingest(*site.read(device, TruePlace(6, 8), now, anchors=anchors))
            answer = site.get_position(device)["position"]
            assert {each["anchor"] for each in answer["readings"]} >= set(anchors)
            site.service.clock.move(seconds=3)
            site.service.run_in_loop(tracking.tracker.track())
            site.service.clock.move(seconds=seconds - 3)
        answer = site.get_position(device)["position"]
        assert {each["anchor"] for each in answer["readings"]} == {*early, *late}
        assert {each["count"] for each in answer["readings"]} == {number + 1}  # each reading counts once


@pytest.mark.rule("rest-257")
@each_row("steps", [6, 7])  # the tracker waits for more readings after every second step
def test_the_last_readings_of_a_device_that_falls_silent_count(site: SyntheticSite, steps: int) -> None:
    tracking, device = Tracking(site), site.new_device()
    tracking.move(device, *([TruePlace(4, 4)] * steps), seconds=2)
    last = site.service.clock()
    site.service.ingest(*site.read(device, TruePlace(4, 4), last))
    for _ in range(2):
        site.service.clock.move(seconds=2)
        site.service.run_in_loop(tracking.tracker.track())
    assert site.get_position(device)["position"]["time"] == format_millis(last)


@pytest.mark.rule("rest-257")
def test_readings_that_the_tracker_does_not_use_count_nevertheless(site: SyntheticSite) -> None:
    tracking, device = Tracking(site), site.new_device()
    tracking.move(device, *([TruePlace(4, 4)] * 8), seconds=2)
    before = site.get_position(device)["position"]
    for _ in range(6):  # the tracker is late
        site.service.ingest(*site.read(device, TruePlace(16, 10), site.service.clock()))
        site.service.clock.move(seconds=2)
    after = site.get_position(device)["position"]
    assert after["time"] > before["time"]


@pytest.mark.parametrize("seconds", [60, 2])
def test_devices_are_followed_after_the_clock_was_set_back(
    service_on_each_database: LiveService, seconds: float
) -> None:
    service = service_on_each_database
    site = SyntheticSite(service, number=1)
    site.populate(8, minutes=1)
    tracking, device = Tracking(site), site.new_device()
    tracking.move(device, *([TruePlace(16, 4)] * 20), seconds=seconds)
    service.clock.set(seconds=-7200)
    tracking.move(device, *([TruePlace(4, 10)] * 20), seconds=seconds)
    tracking.move(device, TruePlace(4, 10), seconds=2)
    found = site.get_position(device)["position"]
    assert hypot(found["x"] - 4, found["y"] - 10) < 4
    assert found["time"] > format_millis(service.clock() - 5 * SECOND)
    (listed,) = (
        each for each in get(service, f"{site.path}/positions")["items"] if each["device"] == f"bmac-{device}"
    )
    assert (listed["x"], listed["time"]) == (found["x"], found["time"])


def test_a_service_without_sites_follows_nothing(service_on_each_database: LiveService) -> None:
    tracker = PositionTracker(
        service_on_each_database.database,
        service_on_each_database.api.positions,
        service_on_each_database.api.live.positions,
        retention_ms=None,
        now=service_on_each_database.clock,
    )

    async def track() -> None:
        async with asyncio.timeout(1):
            await tracker.track()

    service_on_each_database.run_in_loop(track())


@pytest.mark.rule("rest-263")
@each_row(
    ("shares", "expected"),
    [
        ([0.6], []),
        ([0.5, 0.5], []),
        ([0.6, 0.6], [("entered", 0)]),
        ([0.6, 0.4, 0.6, 0.6], [("entered", 2)]),
        ([0.6, 0.6, 0.4, 0.34], [("entered", 0)]),
        ([0.6, 0.6, 0.3, 0.3], [("entered", 0), ("left", 2)]),
        ([0.6, 0.6, None], [("entered", 0), ("left", 2)]),
        ([0.6, 0.6, 0.3, 0.6, 0.6], [("entered", 0), ("left", 2), ("entered", 3)]),
    ],
)
def test_entering_needs_two_positions_and_leaving_one(
    shares: list[float | None], expected: list[tuple[str, int]]
) -> None:
    presence, found = ZonePresence(), []
    for time, share in enumerate(shares):
        by_zone = {} if share is None else {7: share}
        changes = presence.find_changes(1, time, by_zone)
        assert presence.find_changes(1, time, by_zone) == changes  # until they are stored
        presence.apply(changes)
        found += [("entered" if each.left_at is None else "left", each.time) for each in changes]
    assert found == expected


def test_rare_positions_enter_a_zone_unless_many_other_devices_were_inside_once() -> None:
    presence, half_an_hour = ZonePresence(), 1_800_000
    assert presence.find_changes(1, 5, {7: 0.9}) == []
    for device in range(2, 1_000):
        assert presence.find_changes(device, 6, {7: 0.9}) == []
    entered = [ZoneChange(Stay(7, 1), 5, None)]
    assert presence.find_changes(1, 5 + half_an_hour, {7: 0.9}) == entered
    for device in range(1_000, MAX_FIRST_INSIDE + 2):
        assert presence.find_changes(device, 7, {7: 0.9}) == []
    assert presence.find_changes(1, 8, {7: 0.9}) == []


def test_a_deleted_zone_is_forgotten() -> None:
    presence = ZonePresence()
    presence.restore({Stay(7, 1): 5, Stay(8, 1): 5})
    presence.keep_zones({8})
    assert presence.find_changes(1, 9, {}) == [ZoneChange(Stay(8, 1), 5, 9)]


def test_a_site_that_another_process_deletes_does_not_stop_the_tracker(service: LiveService) -> None:
    site = SyntheticSite(service, number=9)
    tracking, device = Tracking(site), site.new_device()
    number = int(site.id.removeprefix("site-"), 16)
    service.database.write_now(delete_site, number, by=COMMAND_LINE, now=service.clock())
    tracking.move(device, INSIDE)
    assert site.get_position(device)["position"] is None
