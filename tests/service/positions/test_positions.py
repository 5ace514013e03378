"""Positions of devices over REST: right, honest, and null with a reason where nothing can be said."""

from __future__ import annotations

import csv
from itertools import count, pairwise
from math import hypot
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import format_millis
from meshfleet.service.positions.site_model import SiteModel
from tests.row_tables import each_row
from tests.service.positions.synthetic_site import (
    DAY,
    MINUTE,
    SECOND,
    SyntheticSite,
    TruePlace,
    get,
    measure_errors,
    report_rssi,
)
from tests.service.sites.site_requests import list_faults

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tests.service.live.live_service import LiveService


def _get_csv(service: LiveService, path: str, **query: str) -> list[dict[str, Any]]:
    """Return positions from a response with CSV, with numbers as in JSON."""
    response = service.viewer.get(path, params=query, headers={"Accept": "text/csv"})
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/csv; header=present")
    numbers = {"floor": int, "x": float, "y": float, "radius": float}
    return [
        {name: numbers.get(name, str)(text) for name, text in row.items()}
        for row in csv.DictReader(response.text.splitlines())
    ]


def _build_own_site(service: LiveService, *, number: int) -> SyntheticSite:
    """Build a site that no other test uses, so that two requests can be compared.

    It is calibrated at the first request, which waits for that, and not again without new readings. The site
    that tests share may be calibrated again in the background: on a busy machine between the two requests.
    """
    site = SyntheticSite(service, number=number)
    site.populate(25, minutes=1)
    return site


@pytest.mark.rule("report-44", "rest-91", "rest-93")
def test_devices_are_within_the_radius_of_their_positions(site: SyntheticSite) -> None:
    now = site.service.clock()
    places = {site.new_device(): site.new_place() for _ in range(20)}
    for device, place in places.items():
        site.service.ingest(*(each for s in range(3) for each in site.read(device, place, now - s * SECOND)))
    answers = [site.get_position(each) for each in places]
    found = [each["position"] for each in answers]
    assert [each["reason"] for each in answers] == [None] * len(places)
    errors = measure_errors(found, list(places.values()))
    assert fmean(errors) < 3.0
    assert sum(error <= each["radius"] for error, each in zip(errors, found, strict=True)) >= 16
    assert list(found[0]) == [
        *("site", "floor", "x", "y", "radius", "confidence", "level", "time", "floors", "readings")
    ]
    assert (found[0]["site"], found[0]["floor"], found[0]["confidence"], found[0]["level"]) == (
        *(site.id, 0, 0.9),
        0,
    )
    assert found[0]["time"] == format_millis(now)
    assert found[0]["floors"] == [{"floor": 0, "probability": 1.0}]
    readings = found[0]["readings"]
    assert {each["anchor"] for each in readings} == set(site.anchors)
    assert {each["count"] for each in readings} == {3}
    assert all(before["rssi"] >= after["rssi"] for before, after in pairwise(readings))
    assert list(readings[0]) == ["anchor", "rssi", "count", "distance", "residual"]


@pytest.mark.rule("rest-91", "rest-257")
def test_a_recording_of_the_past_is_located_at_its_times(site: SyntheticSite) -> None:
    device, start = site.new_device(), site.service.clock() - 10 * DAY
    path = [TruePlace(2, 2), TruePlace(18, 12)]
    for minute, place in enumerate(path):
        at = start + minute * 10 * MINUTE
        site.service.ingest(*(each for s in range(5) for each in site.read(device, place, at - s * SECOND)))
    for minute, place in enumerate(path):
        time = format_millis(start + minute * 10 * MINUTE)
        position = site.get_position(device, At=time, Window=5)["position"]
        assert position["time"] == time
        assert measure_errors([position], [place])[0] < 5.0
    both = site.get_position(device, At=format_millis(start + 10 * MINUTE), Window=3600)["position"]
    assert {each["count"] for each in both["readings"]} == {10}
    assert site.get_position(device, At=format_millis(start + 5 * MINUTE))["position"] is None
    assert site.get_position(device)["position"] is None


@pytest.mark.rule("rest-91")
def test_earlier_minutes_count_while_a_device_stands_still(site: SyntheticSite) -> None:
    device, start = site.new_device(), site.service.clock() - 3 * DAY
    path = [TruePlace(6, 9)] * 12 + [TruePlace(15, 4)] * 2
    for minute, place in enumerate(path):
        site.service.ingest(*site.read(device, place, start + minute * MINUTE))
    times = [format_millis(start + minute * MINUTE) for minute in range(len(path))]
    found = [site.get_position(device, At=each)["position"] for each in times]
    assert [each["readings"][0]["count"] for each in found] == [*range(1, 13), 1, 2]
    jumps = [
        hypot(after["x"] - before["x"], after["y"] - before["y"]) for before, after in pairwise(found[:12])
    ]
    assert median(jumps[-6:]) < 0.4
    assert measure_errors(found[-2:-1], path[-2:-1])[0] < 5.0
    single = site.get_position(device, At=times[11], Window=59)["position"]
    assert {each["count"] for each in single["readings"]} == {1}


@pytest.mark.rule("rest-258")
def test_a_walk_is_followed_in_steps_of_seconds(service: LiveService) -> None:
    site = _build_own_site(service, number=13)
    device = site.new_device()
    end = service.clock() // MINUTE * MINUTE - 5 * DAY
    walk = {end - 90 * SECOND + s * SECOND: TruePlace(2 + s / 6, 2 + s / 9) for s in range(91)}
    for at, place in walk.items():
        service.ingest(*site.read(device, place, at))
    query = {"From": format_millis(end - 90 * SECOND), "To": format_millis(end + SECOND)}
    path = f"/api/v1/devices/bmac-{device}/positions"
    page = get(service, path, **query)
    times = {format_millis(at): place for at, place in walk.items()}
    assert page["nextToken"] is None
    assert len(page["items"]) == 31
    assert [each["time"] for each in page["items"]] == sorted(times)[::3]
    assert fmean(measure_errors(page["items"], [times[each["time"]] for each in page["items"]])) < 2.0
    first = get(service, path, **query, MaxResults=20)
    rest = get(service, path, **query, MaxResults=20, NextToken=first["nextToken"])
    assert [each["time"] for each in first["items"] + rest["items"]] == sorted(times)[::3]
    assert _get_csv(service, path, **query) == page["items"]
    refused = service.viewer.get(path, params={"MaxResults": 5}, headers={"Accept": "text/csv"})
    assert list(list_faults(refused)) == ["MaxResults"]
    before = {"From": format_millis(end - 2 * DAY), "To": format_millis(end - DAY)}
    assert _get_csv(service, path, **before) == []
    assert get(service, path, **before) == {"items": [], "nextToken": None}
    rows = list_faults(service.viewer.get(path, params={"From": "soon", "To": "2026-13-01T00:00:00Z"}))
    assert sorted(rows) == ["From", "To"]


@pytest.mark.rule("rest-258")
def test_readings_on_full_minutes_have_positions_after_a_gap_and_at_the_ends(service: LiveService) -> None:
    site = _build_own_site(service, number=14)
    device = site.new_device()
    start = service.clock() // MINUTE * MINUTE - 6 * DAY
    times = [start + minute * MINUTE for minute in (0, 1, 2, 59, 60, 61, 200, 201)]
    for at in times:
        service.ingest(*site.read(device, TruePlace(6, 9), at))
    path = f"/api/v1/devices/bmac-{device}/positions"
    for first, last in ((0, 7), (1, 7), (3, 5), (4, 6)):
        query = {"From": format_millis(times[first]), "To": format_millis(times[last])}
        items = get(service, path, **query)["items"]
        assert [each["time"] for each in items] == list(map(format_millis, times[first : last + 1]))
        assert _get_csv(service, path, **query) == items
        first_page = get(service, path, **query, MaxResults=2)
        rest = get(service, path, **query, NextToken=first_page["nextToken"])
        assert [each["time"] for each in first_page["items"] + rest["items"]] == [
            each["time"] for each in items
        ]


@pytest.mark.rule("rest-258")
def test_a_calibration_that_ends_meanwhile_does_not_change_the_rest_of_an_answer(
    site: SyntheticSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, device = site.service, site.new_device()
    start = service.clock() // MINUTE * MINUTE - 7 * DAY
    levels = dict(zip(site.anchors, range(-72, -48, 3), strict=True))
    times = [start + minute * MINUTE for minute in (0, 20, 40)]
    for at in times:
        service.ingest(*(report_rssi(at, device, anchor, rssi) for anchor, rssi in levels.items()))
    positions = service.api.positions
    get_model, requested = positions.get_model, count()

    async def get_next_model(number: int) -> SiteModel | None:
        """Return the model of a site at the first call, and later one without any readings."""
        model = await get_model(number)
        return model if model is None or next(requested) == 0 else SiteModel(model.geometry, [], [], {})

    monkeypatch.setattr(positions, "get_model", get_next_model)
    query = {"From": format_millis(start - MINUTE), "To": format_millis(times[-1])}
    path = f"/api/v1/devices/bmac-{device}/positions"
    before, after = (get(service, path, **query)["items"] for _ in range(2))
    assert [each.pop("time") for each in before] == list(map(format_millis, times))
    # The device is received equally well in all three minutes.
    assert before[0] == before[1] == before[2]
    assert before[0]["x"] != after[0]["x"], "the models differ"


NOT_RECEIVED = "No anchor has received the device in the 60 s before this time."
ONE = "1 anchor received the device in the 60 s before this time; 3 are needed."
TWO = "2 anchors received the device in the 60 s before this time; 3 are needed."
CONTRADICTION = "The readings contradict each other: no place fits to all of them."


@pytest.mark.both_databases
@pytest.mark.rule("rest-257", "rest-258")
def test_minutes_remain_when_single_readings_are_gone(service_on_each_database: LiveService) -> None:
    service = service_on_each_database
    site = SyntheticSite(service, number=1)
    site.populate(6)
    device, place = site.new_device(), TruePlace(6, 9)
    start = service.clock() // MINUTE * MINUTE - 10 * MINUTE
    for minute in range(10):
        service.ingest(*site.read(device, place, start + minute * MINUTE + 20 * SECOND))
    service.clock.move(seconds=2 * 60 * 60)
    site.register(device)
    assert len(service.api.positions.readings) == 0
    at = format_millis(start + 2 * MINUTE)
    assert measure_errors([site.get_position(device, At=at)["position"]], [place])[0] < 5.0
    path = f"/api/v1/devices/bmac-{device}/positions"
    query = {"From": format_millis(start), "To": format_millis(start + 10 * MINUTE)}
    items = get(service, path, **query)["items"]
    assert [each["time"] for each in items] == [format_millis(start + n * MINUTE) for n in range(1, 11)]
    assert fmean(measure_errors(items, [place] * 10)) < 3.0
    jumps = [hypot(after["x"] - before["x"], after["y"] - before["y"]) for before, after in pairwise(items)]
    assert median(jumps[-5:]) < 0.4  # readings of minutes in which it does not move are averaged
    late = next(iter(site.anchors))
    service.ingest(report_rssi(start + 2 * MINUTE + 30 * SECOND, device, late, -60))
    service.ingest(*site.read(device, place, start + 30 * MINUTE))
    assert site.get_position(device, At=format_millis(start + 3 * MINUTE))["position"] is not None
    query["To"] = format_millis(start + 31 * MINUTE)
    later = get(service, path, **query)["items"]
    # A late reading replaces no minute, and newer readings do not hide older minutes.
    times = [format_millis(start + n * MINUTE) for n in (*range(1, 11), 30)]
    assert [each["time"] for each in later] == times


@pytest.mark.rule("rest-258")
def test_a_device_that_moves_to_another_site_is_on_one_site_at_a_time(service: LiveService) -> None:
    sites = [SyntheticSite(service, number=number) for number in (11, 12)]
    for each in sites:
        each.populate(6, minutes=1)
    device, start = sites[0].new_device(), service.clock() // MINUTE * MINUTE - DAY
    seen = [sites[0]] * 4 + [sites[1]] * 3
    for minute, each in enumerate(seen):
        service.ingest(*each.read(device, TruePlace(6, 9), start + minute * MINUTE + SECOND))
    path = f"/api/v1/devices/bmac-{device}/positions"
    query = {"From": format_millis(start), "To": format_millis(start + DAY)}
    assert [each["site"] for each in get(service, path, **query)["items"]] == [each.id for each in seen]


@pytest.mark.rule("rest-92")
@each_row(
    ("anchors", "levels", "reason"),
    [
        ((), (), NOT_RECEIVED),
        (("c0ffee990001", "c0ffee990002", "c0ffee990003"), (-60, -60, -60), NOT_RECEIVED),
        ((0,), (-60,), ONE),
        ((0, 1), (-60, -60), TWO),
        ((0, 1, "c0ffee990001"), (-60, -60, -60), TWO),
        (range(8), (-40, -127, -40, -127, -40, -127, -40, -127), CONTRADICTION),
    ],
)
def test_an_unknown_position_has_a_reason(
    site: SyntheticSite, anchors: Iterable[int | str], levels: tuple[int, ...], reason: str
) -> None:
    device, now = site.new_device(), site.service.clock()
    macs = [each if isinstance(each, str) else list(site.anchors)[each] for each in anchors]
    reports = [report_rssi(now, device, *pair) for pair in zip(macs, levels, strict=True)]
    if reports:
        site.service.ingest(*reports)
    assert site.get_position(device) == {"position": None, "reason": reason}
    assert get(site.service, f"/api/v1/devices/bmac-{device}/positions")["items"] == []


@pytest.mark.rule("rest-91")
@each_row(
    ("field", "text"),
    [
        *(("At", text) for text in ("yesterday", "1e999", "2026-02-30T00:00:00Z")),
        *(("Window", text) for text in ("2", "3601", "-5", "1.5", "", "9" * 5000, "NaN", "\u0663", "\u00b2")),
    ],
)
def test_bad_parameters_are_named(site: SyntheticSite, field: str, text: str) -> None:
    path = f"/api/v1/devices/bmac-{next(iter(site.anchors))}/position"
    assert list(list_faults(site.service.viewer.get(path, params={field: text}))) == [field]


@pytest.mark.rule("rest-91")
def test_extreme_readings_and_anchors_on_one_line_are_honest(site: SyntheticSite) -> None:
    now = site.service.clock()
    loud, line = site.new_device(), site.new_device()
    anchors = list(site.anchors)
    site.service.ingest(*(report_rssi(now, loud, each, 20) for each in anchors))
    position = site.get_position(loud)["position"]
    assert position is None or position["radius"] > 2.0
    for _ in range(20):  # more than one of a hundred readings of the site
        site.service.ingest(*(report_rssi(now, site.new_device(), each, -32_767) for each in anchors))
    on_line = [mac for mac, place in site.anchors.items() if place.y == 0.5]
    assert len(on_line) == 3
    site.service.ingest(*site.read(line, TruePlace(10, 6), now, anchors=on_line))
    assert site.get_position(line)["position"]["radius"] > 3.5


def test_a_device_between_two_sites_belongs_to_the_one_that_receives_it_better(service: LiveService) -> None:
    near, far = SyntheticSite(service, number=2), SyntheticSite(service, number=3, anchors=6)
    for each in (near, far):
        each.populate(6)
    device, now = near.new_device(), service.clock()
    service.ingest(*near.read(device, TruePlace(10, 7), now), *far.read(device, TruePlace(10, 7), now))
    position = near.get_position(device)["position"]
    assert position["site"] == near.id
    assert {each["anchor"] for each in position["readings"]} <= set(near.anchors)
    service.operator.delete(near.path)
    assert near.get_position(device)["position"]["site"] == far.id
    gone = service.viewer.get(f"{near.path}/positions")
    assert (gone.status_code, gone.json()["code"]) == (404, "unknown-site")


def test_floors_are_told_apart(service: LiveService) -> None:
    building = SyntheticSite(service, number=4, floors=3, anchors=4)
    building.populate(15, minutes=1)
    now = service.clock()
    places = {building.new_device(): building.new_place(number % 3) for number in range(9)}
    for device, place in places.items():
        service.ingest(*(each for s in range(3) for each in building.read(device, place, now - s * SECOND)))
    found = [building.get_position(each)["position"] for each in places]
    assert sum(each["floor"] == place.floor for each, place in zip(found, places.values(), strict=True)) >= 8
    for each in found:
        assert [floor["floor"] for floor in each["floors"]] == [0, 1, 2]
        assert sum(floor["probability"] for floor in each["floors"]) == pytest.approx(1.0, abs=0.001)
        assert max(each["floors"], key=lambda floor: floor["probability"])["floor"] == each["floor"]


@pytest.mark.rule("rest-257")
def test_too_few_or_coinciding_anchors_are_no_error(service: LiveService) -> None:
    small = SyntheticSite(service, number=5, anchors=2)
    devices = small.populate(2)
    device, now = next(iter(devices)), service.clock()
    other = SyntheticSite(service, number=6, anchors=3)
    other.populate(3)
    service.ingest(*small.read(device, TruePlace(3, 3), now))
    assert small.get_position(device)["reason"].startswith("2 anchors received the device")
    assert get(service, f"{small.path}/positions") == {"items": [], "suspiciousAnchors": []}
    other.set_places(dict.fromkeys(other.anchors, TruePlace(5, 5)))
    third = other.new_device()
    service.ingest(*other.read(third, TruePlace(3, 3), now))
    position = other.get_position(third)["position"]
    assert position["radius"] > 3.0


@pytest.mark.rule("rest-259", "rest-260")
def test_a_site_lists_its_devices_and_those_nearest_to_a_point(service: LiveService) -> None:
    site = SyntheticSite(service, number=7)
    places = site.populate(30, minutes=1)
    moved = list(site.anchors)[7]
    listed = get(service, f"{site.path}/positions")
    assert {each["device"] for each in listed["items"]} == {f"bmac-{each}" for each in places}
    assert list(listed["items"][0]) == ["device", "name", "time", "floor", "x", "y", "radius"]
    assert _get_csv(service, f"{site.path}/positions") == listed["items"]
    assert listed["suspiciousAnchors"] == []
    point = {"Floor": 0, "X": 4, "Y": 4}
    nearest = get(service, f"{site.path}/nearest", **point, MaxResults=5)["items"]
    distances = [each["distance"] for each in nearest]
    assert distances == sorted(distances)
    assert len(nearest) == 5
    assert get(service, f"{site.path}/nearest", **point | {"Floor": 7})["items"] == []
    now = service.clock()
    site.set_places({moved: TruePlace(1, 1)})  # it is on the other side
    for device, place in places.items():
        service.ingest(*site.read(device, place, now))
    suspicious = get(service, f"{site.path}/positions")["suspiciousAnchors"]
    assert [each["anchor"] for each in suspicious[:1]] == [moved]


@pytest.mark.rule("rest-260")
@each_row(
    ("field", "text"),
    [
        *(("Floor", text) for text in ("", "x", "1.5", "9" * 5000)),
        *(("X", text) for text in ("NaN", "1e999", "", "-inf")),
        ("Y", "1e6"),
    ],
)
def test_bad_points_are_named(site: SyntheticSite, field: str, text: str) -> None:
    query = {"Floor": "0", "X": "1", "Y": "1", field: text}
    assert list(list_faults(site.service.viewer.get(f"{site.path}/nearest", params=query))) == [field]
