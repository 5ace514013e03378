"""Readings in a window of time: late ones hide no others, and many do not stop the service."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.times import format_millis
from meshfleet.service.positions.survey_import import add_kept_readings
from meshfleet.service.positions.survey_parameters import ImportedPoint, PointKey
from tests.service.positions.synthetic_site import (
    MINUTE,
    SECOND,
    SyntheticSite,
    TruePlace,
    get,
    report_rssi,
)

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService


@pytest.mark.rule("rest-91", "rest-257")
def test_readings_from_before_a_place_was_set_count_by_minutes(service: LiveService) -> None:
    site = SyntheticSite(service, number=21, anchors=3)
    places = {site.new_device(): place for place in (TruePlace(5, 2), TruePlace(9, 8), TruePlace(2, 9))}
    site.anchors.update(places)
    device, start = site.new_device(), service.clock() // MINUTE * MINUTE - 5 * MINUTE
    for second in range(10, 40, 10):
        reports = site.read(device, TruePlace(5, 6), start + second * SECOND, anchors=places)
        service.ingest(*reports)
    site.set_places(places)
    service.ingest(report_rssi(start + 50 * SECOND, device, next(iter(places)), -60))
    position = site.get_position(device, At=format_millis(start + MINUTE))["position"]
    assert {each["anchor"] for each in position["readings"]} == set(places)
    path = f"/api/v1/devices/bmac-{device}/positions"
    query = {"From": format_millis(start), "To": format_millis(start + MINUTE)}
    assert [each["time"] for each in get(service, path, **query)["items"]] == [position["time"]]


@pytest.mark.rule("rest-91")
def test_a_late_reading_does_not_hide_the_minutes_before(service: LiveService) -> None:
    site = SyntheticSite(service, number=22)
    device, start = site.new_device(), service.clock() // MINUTE * MINUTE - 10 * MINUTE
    for minute in range(10):
        service.ingest(*site.read(device, TruePlace(6, 9), start + minute * MINUTE + 20 * SECOND))
    service.clock.move(seconds=2 * 60 * 60)
    site.register(device)
    at = format_millis(start + 10 * MINUTE)
    before = site.get_position(device, At=at)["position"]["readings"]
    assert max(each["count"] for each in before) == 10
    service.ingest(report_rssi(start + 5 * MINUTE + 30 * SECOND, device, next(iter(site.anchors)), -60))
    after = site.get_position(device, At=at)["position"]["readings"]
    assert [(each["anchor"], each["count"]) for each in after] == [
        (each["anchor"], each["count"]) for each in before
    ]


@pytest.mark.rule("rest-268")
def test_other_tasks_continue_while_readings_of_an_import_are_collected(site: SyntheticSite) -> None:
    service, device = site.service, site.new_device()
    now = service.clock()
    service.ingest(*(each for s in range(3) for each in site.read(device, TruePlace(5, 5), now - s * SECOND)))
    points = [
        ImportedPoint("", None, PointKey(int(device, 16), 0, x, 5.0, now - MINUTE, now), now, None)
        for x in range(20)
    ]
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async def collect() -> list[ImportedPoint]:
        counter = asyncio.create_task(count_turns())
        complete = await add_kept_readings(
            points, int(site.id.removeprefix("site-"), 16), service.api.positions, []
        )
        counter.cancel()
        return complete

    complete = service.run_in_loop(collect())
    assert [len(each.levels or {}) for each in complete] == [len(site.anchors)] * len(points)
    assert turns >= len(points)
