"""`GET /api/v1/devices/{id}/links`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from meshfleet.db.samples.sample import DAY_MS, NO_SEQ, ClockFlag, SampleExtras, SampleKind, StoredSample
from meshfleet.protocol.times import format_millis
from meshfleet.service.ingest.rollups import MinuteSummary
from meshfleet.service.telemetry import links
from tests.row_tables import each_row
from tests.service.ingest.messages import A, B, P, Q, R, mac_to_number
from tests.service.telemetry.sample_data import AT, MINUTE, build_sample, get_json, list_faults, store_samples

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

BEGIN = AT - AT % MINUTE
HOUR = {"From": format_millis(BEGIN), "To": format_millis(BEGIN + 60 * MINUTE)}


def path(device: str) -> str:
    return f"/api/v1/devices/{device}/links"


def minute(
    at: int, *readings: int, parent: str | int = P, gateway: str = A, unreachable: bool = False
) -> StoredSample:
    """A minute as it is kept, with these readings a second after another."""
    kept = MinuteSummary(
        count=len(readings),
        min=min(readings),
        max=max(readings),
        last=readings[-1],
        last_at=at + 1000 * (len(readings) - 1),
        unreachable=unreachable,
    )
    heard_by = mac_to_number(parent) if isinstance(parent, str) else parent
    mean = sum(readings) / len(readings)
    more = SampleExtras(ext=msgspec.json.encode(kept).decode())
    return StoredSample(at, SampleKind.LINK, heard_by, NO_SEQ, mac_to_number(gateway), mean, None, more)


def bucket(time: int, count: int, *numbers: float | None) -> dict[str, Any]:
    low, mean, high, last = numbers
    return {"time": format_millis(time), "min": low, "mean": mean, "max": high, "count": count, "last": last}


@pytest.mark.rule("rest-87", "rest-88")
def test_a_link_tells_its_last_reading_and_all_readings_in_buckets(service: RunningService) -> None:
    device = service.new_device()
    store_samples(
        service,
        device,
        *(minute(BEGIN + each * MINUTE, -50, -70, -60) for each in range(9)),
        minute(BEGIN + 9 * MINUTE, -88),
        minute(BEGIN + 10 * MINUTE, -44, -40, gateway=B, unreachable=True),
    )
    answer = get_json(service, path(device), **HOUR, Points=6)
    assert answer == {
        "items": [
            {
                "parent": P,
                "rssi": -40,
                "seenAt": format_millis(BEGIN + 10 * MINUTE + 1000),
                "unreachable": True,
                "mean": pytest.approx((27 * -60 - 88 - 84) / 30),
                "min": -88,
                "max": -40,
                "count": 30,
                "gateway": B,
                "series": [
                    bucket(BEGIN, 28, -88, -61, -50, -88),
                    bucket(BEGIN + 10 * MINUTE, 2, -44, -42, -40, -40),
                ],
            }
        ]
    }
    (link,) = answer["items"]
    first = ["parent", "rssi", "seenAt", "unreachable", "mean", "min", "max", "count"]
    assert list(link) == [*first, "gateway", "series"]
    assert list(link["series"][0]) == ["time", "min", "mean", "max", "count", "last"]


@pytest.mark.rule("rest-87")
def test_who_heard_in_the_newest_minute_comes_first_and_best_within_it(service: RunningService) -> None:
    device = service.new_device()
    store_samples(
        service,
        device,
        minute(BEGIN, -30, parent=R),
        minute(BEGIN + MINUTE, -80, parent=P),
        minute(BEGIN + MINUTE, -99, -60, parent=Q),
    )
    items = get_json(service, path(device), **HOUR)["items"]
    assert [(each["parent"], each["rssi"]) for each in items] == [(Q, -60), (P, -80), (R, -30)]


@pytest.mark.rule("rest-88")
def test_a_series_of_a_link_breaks_where_it_was_not_heard_and_others_were(service: RunningService) -> None:
    device = service.new_device()
    store_samples(
        service,
        device,
        *(minute(BEGIN + each * MINUTE, -50) for each in (*range(10), *range(40, 50))),
        *(minute(BEGIN + each * MINUTE, -70, parent=Q) for each in range(60)),
    )
    counts = {
        each["parent"]: [(bucket["time"], bucket["count"]) for bucket in each["series"]]
        for each in get_json(service, path(device), **HOUR, Points=6)["items"]
    }
    times = [format_millis(BEGIN + each * 10 * MINUTE) for each in range(6)]
    assert counts[P] == [(times[0], 10), (times[1], 0), (times[4], 10)]
    assert counts[Q] == [(each, 10) for each in times]


@pytest.mark.rule("rest-88")
def test_links_are_those_of_the_time_that_is_asked_for_and_else_of_the_last_day(
    service: RunningService,
) -> None:
    device, now = service.new_device(), service.clock()
    store_samples(
        service,
        device,
        minute(now - DAY_MS - 5 * MINUTE, -30, parent=R),
        minute(now - DAY_MS + 5 * MINUTE, -40, parent=Q),
        minute(now - 5 * MINUTE, -50),
        minute(now + 5 * MINUTE, -60),
    )

    def heard(**query: Any) -> list[tuple[str, int]]:
        return [(each["parent"], each["rssi"]) for each in get_json(service, path(device), **query)["items"]]

    assert heard() == [(P, -50), (Q, -40)]
    assert heard(To=format_millis(now - 5 * MINUTE)) == [(Q, -40), (R, -30)]
    assert heard(From=format_millis(now - 5 * MINUTE), To=format_millis(now + DAY_MS)) == [(P, -60)]


@pytest.mark.rule("rest-88")
def test_what_is_no_link_and_whose_time_is_not_believed_does_not_count(service: RunningService) -> None:
    device, other = service.new_device(), service.new_device()
    store_samples(
        service,
        device,
        minute(BEGIN, -50),
        StoredSample(
            BEGIN,
            SampleKind.LINK,
            mac_to_number(Q),
            NO_SEQ,
            mac_to_number(A),
            -40,
            None,
            SampleExtras(clock=ClockFlag.PAST),
        ),
        build_sample(BEGIN, 21.5),
        replace(minute(BEGIN, 0, parent=0), kind=SampleKind.HEARTBEAT),
    )
    store_samples(service, other, minute(BEGIN, -60, parent=R))
    assert [each["parent"] for each in get_json(service, path(device), **HOUR)["items"]] == [P]


@pytest.mark.rule("rest-87")
def test_of_many_parents_those_are_told_that_heard_last(service: RunningService) -> None:
    device = service.new_device()
    crowd = [
        minute(BEGIN + each * MINUTE, -50, parent=0xC0FFEE00F100 + each)
        for each in range(links.MAX_PARENTS + 5)
    ]
    store_samples(service, device, minute(BEGIN, -50), *crowd, minute(BEGIN + 58 * MINUTE, -70))
    items = get_json(service, path(device), **HOUR)["items"]
    newest = [f"{each.identifier:012x}" for each in reversed(crowd)]
    assert [each["parent"] for each in items] == [P, *newest[: links.MAX_PARENTS - 1]]


@pytest.mark.rule("rest-87")
def test_of_many_parents_in_one_minute_those_are_told_that_heard_best(service: RunningService) -> None:
    device = service.new_device()
    crowd = [
        minute(BEGIN, -30 - each % 60, parent=0xC0FFEE00F100 + each * 7 % 61)
        for each in range(links.MAX_PARENTS + 10)
    ]
    store_samples(service, device, *crowd)
    items = get_json(service, path(device), **HOUR)["items"]
    assert [each["rssi"] for each in items] == [-30 - each for each in range(links.MAX_PARENTS)]


@pytest.mark.rule("rest-87", "rest-88")
def test_a_crowd_of_parents_takes_nothing_from_those_that_are_told(service: RunningService) -> None:
    device = service.new_device()
    crowd = range(0xC0FFEE00F100, 0xC0FFEE00F100 + links.MAX_PARENTS + 10)
    minutes = (minute(BEGIN + each * MINUTE, -50, parent=parent) for each in range(30) for parent in crowd)
    store_samples(service, device, *minutes)
    items = get_json(service, path(device), **HOUR, Points=60)["items"]
    assert len(items) == links.MAX_PARENTS
    assert {sum(bucket["count"] for bucket in each["series"]) for each in items} == {30}


def test_many_minutes_are_read_in_blocks_and_are_the_same(
    service: RunningService, in_blocks: RunningService
) -> None:
    device, other = service.new_device(), in_blocks.new_device()
    minutes = [minute(BEGIN + each * MINUTE, -50 - each, parent=p) for each in range(20) for p in (P, Q, R)]
    store_samples(service, device, *minutes)
    store_samples(in_blocks, other, *minutes)
    whole = get_json(service, path(device), **HOUR, Points=7)
    assert [sum(each["count"] for each in link["series"]) for link in whole["items"]] == [20, 20, 20]
    assert get_json(in_blocks, path(other), **HOUR, Points=7) == whole


@pytest.mark.rule("rest-88")
def test_points_are_three_hundred_unless_set(service: RunningService) -> None:
    device = service.new_device()
    store_samples(service, device, *(minute(BEGIN + each * MINUTE, -50) for each in range(1440)))
    day = {"From": format_millis(BEGIN), "To": format_millis(BEGIN + DAY_MS)}
    assert [
        len(get_json(service, path(device), **day, **points)["items"][0]["series"])
        for points in ({}, {"Points": 2000}, {"Points": 1})
    ] == [300, 1440, 1]


@pytest.mark.rule("rest-88")
@each_row(
    ("query", "fields"),
    [
        ({"Identifier": "8800"}, ["Identifier"]),
        ({"MaxResults": "5"}, ["MaxResults"]),
        ({"From": "9999-01-01T00:00Z"}, ["From"]),
        ({"From": "x", "To": "y", "Points": "2001"}, ["To", "From", "Points"]),
    ],
)
def test_what_cannot_be_asked_for_is_refused_by_name(
    service: RunningService, query: dict[str, Any], fields: list[str]
) -> None:
    assert list_faults(service.viewer.get(path(service.new_device()), params=query)) == fields


def test_a_device_that_nobody_heard_has_no_links_and_an_unknown_one_is_not_found(
    service: RunningService,
) -> None:
    assert get_json(service, path(service.new_device())) == {"items": []}
    for unknown in ("bmac-0123456789ab", "bmac-xyz"):
        assert service.viewer.get(path(unknown)).status_code == 404
    assert service.anonymous.get(path(service.new_device())).status_code == 401
