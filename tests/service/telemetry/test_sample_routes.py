"""`GET /api/v1/devices/{id}/samples`: rows, filters and pages."""

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

PLAIN: dict[str, Any] = {
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


def path(device: str) -> str:
    return f"/api/v1/devices/{device}/samples"


def shown(service: RunningService, *samples: StoredSample) -> list[dict[str, Any]]:
    """What is shown of a new device that has these samples."""
    device = service.new_device()
    store_samples(service, device, *samples)
    items: list[dict[str, Any]] = get_json(service, path(device))["items"]
    return items


@pytest.mark.rule("rest-81")
def test_a_row_has_twelve_fields_in_this_order(service: RunningService) -> None:
    (row,) = shown(
        service,
        build_sample(AT, 21.5, seq=7, raw=bytes.fromhex("0866FF"), more=SampleExtras(ext='{"a": [1]}')),
    )
    assert list(row) == list(PLAIN)
    assert row == PLAIN | {"seq": 7, "value": 21.5, "raw": "0866ff", "ext": {"a": [1]}}


@pytest.mark.both_databases
@pytest.mark.rule("rest-81", "rest-82")
@each_row(
    ("stored", "different"),
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
def test_a_row_tells_all_of_a_sample(
    service: RunningService, stored: StoredSample, different: dict[str, Any]
) -> None:
    assert shown(service, stored) == [PLAIN | different]


@pytest.mark.rule("rest-179")
def test_a_sample_whose_time_is_not_believed_is_listed_at_its_time_and_says_so(
    service: RunningService,
) -> None:
    rows = shown(
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
def test_a_number_is_written_without_digits_that_it_does_not_have(
    service: RunningService, number: float, written: str
) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(number=number))
    assert f'"value":{written},"raw"' in service.viewer.get(path(device)).text


@pytest.mark.both_databases
@pytest.mark.rule("rest-81", "rest-83")
def test_a_name_that_the_catalogue_does_not_know_is_shown_and_found(service: RunningService) -> None:
    name = service.new_name("soil moisture é")
    device, number = service.new_device(), learn_name(service, name)
    store_samples(service, device, build_sample(identifier=number, number=4), build_sample(number=5))
    (row,) = get_json(service, path(device), Identifier=name)["items"]
    assert row == PLAIN | {"identifier": None, "name": name, "value": 4}
    assert len(get_json(service, path(device))["items"]) == 2


@pytest.mark.rule("rest-83")
@pytest.mark.parametrize("text", ["9f01", "9F01"])
def test_a_hex_identifier_is_read_in_either_case(service: RunningService, text: str) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(identifier=0x9F01, number=1), build_sample(number=2))
    assert [row["value"] for row in get_json(service, path(device), Identifier=text)["items"]] == [1]


@pytest.mark.rule("rest-83", "id-32")
def test_an_identifier_outside_the_catalogue_is_shown_and_found_as_it_was_spelled(
    service: RunningService,
) -> None:
    device, texts = service.new_device(), ["beef", "80ff", "000080ff", "ef", "00ef"]
    store_samples(
        service,
        device,
        *(build_sample(identifier=identifier_to_int(Identifier(each)), raw=b"x") for each in texts),
    )
    for text in texts:
        (row,) = get_json(service, path(device), Identifier=text)["items"]
        assert row == PLAIN | {"identifier": text, "name": None, "raw": "78"}
    sheet = service.viewer.get(path(device), headers={"Accept": "text/csv"}).text
    assert sorted(line.split(",")[2] for line in sheet.splitlines()[1:]) == sorted(texts)


@pytest.mark.rule("rest-83")
def test_an_identifier_and_its_name_find_the_same(service: RunningService) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(number=1), build_sample(identifier=0x8802, number=2))
    by_name = get_json(service, path(device), Identifier="temperature")
    assert [row["value"] for row in by_name["items"]] == [1]
    assert get_json(service, path(device), Identifier="8800") == by_name
    assert get_json(service, path(device), Identifier="nothing of this name")["items"] == []


@pytest.fixture(scope="module")
def busy(service: RunningService) -> str:
    """A device with samples of all kinds, several at a time, over three days; also of those for ourselves."""
    device = service.new_device()
    samples = [
        build_sample(AT + place // 5 * 180 * MINUTE, place, kind=kind, identifier=identifier, seq=place % 256)
        for place in range(120)
        for kind in SampleKind
        for identifier in (0x8800, 0x8802)
    ]
    store_samples(service, device, *samples[::2])
    store_samples(service, device, *samples)
    store_samples(service, service.new_device(), *samples[:7])
    return device


@pytest.fixture(scope="module")
def all_rows(service: RunningService, busy: str) -> list[dict[str, Any]]:
    """All that is listed of that device."""
    items: list[dict[str, Any]] = get_json(service, path(busy), MaxResults=1000)["items"]
    return items


def key(row: dict[str, Any]) -> tuple[Any, ...]:
    return row["time"], KINDS_BY_NAME[row["kind"]], int(row["identifier"], 16), row["seq"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-80", "rest-82", "rest-187")
def test_the_newest_come_first_each_once_and_none_of_other_kinds(service: RunningService, busy: str) -> None:
    rows = get_json(service, path(busy), MaxResults=1000)["items"]
    assert len(rows) == 120 * 2 * 4
    assert {row["kind"] for row in rows} == {"property", "measurement", "measurement-error", "event"}
    assert [key(row) for row in rows] == sorted({key(row) for row in rows}, reverse=True)


@pytest.mark.both_databases
@pytest.mark.rule("rest-80", "rest-16")
@each_row("limit", [37, 100, 959, 960, 961])
def test_the_pages_together_are_the_list(service: RunningService, busy: str, limit: int) -> None:
    whole = get_json(service, path(busy), MaxResults=1000)
    assert (len(whole["items"]), whole["nextToken"]) == (960, None)
    assert get_all_pages(service, path(busy), MaxResults=limit) == whole["items"]


@pytest.mark.both_databases
@pytest.mark.rule("rest-80", "rest-82", "rest-83")
@each_row("kinds", [["event"], ["property", "measurement-error"], list(KINDS_BY_NAME), None])
@each_row("identifier", [None, "8802"])
@each_row("bounds", [(None, None), (4, None), (None, 9), (4, 9), (4, 5)])
def test_filters_hold_together(  # noqa: PLR0913 # a product of three tables
    service: RunningService,
    busy: str,
    all_rows: list[dict[str, Any]],
    *,
    kinds: list[str] | None,
    identifier: str | None,
    bounds: tuple[int | None, int | None],
) -> None:
    first, end = (None if each is None else format_millis(AT + each * 180 * MINUTE) for each in bounds)
    asked: dict[str, Any] = {"Kind": kinds, "Identifier": identifier, "From": first, "To": end}
    found = get_all_pages(
        service, path(busy), MaxResults=97, **{name: each for name, each in asked.items() if each is not None}
    )
    assert found == [
        row
        for row in all_rows
        if row["kind"] in (kinds or KINDS_BY_NAME)
        and identifier in {None, row["identifier"]}
        and (first or "") <= row["time"] < (end or "9")
    ]
    assert found


@pytest.mark.rule("rest-80", "rest-187")
@each_row(
    "text",
    ["2023-11-14T22:14:20Z", "2023-11-15T00:14:20.0000+02:00", "20231114T221420", "2023-W46-2T22:14:20,0Z"],
)
def test_times_are_read_in_every_spelling_the_first_included_and_the_last_not(
    service: RunningService, text: str
) -> None:
    device = service.new_device()
    store_samples(service, device, *(build_sample(AT + MINUTE + each, each) for each in (-1, 0, 1)))
    assert [row["value"] for row in get_json(service, path(device), From=text)["items"]] == [1, 0]
    assert [row["value"] for row in get_json(service, path(device), To=text)["items"]] == [-1]


@pytest.mark.both_databases
@pytest.mark.rule("rest-80")
def test_all_times_that_can_be_written_are_there_to_ask_for(service: RunningService) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(AT, 1))
    bounds = {"From": "0001-01-01T00:00:00Z", "To": "9999-12-31T23:59:59.999Z"}
    assert len(get_json(service, path(device), **bounds)["items"]) == 1


@pytest.mark.both_databases
@pytest.mark.rule("rest-80", "rest-20")
def test_samples_that_arrive_meanwhile_make_none_appear_twice_or_go_missing(service: RunningService) -> None:
    device = service.new_device()
    at_first = {AT + 2 * place for place in range(40)}
    store_samples(service, device, *(build_sample(time, time) for time in at_first))
    page = get_json(service, path(device), MaxResults=7)
    seen = [row["value"] for row in page["items"]]
    for rounds in range(1, 7):
        late = min(seen) - 1
        arrived = [AT + 1000 + rounds, max(seen) - 3, late]
        store_samples(
            service, device, *(build_sample(time, time) for time in arrived), build_sample(min(at_first), 5)
        )
        page = get_json(service, path(device), MaxResults=7, NextToken=page["nextToken"])
        seen += [row["value"] for row in page["items"]]
        assert late in seen
    assert page["nextToken"] is None
    assert seen == sorted(set(seen), reverse=True)
    assert at_first <= set(seen)
    assert max(seen) == max(at_first)


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
def test_what_cannot_be_asked_for_is_refused_by_name(
    service: RunningService, query: dict[str, Any], fields: list[str]
) -> None:
    assert list_faults(service.viewer.get(path(service.new_device()), params=query)) == fields


@pytest.mark.rule("rest-15", "rest-80")
@each_row("device", ["bmac-0000000000ee", "bmac-0000000000EE", "0000000000ee", "x", "%00"])
@each_row("ending", ["samples", "series?Identifier=8800"])
def test_a_device_that_is_not_there_has_no_samples(service: RunningService, device: str, ending: str) -> None:
    answer = service.viewer.get(f"/api/v1/devices/{device}/{ending}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    csv = service.viewer.get(f"/api/v1/devices/{device}/{ending}", headers={"Accept": "text/csv"})
    assert (csv.status_code, csv.headers["Content-Type"]) == (404, "application/problem+json")


@pytest.mark.rule("rest-17", "rest-19", "rest-80")
def test_a_token_belongs_to_its_device_and_filters(service: RunningService, busy: str) -> None:
    query: dict[str, Any] = {
        "Kind": ["event", "property"],
        "Identifier": "8800",
        "From": format_millis(AT),
        "MaxResults": 2,
    }
    token = get_json(service, path(busy), **query)["nextToken"]
    same = {**query, "Kind": ["property", "event"], "Identifier": "temperature", "MaxResults": 5}
    assert len(get_json(service, path(busy), **same, NextToken=token)["items"]) == 5
    other = service.new_device()
    refused = [
        (other, query),
        (busy, {**query, "Kind": "event"}),
        (busy, {**query, "Identifier": "8802"}),
        (busy, {**query, "From": format_millis(AT + 1)}),
        (busy, {**query, "To": format_millis(AT + 1)}),
        (busy, {}),
    ]
    for device, asked in refused:
        answer = service.viewer.get(path(device), params={**asked, "NextToken": token})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid-token")
    assert (
        service.viewer.get("/api/v1/rejects", params={"NextToken": token}).json()["code"] == "invalid-token"
    )


@pytest.mark.rule("rest-80", "auth-4")
def test_nobody_sees_samples_without_a_token(service: RunningService, busy: str) -> None:
    for ending in ("samples", "series?Identifier=8800"):
        answer = service.anonymous.get(f"/api/v1/devices/{busy}/{ending}")
        assert (answer.status_code, "temperature" in answer.text) == (401, False)
    assert service.anonymous.get("/api/v1/rejects").status_code == 401
