"""`GET /api/v1/devices/{id}/holes`, and up to when a series is complete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.service.backfill import store as ledger
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
Holes = dict[tuple[int, int], list[tuple[int, int, int, int | None]]]


def keep(
    service: RunningService, device: str, holes: Holes, *, newest: int = AT + 99 * MINUTE, unfilled: int = 0
) -> None:
    """Let the series of a device have these holes."""
    number = int(device.removeprefix("bmac-"), 16)
    rows = [(number, kind, identifier, newest, 7, unfilled) for kind, identifier in holes]
    found = {(number, kind, identifier): each for (kind, identifier), each in holes.items()}
    service.database.write_now(ledger.upsert_series, rows, found)


def path(device: str) -> str:
    return f"/api/v1/devices/{device}/holes"


def hole(place: int, *, lost_at: int | None = None) -> tuple[int, int, int, int | None]:
    """A hole behind a sample."""
    return AT + place * MINUTE, AT + (place + 2) * MINUTE, AT + (place + 3) * MINUTE, lost_at


def complete(service: RunningService, device: str, identifier: str = "8800") -> Any:
    answer = get_json(
        service, f"/api/v1/devices/{device}/series", Identifier=identifier, From="2023-11-14T00:00:00.000Z"
    )
    return answer["completeUpTo"]


@pytest.mark.rule("rest-190", "ack-15")
def test_holes_are_listed_with_what_is_known_of_each(service: RunningService) -> None:
    device = service.new_device()
    keep(service, device, {(MEASUREMENT, 0x8800): [hole(0), hole(5, lost_at=AT + 77 * MINUTE)]})
    answer = service.viewer.get(path(device))
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/json")
    first, second = answer.json()["items"]
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
    assert answer.json()["nextToken"] is None


@pytest.mark.rule("rest-190")
def test_holes_have_the_names_that_gateways_gave_and_numbers_without_a_name(service: RunningService) -> None:
    device, odd = service.new_device(), learn_name(service, "deep-hole")
    keep(service, device, {(EVENT, odd): [hole(0)], (EVENT, 0xF00D): [hole(1)]})
    shown = [
        (each["kind"], each["identifier"], each["name"]) for each in get_all_pages(service, path(device))
    ]
    assert sorted(shown, key=str) == [("event", "f00d", None), ("event", None, "deep-hole")]


@pytest.mark.rule("rest-190", "rest-16")
@each_row("size", [1, 2, 7, 1000])
def test_pages_give_each_hole_once_in_the_order_of_kind_identifier_and_time(
    service: RunningService, size: int
) -> None:
    device, other = service.new_device(), service.new_device()
    keys = [(MEASUREMENT, -5), (MEASUREMENT, 0x8800), (MEASUREMENT, 0x8801), (EVENT, -5), (EVENT, 0x8810)]
    keep(service, device, {key: [hole(each) for each in (4, 0, 2)] for key in keys})
    keep(service, other, {(MEASUREMENT, 0x8800): [hole(1)]})
    found = get_all_pages(service, path(device), MaxResults=size)
    assert len(found) == 15
    by_series = [found[each : each + 3] for each in range(0, 15, 3)]
    assert [[each["since"][14:16] for each in series] for series in by_series] == [["13", "15", "17"]] * 5
    assert [(each[0]["kind"], each[0]["identifier"]) for each in by_series] == [
        ("measurement", None),
        ("measurement", "8800"),
        ("measurement", "8801"),
        ("event", None),
        ("event", "8810"),
    ]


@pytest.mark.rule("rest-17")
def test_a_token_of_another_device_or_list_is_refused(service: RunningService) -> None:
    device, other = service.new_device(), service.new_device()
    keep(service, device, {(MEASUREMENT, 0x8800): [hole(0), hole(4)]})
    token = get_json(service, path(device), MaxResults=1)["nextToken"]
    assert isinstance(token, str)
    assert get_json(service, path(device), NextToken=token)["items"][0]["since"] == "2023-11-14T22:17:20.000Z"
    for where in (path(other), f"/api/v1/devices/{device}/samples"):
        answer = service.viewer.get(where, params={"NextToken": token})
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid-token")
    assert service.viewer.get(path(device), params={"NextToken": token[:-1]}).status_code == 400


def test_unknown_parameters_and_wrong_sizes_are_refused(service: RunningService) -> None:
    device = service.new_device()
    assert list_faults(service.viewer.get(path(device), params={"Kind": "event"})) == ["Kind"]
    for size in ("0", "1001", "x"):
        assert list_faults(service.viewer.get(path(device), params={"MaxResults": size})) == ["MaxResults"]


def test_a_device_without_holes_has_an_empty_list_and_an_unknown_one_is_not_found(
    service: RunningService,
) -> None:
    device = service.new_device()
    assert get_json(service, path(device)) == {"items": [], "nextToken": None}
    for unknown in ("bmac-0123456789ab", "bmac-xyz", "0123456789", "bmac-"):
        answer = service.viewer.get(path(unknown))
        assert (answer.status_code, answer.headers["Content-Type"]) == (404, "application/problem+json")


def test_whoever_may_look_may_look_and_nobody_else(service: RunningService) -> None:
    device = service.new_device()
    for client in (service.viewer, service.operator, service.admin):
        assert client.get(path(device)).status_code == 200
        assert client.post(path(device), json={}).status_code == 405
        assert client.delete(path(device)).status_code == 405
    assert service.anonymous.get(path(device)).status_code == 401


# --- completeUpTo ---


@pytest.mark.rule("ack-15")
def test_a_series_says_up_to_when_it_is_complete(service: RunningService) -> None:
    device = service.new_device()
    store_samples(service, device, build_sample(AT, 21.5, seq=7))
    assert complete(service, device) is None
    keep(service, device, {(MEASUREMENT, 0x8800): []})
    assert complete(service, device) == complete(service, device, "temperature") == "2023-11-14T23:52:20.000Z"
    keep(service, device, {(MEASUREMENT, 0x8800): [hole(6), hole(3, lost_at=AT)]})
    assert complete(service, device) == "2023-11-14T22:16:20.000Z"
    assert complete(service, device, "8801") is None


@pytest.mark.rule("ack-16")
def test_a_series_that_is_not_gap_checked_does_not_say_up_to_when_it_is_complete(
    service: RunningService,
) -> None:
    device = service.new_device()
    keep(service, device, {(MEASUREMENT, 0x8800): [hole(0)]}, unfilled=2)
    assert complete(service, device) == "2023-11-14T22:13:20.000Z"
    keep(service, device, {(MEASUREMENT, 0x8800): [hole(0)]}, unfilled=3)
    assert complete(service, device) is None


@pytest.mark.rule("rest-85", "ack-16")
def test_a_series_says_whether_it_is_gap_checked(service: RunningService) -> None:
    device = service.new_device()

    def checked() -> Any:
        where = f"/api/v1/devices/{device}/series"
        return get_json(service, where, Identifier="8800", From="2023-11-14T00:00:00.000Z")["gapChecked"]

    assert checked() is None
    keep(service, device, {(MEASUREMENT, 0x8800): [hole(0)]})
    assert checked() is True
    keep(service, device, {(EVENT, 0x8800): [hole(0)]}, unfilled=3)
    assert checked() is False


@pytest.mark.rule("ack-15")
def test_no_series_is_complete_beyond_now_or_held_up_by_a_kind_without_holes(service: RunningService) -> None:
    device, newest = service.new_device(), AT + 99 * MINUTE
    keep(service, device, {(EVENT, 0x8800): []}, newest=AT)
    keep(service, device, {(MEASUREMENT, 0x8800): []}, newest=newest)
    assert complete(service, device) == "2023-11-14T23:52:20.000Z"
    keep(service, device, {(MEASUREMENT, 0x8800): []}, newest=newest + 10**14)
    assert complete(service, device) < "2999"


@pytest.mark.rule("ack-15")
def test_a_name_that_the_catalogue_does_not_know_has_a_series_too(service: RunningService) -> None:
    device, odd = service.new_device(), learn_name(service, "deeper-hole")
    keep(service, device, {(EVENT, odd): [hole(2)]})
    assert complete(service, device, "deeper-hole") == "2023-11-14T22:15:20.000Z"
