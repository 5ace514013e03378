"""`GET /api/v1/devices/{id}/links`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from msgspec.structs import replace

from meshfleet.db.samples.sample import DAY_MS, NO_SEQ, ClockFlag, SampleExtras, SampleKind, StoredSample
from meshfleet.protocol.times import format_millis
from meshfleet.service.ingest.minute_rollup import ChannelReadings, MinuteSummary, SeqRange
from meshfleet.service.telemetry import links
from tests.row_tables import each_row
from tests.service.ingest.messages import A, B, P, Q, R, mac_to_number
from tests.service.telemetry.sample_data import AT, MINUTE, build_sample, get_json, list_faults, store_samples

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

START = AT - AT % MINUTE
HOUR = {"From": format_millis(START), "To": format_millis(START + 60 * MINUTE)}


def links_path(device: str) -> str:
    return f"/api/v1/devices/{device}/links"


def build_minute(
    at: int, *readings: int, parent: str | int = P, gateway: str = A, unreachable: bool = False
) -> StoredSample:
    """Build a stored minute whose readings are a second apart."""
    summary = MinuteSummary(
        count=len(readings),
        min=min(readings),
        max=max(readings),
        last=readings[-1],
        last_at=at + 1000 * (len(readings) - 1),
        unreachable=unreachable,
    )
    parent_number = mac_to_number(parent) if isinstance(parent, str) else parent
    mean = sum(readings) / len(readings)
    extras = SampleExtras(ext=msgspec.json.encode(summary).decode())
    return StoredSample(
        at, SampleKind.LINK, parent_number, NO_SEQ, mac_to_number(gateway), mean, None, extras
    )


def build_bucket(time: int, count: int, *numbers: float | None) -> dict[str, Any]:
    low, mean, high, last = numbers
    return {
        "time": format_millis(time),
        "min": low,
        "mean": mean,
        "max": high,
        "count": count,
        "last": last,
        "expected": count,
        "loss": 0.0,
    }


@pytest.mark.rule("rest-87", "rest-88")
def test_a_link_has_its_last_reading_and_all_readings_in_buckets(service: RunningService) -> None:
    device = service.new_device()
    store_samples(
        service,
        device,
        *(build_minute(START + index * MINUTE, -50, -70, -60) for index in range(9)),
        build_minute(START + 9 * MINUTE, -88),
        build_minute(START + 10 * MINUTE, -44, -40, gateway=B, unreachable=True),
    )
    response = get_json(service, links_path(device), **HOUR, Points=6)
    assert response == {
        "items": [
            {
                "parent": P,
                "rssi": -40,
                "seenAt": format_millis(START + 10 * MINUTE + 1000),
                "unreachable": True,
                "mean": pytest.approx((27 * -60 - 88 - 84) / 30),
                "min": -88,
                "max": -40,
                "count": 30,
                "gateway": B,
                "series": [
                    build_bucket(START, 28, -88, -61, -50, -88),
                    build_bucket(START + 10 * MINUTE, 2, -44, -42, -40, -40),
                ],
                "expected": 30,
                "loss": 0.0,
                "channels": [],
            }
        ],
        "heartbeats": None,
    }
    (link,) = response["items"]
    first_fields = ["parent", "rssi", "seenAt", "unreachable", "mean", "min", "max", "count"]
    assert list(link) == [*first_fields, "gateway", "series", "expected", "loss", "channels"]
    first_bucket_fields = ["time", "min", "mean", "max", "count", "last"]
    assert list(link["series"][0]) == [*first_bucket_fields, "expected", "loss"]


@pytest.mark.rule("rest-245", "rest-246", "rest-247")
def test_links_have_their_loss_their_channels_and_the_heartbeats(service: RunningService) -> None:
    device = service.new_device()

    def build(at: int, parent: str | int, kind: SampleKind, summary: MinuteSummary) -> StoredSample:
        extras = SampleExtras(ext=msgspec.json.encode(summary).decode())
        return replace(build_minute(at, -50, parent=parent), kind=kind, more=extras)

    heard = [ChannelReadings(37, 2, -120), ChannelReadings(39, 1, -80)]
    minutes = []
    for index in range(10):
        at = START + index * MINUTE
        seqs = SeqRange((250 + 4 * index) % 256, 4, 3)
        link = MinuteSummary(3, -80, -60, -60, at, seqs=seqs, channels=heard)
        heartbeat = MinuteSummary(1, 0, 0, 0, at, seqs=SeqRange(2 * index, 1, 1), copies=(1, 2))
        minutes += [build(at, P, SampleKind.LINK, link), build(at, 0, SampleKind.HEARTBEAT, heartbeat)]
    store_samples(service, device, *minutes)
    response = get_json(service, links_path(device), **HOUR, Points=6)
    assert response["heartbeats"] == {"count": 10, "expected": 19, "loss": 0.4737, "copies": 2.0}
    (link,) = response["items"]
    assert (link["count"], link["expected"], link["loss"]) == (30, 40, 0.25)
    assert link["channels"] == [
        {"channel": 37, "count": 20, "mean": -60.0},
        {"channel": 39, "count": 10, "mean": -80.0},
    ]
    assert [(each["expected"], each["loss"]) for each in link["series"]] == [(40, 0.25)]


@pytest.mark.rule("rest-87")
def test_links_are_sorted_by_their_newest_minute_then_by_signal(service: RunningService) -> None:
    device = service.new_device()
    store_samples(
        service,
        device,
        build_minute(START, -30, parent=R),
        build_minute(START + MINUTE, -80, parent=P),
        build_minute(START + MINUTE, -99, -60, parent=Q),
    )
    items = get_json(service, links_path(device), **HOUR)["items"]
    assert [(item["parent"], item["rssi"]) for item in items] == [(Q, -60), (P, -80), (R, -30)]


@pytest.mark.rule("rest-88")
def test_a_gap_of_one_link_is_independent_of_other_links(service: RunningService) -> None:
    device = service.new_device()
    store_samples(
        service,
        device,
        *(build_minute(START + index * MINUTE, -50) for index in (*range(10), *range(40, 50))),
        *(build_minute(START + index * MINUTE, -70, parent=Q) for index in range(60)),
    )
    counts = {
        item["parent"]: [(bucket["time"], bucket["count"]) for bucket in item["series"]]
        for item in get_json(service, links_path(device), **HOUR, Points=6)["items"]
    }
    times = [format_millis(START + index * 10 * MINUTE) for index in range(6)]
    assert counts[P] == [(times[0], 10), (times[1], 0), (times[4], 10)]
    assert counts[Q] == [(time, 10) for time in times]


@pytest.mark.rule("rest-88")
def test_links_are_of_the_requested_time_or_of_the_last_day(
    service: RunningService,
) -> None:
    device, now = service.new_device(), service.clock()
    store_samples(
        service,
        device,
        build_minute(now - DAY_MS - 5 * MINUTE, -30, parent=R),
        build_minute(now - DAY_MS + 5 * MINUTE, -40, parent=Q),
        build_minute(now - 5 * MINUTE, -50),
        build_minute(now + 5 * MINUTE, -60),
    )

    def list_links(**query: Any) -> list[tuple[str, int]]:
        items = get_json(service, links_path(device), **query)["items"]
        return [(item["parent"], item["rssi"]) for item in items]

    assert list_links() == [(P, -50), (Q, -40)]
    assert list_links(To=format_millis(now - 5 * MINUTE)) == [(Q, -40), (R, -30)]
    assert list_links(From=format_millis(now - 5 * MINUTE), To=format_millis(now + DAY_MS)) == [(P, -60)]


@pytest.mark.rule("rest-88")
def test_other_kinds_and_implausible_times_are_ignored(service: RunningService) -> None:
    device, other = service.new_device(), service.new_device()
    store_samples(
        service,
        device,
        build_minute(START, -50),
        StoredSample(
            START,
            SampleKind.LINK,
            mac_to_number(Q),
            NO_SEQ,
            mac_to_number(A),
            -40,
            None,
            SampleExtras(clock=ClockFlag.PAST),
        ),
        build_sample(START, 21.5),
        replace(build_minute(START, 0, parent=0), kind=SampleKind.HEARTBEAT),
    )
    store_samples(service, other, build_minute(START, -60, parent=R))
    items = get_json(service, links_path(device), **HOUR)["items"]
    assert [item["parent"] for item in items] == [P]


@pytest.mark.rule("rest-87")
def test_of_many_parents_those_with_the_newest_minutes_are_returned(service: RunningService) -> None:
    device = service.new_device()
    parents = [
        build_minute(START + index * MINUTE, -50, parent=0xC0FFEE00F100 + index)
        for index in range(links.MAX_PARENTS + 5)
    ]
    store_samples(service, device, build_minute(START, -50), *parents, build_minute(START + 58 * MINUTE, -70))
    items = get_json(service, links_path(device), **HOUR)["items"]
    newest = [f"{parent.identifier:012x}" for parent in reversed(parents)]
    assert [item["parent"] for item in items] == [P, *newest[: links.MAX_PARENTS - 1]]


@pytest.mark.rule("rest-87")
def test_of_many_parents_in_one_minute_those_with_the_strongest_signal_are_returned(
    service: RunningService,
) -> None:
    device = service.new_device()
    parents = [
        build_minute(START, -30 - index % 60, parent=0xC0FFEE00F100 + index * 7 % 61)
        for index in range(links.MAX_PARENTS + 10)
    ]
    store_samples(service, device, *parents)
    items = get_json(service, links_path(device), **HOUR)["items"]
    assert [item["rssi"] for item in items] == [-30 - index for index in range(links.MAX_PARENTS)]


@pytest.mark.rule("rest-87", "rest-88")
def test_the_returned_parents_have_all_their_minutes_despite_many_others(service: RunningService) -> None:
    device = service.new_device()
    parents = range(0xC0FFEE00F100, 0xC0FFEE00F100 + links.MAX_PARENTS + 10)
    minutes = (
        build_minute(START + index * MINUTE, -50, parent=parent) for index in range(30) for parent in parents
    )
    store_samples(service, device, *minutes)
    items = get_json(service, links_path(device), **HOUR, Points=60)["items"]
    assert len(items) == links.MAX_PARENTS
    assert {sum(bucket["count"] for bucket in item["series"]) for item in items} == {30}


def test_the_chunks_of_a_read_do_not_change_the_links(
    service: RunningService, chunked_service: RunningService
) -> None:
    device, other = service.new_device(), chunked_service.new_device()
    minutes = [
        build_minute(START + index * MINUTE, -50 - index, parent=parent)
        for index in range(20)
        for parent in (P, Q, R)
    ]
    store_samples(service, device, *minutes)
    store_samples(chunked_service, other, *minutes)
    expected = get_json(service, links_path(device), **HOUR, Points=7)
    assert [sum(bucket["count"] for bucket in link["series"]) for link in expected["items"]] == [20, 20, 20]
    assert get_json(chunked_service, links_path(other), **HOUR, Points=7) == expected


@pytest.mark.rule("rest-88")
def test_the_default_number_of_points_is_300(service: RunningService) -> None:
    device = service.new_device()
    store_samples(service, device, *(build_minute(START + index * MINUTE, -50) for index in range(1440)))
    day = {"From": format_millis(START), "To": format_millis(START + DAY_MS)}
    assert [
        len(get_json(service, links_path(device), **day, **points)["items"][0]["series"])
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
def test_invalid_parameters_are_refused_by_name(
    service: RunningService, query: dict[str, Any], fields: list[str]
) -> None:
    assert list_faults(service.viewer.get(links_path(service.new_device()), params=query)) == fields


def test_a_device_without_links_has_an_empty_list_and_an_unknown_one_is_not_found(
    service: RunningService,
) -> None:
    assert get_json(service, links_path(service.new_device())) == {"items": [], "heartbeats": None}
    for unknown in ("bmac-0123456789ab", "bmac-xyz"):
        assert service.viewer.get(links_path(unknown)).status_code == 404
    assert service.anonymous.get(links_path(service.new_device())).status_code == 401
