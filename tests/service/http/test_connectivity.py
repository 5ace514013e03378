"""REST history of the connectivity of a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.tables import connectivity
from meshfleet.protocol.ids import mac_to_int, parse_device_id, to_mac
from meshfleet.protocol.times import format_millis
from meshfleet.service.presence import store
from meshfleet.service.presence.changes import PresenceCause, PresenceChange
from tests.row_tables import each_row

if TYPE_CHECKING:
    import httpx

    from tests.service.http.running_service import RunningService

GATEWAY = "02005e000001"
NOON = 1_700_049_600_000
"""2023-11-15T12:00:00.000Z"""


def _to_number(device: str) -> int:
    return mac_to_int(to_mac(parse_device_id(device)))


def _create_device(
    service: RunningService, *changes: tuple[bool, PresenceCause, int], gateway: int | None = None
) -> str:
    """Create a device with a history of changes: connected, cause, milliseconds after noon."""
    device = service.new_device()
    number = _to_number(device)
    gateway_id = mac_to_int(to_mac(parse_device_id(f"bmac-{GATEWAY}"))) if gateway is None else gateway
    history = [
        PresenceChange(number, connected, NOON + at, cause, gateway_id) for connected, cause, at in changes
    ]
    service.database.write_now(store.update_presence, history)
    return device


def _get_history(service: RunningService, device: str, **query: object) -> httpx.Response:
    return service.viewer.get(f"/api/v1/devices/{device}/connectivity", params=query)  # type: ignore[arg-type] # strings and numbers


def _load_pages(service: RunningService, device: str, size: int) -> list[list[dict[str, Any]]]:
    pages: list[list[dict[str, Any]]] = []
    query: dict[str, object] = {"MaxResults": size}
    for _ in range(20):
        response = _get_history(service, device, **query)
        assert response.status_code == 200, response.text
        page = response.json()
        assert set(page) == {"items", "nextToken"}
        pages.append(page["items"])
        if page["nextToken"] is None:
            return pages
        query["NextToken"] = page["nextToken"]
    raise AssertionError("too many pages")


@pytest.mark.rule("rest-189")
def test_changes_are_listed_the_newest_first_with_time_and_cause(service: RunningService) -> None:
    device = _create_device(
        service,
        (True, PresenceCause.HEARD, 0),
        (False, PresenceCause.SILENT, 1),
        (True, PresenceCause.GATEWAY, 60_000),
        (False, PresenceCause.CONNECTION, 61_234),
    )
    response = _get_history(service, device)
    assert response.status_code == 200
    assert response.json() == {
        "items": [
            {
                "time": "2023-11-15T12:01:01.234Z",
                "connected": False,
                "cause": "connection",
                "gateway": GATEWAY,
            },
            {"time": "2023-11-15T12:01:00.000Z", "connected": True, "cause": "gateway", "gateway": GATEWAY},
            {"time": "2023-11-15T12:00:00.001Z", "connected": False, "cause": "silent", "gateway": GATEWAY},
            {"time": "2023-11-15T12:00:00.000Z", "connected": True, "cause": "heard", "gateway": GATEWAY},
        ],
        "nextToken": None,
    }
    assert [list(each) for each in response.json()["items"]] == [
        ["time", "connected", "cause", "gateway"]
    ] * 4


@pytest.mark.rule("rest-53", "rest-189")
def test_the_newest_change_matches_the_device(service: RunningService) -> None:
    device = _create_device(service, (True, PresenceCause.HEARD, 5))
    device_detail = service.viewer.get(f"/api/v1/devices/{device}").json()
    (newest,) = _get_history(service, device).json()["items"]
    assert device_detail["connectivity"] == {"connected": newest["connected"], "timestamp": newest["time"]}
    assert newest["time"] == format_millis(NOON + 5)


@pytest.mark.rule("rest-189")
def test_a_change_without_a_known_gateway_has_none(service: RunningService) -> None:
    device = _create_device(service, (True, PresenceCause.HEARD, 0), gateway=0)
    assert _get_history(service, device).json()["items"][0]["gateway"] is None


@pytest.mark.rule("rest-189")
def test_a_device_without_reports_has_no_history(service: RunningService) -> None:
    assert _get_history(service, service.new_device()).json() == {"items": [], "nextToken": None}


@pytest.mark.rule("rest-189")
@each_row("size", [1, 2, 3, 6, 7, 1000])
def test_pages_together_are_the_whole_history(service: RunningService, size: int) -> None:
    device = _create_device(service, *((index % 2 == 0, PresenceCause.HEARD, index) for index in range(6)))
    other = _create_device(service, (True, PresenceCause.HEARD, 3))
    pages = _load_pages(service, device, size)
    times = [each["time"] for page in pages for each in page]
    assert times == [format_millis(NOON + index) for index in reversed(range(6))]
    assert [len(page) for page in pages] == [min(size, 6 - start) for start in range(0, 6, size)]
    assert len(_load_pages(service, other, size)[0]) == 1


def test_a_change_during_paging_repeats_no_row(service: RunningService) -> None:
    device = _create_device(service, *((index % 2 == 0, PresenceCause.HEARD, index) for index in range(4)))
    first = _get_history(service, device, MaxResults=2).json()
    service.database.write_now(
        store.update_presence,
        [PresenceChange.to_connected(_to_number(device), NOON + 9, PresenceCause.HEARD, 1)],
    )
    second = _get_history(service, device, MaxResults=2, NextToken=first["nextToken"]).json()
    assert [each["time"] for each in first["items"] + second["items"]] == [
        format_millis(NOON + index) for index in (3, 2, 1, 0)
    ]
    assert second["nextToken"] is None


def test_a_page_token_is_valid_for_one_device_only(service: RunningService) -> None:
    device, other = (
        _create_device(service, (True, PresenceCause.HEARD, 0), (False, PresenceCause.SILENT, 1))
        for _ in range(2)
    )
    token = _get_history(service, device, MaxResults=1).json()["nextToken"]
    response = _get_history(service, other, MaxResults=1, NextToken=token)
    assert (response.status_code, response.json()["code"]) == (400, "invalid-token")
    assert _get_history(service, device, MaxResults=1, NextToken=token + "A").status_code == 400


@pytest.mark.rule("rest-189")
def test_every_role_may_read_the_history_but_anonymous_clients_may_not(service: RunningService) -> None:
    path = f"/api/v1/devices/{_create_device(service, (True, PresenceCause.HEARD, 0))}/connectivity"
    for client in (service.viewer, service.operator, service.admin):
        assert client.get(path).status_code == 200
    response = service.anonymous.get(path)
    assert (response.status_code, response.headers["WWW-Authenticate"].split()[0]) == (401, "Bearer")
    assert service.viewer.post(path, json={}).status_code == 405


@pytest.mark.rule("rest-189")
@each_row("device", ["bmac-0123456789ab", "bmac-0", "0123456789ab", "unknown", "bmac-%2E%2E"])
def test_the_history_of_an_unknown_device_is_not_found(service: RunningService, device: str) -> None:
    response = _get_history(service, device)
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


@pytest.mark.rule("rest-189")
@each_row(
    "query",
    [{"Unknown": "1"}, {"MaxResults": "0"}, {"MaxResults": "1001"}, {"MaxResults": "x"}, {"NextToken": "x"}],
)
def test_an_unknown_or_invalid_parameter_is_refused(service: RunningService, query: dict[str, str]) -> None:
    device = _create_device(service, (True, PresenceCause.HEARD, 0))
    response = _get_history(service, device, **query)
    assert response.status_code == 400
    assert response.headers["Content-Type"].startswith("application/problem+json")


def test_the_history_of_a_deleted_device_is_kept(service: RunningService) -> None:
    device = _create_device(service, (True, PresenceCause.HEARD, 0))
    assert service.admin.delete(f"/api/v1/devices/{device}").status_code in {200, 204}
    assert len(_get_history(service, device).json()["items"]) == 1


@pytest.mark.rule("rest-189")
def test_expired_history_is_deleted_a_thousand_rows_at_a_time(service: RunningService) -> None:
    device = service.new_device()
    rows = [
        {"device": _to_number(device), "time": index, "connected": True, "cause": "heard", "gateway": None}
        for index in range(1100)
    ]
    service.database.write_now(lambda connection: connection.execute(connectivity.insert(), rows))
    for oldest in (1000, 1050, 1050):
        service.database.write_now(store.delete_connection_history, 1050)
        found = _get_history(service, device, MaxResults=1000).json()["items"]
        assert (len(found), found[-1]["time"]) == (1100 - oldest, format_millis(oldest))
