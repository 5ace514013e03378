"""`GET /api/v1/devices/{id}/samples`: items, filters and pages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples.sample import ClockFlag, SampleExtras, SampleKind, StoredSample
from meshfleet.protocol.identifiers.numbers import identifier_to_int
from meshfleet.protocol.ids import Identifier
from meshfleet.protocol.times import format_millis
from meshfleet.service.telemetry.rest_sample import KINDS_BY_NAME
from tests.row_tables import each_row
from tests.service.telemetry.sample_data import (
    AT,
    MINUTE,
    build_sample,
    get_all_pages,
    get_json,
    learn_name,
    list_faults,
    store_samples,
)

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

DEFAULTS: dict[str, Any] = {
    "time": "2023-11-14T22:13:20.000Z",
    "kind": "measurement",
    "identifier": "8800",
    "name": "temperature",
    "seq": None,
    "value": None,
    "raw": None,
    "ext": None,
    "error": None,
    "errorExt": None,
    "gateway": "d0cf5e000001",
    "clock": None,
}


def samples_path(device: str) -> str:
    return f"/api/v1/devices/{device}/samples"


def get_items(service: RunningService, *samples: StoredSample) -> list[dict[str, Any]]:
    """Return the items of a new device that has these samples."""
    device = service.new_device()
    store_samples(service, device, *samples)
    items: list[dict[str, Any]] = get_json(service, samples_path(device))["items"]
    return items


@pytest.mark.rule("rest-81")
def test_an_item_has_twelve_fields_in_this_order(service: RunningService) -> None:
    (row,) = get_items(
        service,
        build_sample(AT, 21.5, seq=7, raw=bytes.fromhex("0866FF"), more=SampleExtras(ext='{"a": [1]}')),
    )
    assert list(row) == list(DEFAULTS)
    assert row == DEFAULTS | {"seq": 7, "value": 21.5, "raw": "0866ff", "ext": {"a": [1]}}


@pytest.mark.both_databases
@pytest.mark.rule("rest-81", "rest-82")
@each_row(
    ("stored", "expected"),
    [
        (build_sample(number=21, seq=0), {"seq": 0, "value": 21}),
        (
            build_sample(kind=SampleKind.PROPERTY, identifier=0x8001, more=SampleExtras(text='"2.4.0"')),
            {"kind": "property", "identifier": "8001", "name": "firmware-version", "value": "2.4.0"},
        ),
        (
            build_sample(number=1, kind=SampleKind.EVENT, identifier=0x8113, more=SampleExtras(text="true")),
            {"kind": "event", "identifier": "8113", "name": "watchdog-reset-event", "value": True},
        ),
        (
            build_sample(kind=SampleKind.MEASUREMENT_ERROR, more=SampleExtras(error=9, error_ext=70000)),
            {"kind": "measurement-error", "error": 9, "errorExt": 70000},
        ),
        (build_sample(raw=b""), {"raw": ""}),
        (build_sample(identifier=0x05, raw=b"\x00\xff"), {"identifier": "05", "name": None, "raw": "00ff"}),
        (build_sample(identifier=0xFFFFFF7F), {"identifier": "ffffff7f", "name": None}),
        (
            build_sample(more=SampleExtras(text='{"b": [1, 2.50, 1e99], "a": "\\u00e9/"}')),
            {"value": {"b": [1, 2.5, 1e99], "a": "é/"}},
        ),
        (build_sample(number=1, more=SampleExtras(clock=ClockFlag.FUTURE)), {"value": 1, "clock": "future"}),
        (build_sample(number=1, more=SampleExtras(clock=ClockFlag.PAST)), {"value": 1, "clock": "past"}),
        (
            build_sample(number=1, more=SampleExtras(clock=ClockFlag.CORRECTED, shift=-21_600_000)),
            {"value": 1, "correctedTime": "2023-11-14T16:13:20.000Z"},
        ),
        (build_sample(more=SampleExtras(shift=6_500)), {"correctedTime": "2023-11-14T22:13:26.500Z"}),
        (
            build_sample(more=SampleExtras(clock=ClockFlag.PAST, shift=1)),
            {"clock": "past", "correctedTime": "2023-11-14T22:13:20.001Z"},
        ),
        (build_sample(0), {"time": "1970-01-01T00:00:00.000Z"}),
        (build_sample(AT + 1), {"time": "2023-11-14T22:13:20.001Z"}),
    ],
)
def test_an_item_contains_all_of_a_sample(
    service: RunningService, stored: StoredSample, expected: dict[str, Any]
) -> None:
    assert get_items(service, stored) == [DEFAULTS | expected]


@pytest.mark.rule("rest-179")
def test_a_sample_with_an_implausible_time_is_listed_at_its_time_and_flagged(
    service: RunningService,
) -> None:
    rows = get_items(
        service,
        build_sample(AT + MINUTE, 3, more=SampleExtras(clock=ClockFlag.FUTURE)),
        build_sample(AT, 2),
        build_sample(AT - MINUTE, 1, more=SampleExtras(clock=ClockFlag.PAST)),
    )
    assert [(row["value"], row["clock"]) for row in rows] == [(3, "future"), (2, None), (1, "past")]


@pytest.mark.both_databases
@pytest.mark.rule("rest-180")
@each_row(
    ("number", "written"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (5, "5"),
        (-40.0, "-40"),
        (21.37, "21.37"),
        (2.0**53 - 1, "9007199254740991"),
        (2.0**53, "9007199254740992.0"),
        (1e300, "1e300"),
        (5e-324, "5e-324"),
    ],
)
def test_a_number_is_formatted_without_invented_digits(
    service: RunningService, number: float, written: str
) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(number=number))
    assert f'"value":{written},"raw"' in service.viewer.get(samples_path(device)).text


@pytest.mark.both_databases
@pytest.mark.rule("rest-81", "rest-83")
def test_a_name_outside_the_catalogue_is_returned_and_can_be_queried(service: RunningService) -> None:
    name = service.new_name("soil moisture é")
    device, number = service.new_device(), learn_name(service, name)
    store_samples(service, device, build_sample(identifier=number, number=4), build_sample(number=5))
    (row,) = get_json(service, samples_path(device), Identifier=name)["items"]
    assert row == DEFAULTS | {"identifier": None, "name": name, "value": 4}
    assert len(get_json(service, samples_path(device))["items"]) == 2


@pytest.mark.rule("rest-83")
@pytest.mark.parametrize("text", ["9f01", "9F01"])
def test_a_hex_identifier_is_accepted_in_any_case(service: RunningService, text: str) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(identifier=0x9F01, number=1), build_sample(number=2))
    assert [row["value"] for row in get_json(service, samples_path(device), Identifier=text)["items"]] == [1]


@pytest.mark.rule("rest-83", "id-32")
def test_an_identifier_outside_the_catalogue_is_returned_and_queried_in_its_own_length(
    service: RunningService,
) -> None:
    device, texts = service.new_device(), ["beef", "80ff", "000080ff", "ef", "00ef"]
    store_samples(
        service,
        device,
        *(build_sample(identifier=identifier_to_int(Identifier(text)), raw=b"x") for text in texts),
    )
    for text in texts:
        (row,) = get_json(service, samples_path(device), Identifier=text)["items"]
        assert row == DEFAULTS | {"identifier": text, "name": None, "raw": "78"}
    csv_text = service.viewer.get(samples_path(device), headers={"Accept": "text/csv"}).text
    assert sorted(line.split(",")[2] for line in csv_text.splitlines()[1:]) == sorted(texts)


@pytest.mark.rule("rest-83")
def test_an_identifier_and_its_name_return_the_same_samples(service: RunningService) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(number=1), build_sample(identifier=0x8802, number=2))
    by_name = get_json(service, samples_path(device), Identifier="temperature")
    assert [row["value"] for row in by_name["items"]] == [1]
    assert get_json(service, samples_path(device), Identifier="8800") == by_name
    assert get_json(service, samples_path(device), Identifier="nothing of this name")["items"] == []


@pytest.fixture(scope="module")
def large_device(service: RunningService) -> str:
    """Create a device with samples of all kinds, also internal ones, several at a time, over three days."""
    device = service.new_device()
    samples = [
        build_sample(AT + index // 5 * 180 * MINUTE, index, kind=kind, identifier=identifier, seq=index % 256)
        for index in range(120)
        for kind in SampleKind
        for identifier in (0x8800, 0x8802)
    ]
    store_samples(service, device, *samples[::2])
    store_samples(service, device, *samples)
    store_samples(service, service.new_device(), *samples[:7])
    return device


@pytest.fixture(scope="module")
def all_rows(service: RunningService, large_device: str) -> list[dict[str, Any]]:
    """Return all items of that device."""
    items: list[dict[str, Any]] = get_json(service, samples_path(large_device), MaxResults=1000)["items"]
    return items


def identity_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["time"], KINDS_BY_NAME[row["kind"]], int(row["identifier"], 16), row["seq"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-80", "rest-82", "rest-187")
def test_the_newest_samples_come_first_without_duplicates_and_internal_kinds(
    service: RunningService, large_device: str
) -> None:
    rows = get_json(service, samples_path(large_device), MaxResults=1000)["items"]
    assert len(rows) == 120 * 2 * 4
    assert {row["kind"] for row in rows} == {"property", "measurement", "measurement-error", "event"}
    assert [identity_of(row) for row in rows] == sorted({identity_of(row) for row in rows}, reverse=True)


@pytest.mark.both_databases
@pytest.mark.rule("rest-80", "rest-16")
@each_row("limit", [37, 100, 959, 960, 961])
def test_the_pages_together_are_the_list(service: RunningService, large_device: str, limit: int) -> None:
    all_items = get_json(service, samples_path(large_device), MaxResults=1000)
    assert (len(all_items["items"]), all_items["nextToken"]) == (960, None)
    assert get_all_pages(service, samples_path(large_device), MaxResults=limit) == all_items["items"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-80", "rest-82", "rest-83")
@each_row("kinds", [["event"], ["property", "measurement-error"], list(KINDS_BY_NAME), None])
@each_row("identifier", [None, "8802"])
@each_row("bounds", [(None, None), (4, None), (None, 9), (4, 9), (4, 5)])
def test_samples_match_all_filters(  # noqa: PLR0913 # a product of three tables
    service: RunningService,
    large_device: str,
    all_rows: list[dict[str, Any]],
    *,
    kinds: list[str] | None,
    identifier: str | None,
    bounds: tuple[int | None, int | None],
) -> None:
    first, end = (None if bound is None else format_millis(AT + bound * 180 * MINUTE) for bound in bounds)
    parameters: dict[str, Any] = {"Kind": kinds, "Identifier": identifier, "From": first, "To": end}
    items = get_all_pages(
        service,
        samples_path(large_device),
        MaxResults=97,
        **{name: value for name, value in parameters.items() if value is not None},
    )
    assert items == [
        row
        for row in all_rows
        if row["kind"] in (kinds or KINDS_BY_NAME)
        and identifier in {None, row["identifier"]}
        and (first or "") <= row["time"] < (end or "9")
    ]
    assert items


@pytest.mark.rule("rest-80", "rest-187")
@each_row(
    "text",
    ["2023-11-14T22:14:20Z", "2023-11-15T00:14:20.0000+02:00", "20231114T221420", "2023-W46-2T22:14:20,0Z"],
)
def test_time_bounds_accept_every_spelling_and_the_end_is_exclusive(
    service: RunningService, text: str
) -> None:
    device = service.new_device()
    store_samples(service, device, *(build_sample(AT + MINUTE + offset, offset) for offset in (-1, 0, 1)))
    assert [row["value"] for row in get_json(service, samples_path(device), From=text)["items"]] == [1, 0]
    assert [row["value"] for row in get_json(service, samples_path(device), To=text)["items"]] == [-1]


@pytest.mark.both_databases
@pytest.mark.rule("rest-80")
def test_the_first_and_last_possible_times_are_accepted(service: RunningService) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(AT, 1))
    bounds = {"From": "0001-01-01T00:00:00Z", "To": "9999-12-31T23:59:59.999Z"}
    assert len(get_json(service, samples_path(device), **bounds)["items"]) == 1


@pytest.mark.both_databases
@pytest.mark.rule("rest-80", "rest-20")
def test_samples_that_arrive_between_pages_cause_no_duplicates_or_omissions(service: RunningService) -> None:
    device = service.new_device()
    initial_times = {AT + 2 * index for index in range(40)}
    store_samples(service, device, *(build_sample(time, time) for time in initial_times))
    page = get_json(service, samples_path(device), MaxResults=7)
    seen = [row["value"] for row in page["items"]]
    for turn in range(1, 7):
        late = min(seen) - 1
        arrived = [AT + 1000 + turn, max(seen) - 3, late]
        store_samples(
            service,
            device,
            *(build_sample(time, time) for time in arrived),
            build_sample(min(initial_times), 5),
        )
        page = get_json(service, samples_path(device), MaxResults=7, NextToken=page["nextToken"])
        seen += [row["value"] for row in page["items"]]
        assert late in seen
    assert page["nextToken"] is None
    assert seen == sorted(set(seen), reverse=True)
    assert initial_times <= set(seen)
    assert max(seen) == max(initial_times)


@pytest.mark.rule("rest-80", "rest-187")
@each_row(
    ("query", "fields"),
    [
        ({"Kind": "Property"}, ["Kind"]),
        ({"Kind": ""}, ["Kind"]),
        ({"Kind": ["event", "heartbeat", "link", "4"]}, ["Kind"] * 3),
        ({"Kind": "property,event"}, ["Kind"]),
        ({"Identifier": ""}, ["Identifier"]),
        ({"Identifier": "a/b"}, ["Identifier"]),
        ({"Identifier": "#"}, ["Identifier"]),
        ({"Identifier": "x" * 129}, ["Identifier"]),
        ({"Identifier": "a\x1fb"}, ["Identifier"]),
        ({"Identifier": "\0"}, ["Identifier"]),
        ({"Identifier": ["8800", "8801"]}, ["Identifier"]),
        ({"From": "yesterday"}, ["From"]),
        ({"From": ""}, ["From"]),
        ({"From": "2023-11-14"}, ["From"]),
        ({"From": "2023-02-29T00:00:00Z"}, ["From"]),
        ({"From": "0001-01-01T00:00:00+01:00"}, ["From"]),
        ({"To": "9999-12-31T23:59:59-01:00"}, ["To"]),
        ({"To": "2023-11-14T22:13:20 02:00"}, ["To"]),
        (
            {"From": "1700000000000", "To": "x", "Kind": "x", "Identifier": ""},
            ["Kind", "Identifier", "From", "To"],
        ),
        ({"From": "2023-11-14T22:13:20Z", "To": "2023-11-14T22:13:20Z"}, ["From"]),
        ({"From": "2023-11-14T22:13:20.001Z", "To": "2023-11-15T00:13:20+02:00"}, ["From"]),
        ({"To": "0001-01-01T00:00:00Z"}, ["From"]),
        ({"Points": "3"}, ["Points"]),
        ({"MaxResults": "0"}, ["MaxResults"]),
        ({"kinds": "event"}, ["kinds"]),
    ],
)
def test_invalid_parameters_are_refused_by_name(
    service: RunningService, query: dict[str, Any], fields: list[str]
) -> None:
    assert list_faults(service.viewer.get(samples_path(service.new_device()), params=query)) == fields


@pytest.mark.rule("rest-15", "rest-80")
@each_row("device", ["bmac-0000000000ee", "bmac-0000000000EE", "0000000000ee", "x", "%00"])
@each_row("ending", ["samples", "series?Identifier=8800"])
def test_samples_of_an_unknown_device_are_not_found(
    service: RunningService, device: str, ending: str
) -> None:
    response = service.viewer.get(f"/api/v1/devices/{device}/{ending}")
    assert (response.status_code, response.json()["code"]) == (404, "not-found")
    csv = service.viewer.get(f"/api/v1/devices/{device}/{ending}", headers={"Accept": "text/csv"})
    assert (csv.status_code, csv.headers["Content-Type"]) == (404, "application/problem+json")


@pytest.mark.rule("rest-17", "rest-19", "rest-80")
def test_a_page_token_belongs_to_its_device_and_filters(service: RunningService, large_device: str) -> None:
    query: dict[str, Any] = {
        "Kind": ["event", "property"],
        "Identifier": "8800",
        "From": format_millis(AT),
        "MaxResults": 2,
    }
    token = get_json(service, samples_path(large_device), **query)["nextToken"]
    same = {**query, "Kind": ["property", "event"], "Identifier": "temperature", "MaxResults": 5}
    assert len(get_json(service, samples_path(large_device), **same, NextToken=token)["items"]) == 5
    other = service.new_device()
    refused = [
        (other, query),
        (large_device, {**query, "Kind": "event"}),
        (large_device, {**query, "Identifier": "8802"}),
        (large_device, {**query, "From": format_millis(AT + 1)}),
        (large_device, {**query, "To": format_millis(AT + 1)}),
        (large_device, {}),
    ]
    for device, parameters in refused:
        response = service.viewer.get(samples_path(device), params={**parameters, "NextToken": token})
        assert (response.status_code, response.json()["code"]) == (400, "invalid-token")
    assert (
        service.viewer.get("/api/v1/rejects", params={"NextToken": token}).json()["code"] == "invalid-token"
    )


@pytest.mark.rule("rest-80", "auth-4")
def test_samples_are_not_shown_without_an_access_token(service: RunningService, large_device: str) -> None:
    for ending in ("samples", "series?Identifier=8800"):
        response = service.anonymous.get(f"/api/v1/devices/{large_device}/{ending}")
        assert (response.status_code, "temperature" in response.text) == (401, False)
    assert service.anonymous.get("/api/v1/rejects").status_code == 401
