"""`GET /api/v1/devices/{id}/series`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples.sample import DAY_MS, ClockFlag, SampleExtras, SampleKind
from meshfleet.protocol.times import format_millis
from tests.row_tables import each_row
from tests.service.telemetry.sample_data import (
    AT,
    MINUTE,
    build_sample,
    get_json,
    learn_name,
    list_faults,
    store_samples,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db.samples.sample import SampleConsumer, SampleQuery, StoredSample
    from tests.service.http.running_service import RunningService

HOUR = {"From": format_millis(AT), "To": format_millis(AT + 60 * MINUTE)}


def series_path(device: str) -> str:
    return f"/api/v1/devices/{device}/series"


def build_bucket(time: int, count: int, *numbers: float | None) -> dict[str, Any]:
    low, mean, high, last = numbers
    return {"time": format_millis(time), "min": low, "mean": mean, "max": high, "count": count, "last": last}


@pytest.mark.rule("rest-85", "rest-86", "rest-182", "rest-184")
def test_a_series_has_its_title_and_its_buckets(service: RunningService) -> None:
    device = service.new_device()
    store_samples(
        service,
        device,
        *(build_sample(AT + index * MINUTE, index) for index in range(20)),
        *(build_sample(AT + (40 + index) * MINUTE, index / 8) for index in range(5)),
        build_sample(AT + 60 * MINUTE, 1000),
        build_sample(AT - 1, 1000),
        build_sample(AT, 1000, identifier=0x8802),
    )
    response = get_json(service, series_path(device), Identifier="8800", **HOUR, Points=6)
    assert list(response) == ["identifier", "name", "unit", "completeUpTo", "gapChecked", "items"]
    assert response == {
        "identifier": "8800",
        "name": "temperature",
        "unit": "°C",
        "completeUpTo": None,
        "gapChecked": None,
        "items": [
            build_bucket(AT, 10, 0, 4.5, 9, 9),
            build_bucket(AT + 10 * MINUTE, 10, 10, 14.5, 19, 19),
            build_bucket(AT + 20 * MINUTE, 0, None, None, None, None),
            build_bucket(AT + 40 * MINUTE, 5, 0, 0.25, 0.5, 0.5),
        ],
    }
    assert list(response["items"][0]) == ["time", "min", "mean", "max", "count", "last"]
    assert get_json(service, series_path(device), Identifier="temperature", **HOUR, Points=6) == response


def test_the_chunks_of_a_read_do_not_change_the_series(
    service: RunningService, chunked_service: RunningService, monkeypatch: pytest.MonkeyPatch
) -> None:
    device, other = service.new_device(), chunked_service.new_device()
    for target, running_service in ((device, service), (other, chunked_service)):
        store_samples(
            running_service, target, *(build_sample(AT + number * MINUTE, number) for number in range(50))
        )
    query = {"Identifier": "8800", **HOUR, "Points": 7}
    expected = get_json(service, series_path(device), **query)
    chunk_sizes: list[int] = []
    real_read = chunked_service.samples.read

    async def read_and_count(sample_query: SampleQuery, consume: SampleConsumer[Any]) -> Any:
        def consume_and_count(samples: Iterator[StoredSample]) -> Any:
            sample_count = 0

            def count_samples() -> Iterator[StoredSample]:
                nonlocal sample_count
                for sample in samples:
                    sample_count += 1
                    yield sample

            result = consume(count_samples())
            chunk_sizes.append(sample_count)
            return result

        return await real_read(sample_query, consume_and_count)

    monkeypatch.setattr(chunked_service.samples, "read", read_and_count)
    assert get_json(chunked_service, series_path(other), **query) == expected
    assert sum(item["count"] for item in expected["items"]) == 50
    assert chunk_sizes == [20, 20, 10]


@pytest.mark.rule("rest-182")
def test_a_series_has_the_numbers_of_three_kinds_with_plausible_times(service: RunningService) -> None:
    device = service.new_device()
    store_samples(
        service,
        device,
        *(build_sample(AT + kind, kind + 1, kind=kind) for kind in SampleKind),
        build_sample(AT + 10, 100, more=SampleExtras(clock=ClockFlag.FUTURE)),
        build_sample(AT + 11, None, more=SampleExtras(text='"17"')),
    )
    (item,) = get_json(service, series_path(device), Identifier="8800", **HOUR, Points=1)["items"]
    assert item == build_bucket(AT, 3, 1, 7 / 3, 4, 4)


@pytest.mark.rule("rest-183")
def test_without_times_a_series_is_of_the_last_day(service: RunningService) -> None:
    device, now = service.new_device(), service.clock()
    store_samples(
        service,
        device,
        build_sample(now - DAY_MS - 5 * MINUTE, 1),
        build_sample(now - DAY_MS + 5 * MINUTE, 2),
        build_sample(now - 5 * MINUTE, 3),
        build_sample(now + 5 * MINUTE, 4),
    )
    items = get_json(service, series_path(device), Identifier="8800")["items"]
    assert [item["last"] for item in items] == [2, 3]
    end = format_millis(now)
    items = get_json(service, series_path(device), Identifier="8800", To=end)["items"]
    assert [item["last"] for item in items] == [2, 3]
    since = format_millis(now - 2 * DAY_MS)
    items = get_json(service, series_path(device), Identifier="8800", From=since)["items"]
    assert [item["last"] for item in items] == [1, 2, 3]


@pytest.mark.rule("rest-183")
def test_the_default_number_of_points_is_300(service: RunningService) -> None:
    device = service.new_device()
    store_samples(service, device, *(build_sample(AT + index * 1000, index) for index in range(3600)))
    assert len(get_json(service, series_path(device), Identifier="8800", **HOUR)["items"]) == 300
    assert (
        len(get_json(service, series_path(device), Identifier="8800", **HOUR, Points=2000)["items"]) == 2000
    )
    assert len(get_json(service, series_path(device), Identifier="8800", **HOUR, Points=1)["items"]) == 1


@pytest.mark.rule("rest-85")
def test_a_series_outside_the_catalogue_has_no_unit(service: RunningService) -> None:
    device, name = service.new_device(), service.new_name("soil moisture")
    store_samples(
        service,
        device,
        build_sample(AT, 5, identifier=learn_name(service, name)),
        build_sample(AT, 6, identifier=5),
    )
    foreign = get_json(service, series_path(device), Identifier=name, **HOUR)
    assert (foreign["identifier"], foreign["name"], foreign["unit"]) == (None, name, None)
    assert [item["last"] for item in foreign["items"]] == [5]
    unknown = get_json(service, series_path(device), Identifier="05", **HOUR)
    assert (unknown["identifier"], unknown["name"], unknown["unit"]) == ("05", None, None)
    assert [item["last"] for item in unknown["items"]] == [6]
    plain = get_json(service, series_path(device), Identifier="8102", **HOUR)
    assert (plain["name"], plain["unit"], plain["items"]) == ("reset-cause", None, [])


@pytest.mark.rule("rest-183")
@each_row(
    ("query", "fields"),
    [
        ({}, ["Identifier"]),
        ({"Identifier": ""}, ["Identifier"]),
        ({"Identifier": "+"}, ["Identifier"]),
        ({"Identifier": "8800", "Kind": "event"}, ["Kind"]),
        ({"Identifier": "8800", "MaxResults": "5"}, ["MaxResults"]),
        ({"Identifier": "8800", "From": "x"}, ["From"]),
        ({"Identifier": "8800", "To": "x"}, ["To"]),
        ({"Identifier": "8800", "From": "9999-01-01T00:00Z"}, ["From"]),
        ({"Identifier": "8800", "To": "0001-01-01T00:00Z"}, ["From"]),
        ({"Identifier": "8800", "From": "2023-01-01T00Z", "To": "2023-01-01T00Z"}, ["From"]),
        *(
            ({"Identifier": "8800", "Points": points}, ["Points"])
            for points in ("0", "2001", "-1", "", "x", "1.0", "+5", " 5", "9" * 30, "\uff15", "null")
        ),
        ({"Points": "0", "From": "x", "To": "y"}, ["Identifier", "To", "From", "Points"]),
    ],
)
def test_invalid_parameters_are_refused_by_name(
    service: RunningService, query: dict[str, Any], fields: list[str]
) -> None:
    assert list_faults(service.viewer.get(series_path(service.new_device()), params=query)) == fields


@pytest.mark.rule("rest-183")
@each_row(
    "query",
    [
        {"From": "0001-01-01T00:00:00Z", "To": "9999-12-31T23:59:59.999Z"},
        {"To": "0001-01-01T00:00:00.001Z"},
        {"From": "9999-12-31T23:59:59.998Z", "To": "9999-12-31T23:59:59.999Z"},
        {"From": "2023-11-14T22:13:20Z", "To": "2023-11-14T22:13:20.001Z", "Points": "2000"},
    ],
)
def test_the_longest_and_the_shortest_time_ranges_are_accepted(
    service: RunningService, query: dict[str, Any]
) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(AT, 1), build_sample(AT + 5, 2))
    items = get_json(service, series_path(device), Identifier="8800", **query)["items"]
    assert sum(item["count"] for item in items) <= 2
