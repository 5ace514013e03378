"""`GET /api/v1/devices/{id}/holes`, and `completeUpTo` of a series."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.service.backfill import store as series_store
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

FIELDS = ["kind", "identifier", "name", "since", "until", "foundAt", "lostAt"]
MEASUREMENT, EVENT = SampleKind.MEASUREMENT, SampleKind.EVENT
Gaps = dict[tuple[int, int], list[tuple[int, int, int, int | None]]]


def store_gaps(
    service: RunningService, device: str, gaps: Gaps, *, newest: int = AT + 99 * MINUTE, unfilled: int = 0
) -> None:
    """Store gaps of the series of a device."""
    number = int(device.removeprefix("bmac-"), 16)
    rows = [(number, kind, identifier, newest, 7, unfilled) for kind, identifier in gaps]
    gaps_by_key = {
        (number, kind, identifier): [series_store.GapRow(*row) for row in rows_of_series]
        for (kind, identifier), rows_of_series in gaps.items()
    }
    service.database.write_now(series_store.upsert_series, rows, gaps_by_key)


def gaps_path(device: str) -> str:
    return f"/api/v1/devices/{device}/holes"


def build_gap(index: int, *, lost_at: int | None = None) -> tuple[int, int, int, int | None]:
    """Build a gap after a sample."""
    return AT + index * MINUTE, AT + (index + 2) * MINUTE, AT + (index + 3) * MINUTE, lost_at


def get_complete_up_to(service: RunningService, device: str, identifier: str = "8800") -> Any:
    response = get_json(
        service, f"/api/v1/devices/{device}/series", Identifier=identifier, From="2023-11-14T00:00:00.000Z"
    )
    return response["completeUpTo"]


@pytest.mark.rule("rest-190", "ack-15")
def test_gaps_are_listed_with_all_fields(service: RunningService) -> None:
    device = service.new_device()
    store_gaps(
        service, device, {(MEASUREMENT, 0x8800): [build_gap(0), build_gap(5, lost_at=AT + 77 * MINUTE)]}
    )
    response = service.viewer.get(gaps_path(device))
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    first, second = response.json()["items"]
    assert list(first) == FIELDS
    assert first == {
        "kind": "measurement",
        "identifier": "8800",
        "name": "temperature",
        "since": "2023-11-14T22:13:20.000Z",
        "until": "2023-11-14T22:15:20.000Z",
        "foundAt": "2023-11-14T22:16:20.000Z",
        "lostAt": None,
    }
    assert second["lostAt"] == "2023-11-14T23:30:20.000Z"
    assert response.json()["nextToken"] is None


@pytest.mark.rule("rest-190")
def test_gaps_have_names_outside_the_catalogue_and_identifiers_without_a_name(
    service: RunningService,
) -> None:
    device, foreign = service.new_device(), learn_name(service, "deep-hole")
    store_gaps(service, device, {(EVENT, foreign): [build_gap(0)], (EVENT, 0xF00D): [build_gap(1)]})
    identifiers = [
        (item["kind"], item["identifier"], item["name"]) for item in get_all_pages(service, gaps_path(device))
    ]
    assert sorted(identifiers, key=str) == [("event", "f00d", None), ("event", None, "deep-hole")]


@pytest.mark.rule("rest-190", "rest-16")
@each_row("size", [1, 2, 7, 1000])
def test_pages_return_each_gap_once_ordered_by_kind_identifier_and_time(
    service: RunningService, size: int
) -> None:
    device, other = service.new_device(), service.new_device()
    keys = [(MEASUREMENT, -5), (MEASUREMENT, 0x8800), (MEASUREMENT, 0x8801), (EVENT, -5), (EVENT, 0x8810)]
    store_gaps(service, device, {key: [build_gap(index) for index in (4, 0, 2)] for key in keys})
    store_gaps(service, other, {(MEASUREMENT, 0x8800): [build_gap(1)]})
    items = get_all_pages(service, gaps_path(device), MaxResults=size)
    assert len(items) == 15
    by_series = [items[start : start + 3] for start in range(0, 15, 3)]
    assert [[item["since"][14:16] for item in series] for series in by_series] == [["13", "15", "17"]] * 5
    assert [(series[0]["kind"], series[0]["identifier"]) for series in by_series] == [
        ("measurement", None),
        ("measurement", "8800"),
        ("measurement", "8801"),
        ("event", None),
        ("event", "8810"),
    ]


@pytest.mark.rule("rest-17")
def test_a_page_token_of_another_device_or_list_is_refused(service: RunningService) -> None:
    device, other = service.new_device(), service.new_device()
    store_gaps(service, device, {(MEASUREMENT, 0x8800): [build_gap(0), build_gap(4)]})
    token = get_json(service, gaps_path(device), MaxResults=1)["nextToken"]
    assert isinstance(token, str)
    assert (
        get_json(service, gaps_path(device), NextToken=token)["items"][0]["since"]
        == "2023-11-14T22:17:20.000Z"
    )
    for other_path in (gaps_path(other), f"/api/v1/devices/{device}/samples"):
        response = service.viewer.get(other_path, params={"NextToken": token})
        assert (response.status_code, response.json()["code"]) == (400, "invalid-token")
    assert service.viewer.get(gaps_path(device), params={"NextToken": token[:-1]}).status_code == 400


def test_unknown_parameters_and_wrong_sizes_are_refused(service: RunningService) -> None:
    device = service.new_device()
    assert list_faults(service.viewer.get(gaps_path(device), params={"Kind": "event"})) == ["Kind"]
    for size in ("0", "1001", "x"):
        assert list_faults(service.viewer.get(gaps_path(device), params={"MaxResults": size})) == [
            "MaxResults"
        ]


def test_a_device_without_gaps_has_an_empty_list_and_an_unknown_one_is_not_found(
    service: RunningService,
) -> None:
    device = service.new_device()
    assert get_json(service, gaps_path(device)) == {"items": [], "nextToken": None}
    for unknown in ("bmac-0123456789ab", "bmac-xyz", "0123456789", "bmac-"):
        response = service.viewer.get(gaps_path(unknown))
        assert (response.status_code, response.headers["Content-Type"]) == (404, "application/problem+json")


def test_every_role_can_read_gaps_and_anonymous_clients_cannot(service: RunningService) -> None:
    device = service.new_device()
    for client in (service.viewer, service.operator, service.admin):
        assert client.get(gaps_path(device)).status_code == 200
        assert client.post(gaps_path(device), json={}).status_code == 405
        assert client.delete(gaps_path(device)).status_code == 405
    assert service.anonymous.get(gaps_path(device)).status_code == 401


# --- completeUpTo ---


@pytest.mark.rule("ack-15")
def test_a_series_has_the_time_up_to_which_it_is_complete(service: RunningService) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(AT, 21.5, seq=7))
    assert get_complete_up_to(service, device) is None
    store_gaps(service, device, {(MEASUREMENT, 0x8800): []})
    expected = "2023-11-14T23:52:20.000Z"
    assert get_complete_up_to(service, device) == expected
    assert get_complete_up_to(service, device, "temperature") == expected
    store_gaps(service, device, {(MEASUREMENT, 0x8800): [build_gap(6), build_gap(3, lost_at=AT)]})
    assert get_complete_up_to(service, device) == "2023-11-14T22:16:20.000Z"
    assert get_complete_up_to(service, device, "8801") is None


@pytest.mark.rule("ack-16")
def test_complete_up_to_is_null_for_a_series_without_gap_checks(
    service: RunningService,
) -> None:
    device = service.new_device()
    store_gaps(service, device, {(MEASUREMENT, 0x8800): [build_gap(0)]}, unfilled=2)
    assert get_complete_up_to(service, device) == "2023-11-14T22:13:20.000Z"
    store_gaps(service, device, {(MEASUREMENT, 0x8800): [build_gap(0)]}, unfilled=3)
    assert get_complete_up_to(service, device) is None


@pytest.mark.rule("rest-85", "ack-16")
def test_a_series_shows_whether_it_is_gap_checked(service: RunningService) -> None:
    device = service.new_device()

    def get_gap_checked() -> Any:
        series_path = f"/api/v1/devices/{device}/series"
        return get_json(service, series_path, Identifier="8800", From="2023-11-14T00:00:00.000Z")[
            "gapChecked"
        ]

    assert get_gap_checked() is None
    store_gaps(service, device, {(MEASUREMENT, 0x8800): [build_gap(0)]})
    assert get_gap_checked() is True
    store_gaps(service, device, {(EVENT, 0x8800): [build_gap(0)]}, unfilled=3)
    assert get_gap_checked() is False


@pytest.mark.rule("ack-15")
def test_complete_up_to_is_not_in_the_future_and_ignores_kinds_without_gaps(service: RunningService) -> None:
    device, newest = service.new_device(), AT + 99 * MINUTE
    store_gaps(service, device, {(EVENT, 0x8800): []}, newest=AT)
    store_gaps(service, device, {(MEASUREMENT, 0x8800): []}, newest=newest)
    assert get_complete_up_to(service, device) == "2023-11-14T23:52:20.000Z"
    store_gaps(service, device, {(MEASUREMENT, 0x8800): []}, newest=newest + 10**14)
    assert get_complete_up_to(service, device) < "2999"


@pytest.mark.rule("ack-15")
def test_a_name_outside_the_catalogue_has_a_series(service: RunningService) -> None:
    device, foreign = service.new_device(), learn_name(service, "deeper-hole")
    store_gaps(service, device, {(EVENT, foreign): [build_gap(2)]})
    assert get_complete_up_to(service, device, "deeper-hole") == "2023-11-14T22:15:20.000Z"
