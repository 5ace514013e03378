"""When a device was connected, as it is told over HTTP."""

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


def _number(device: str) -> int:
    return mac_to_int(to_mac(parse_device_id(device)))


def _device(
    service: RunningService, *changes: tuple[bool, PresenceCause, int], gateway: int | None = None
) -> str:
    """A device with a history: whether, why, and how many milliseconds after noon."""
    device = service.new_device()
    number = _number(device)
    brought = mac_to_int(to_mac(parse_device_id(f"bmac-{GATEWAY}"))) if gateway is None else gateway
    made = [PresenceChange(number, connected, NOON + at, cause, brought) for connected, cause, at in changes]
    service.database.write_now(store.update_presence, made)
    return device


def _get(service: RunningService, device: str, **query: object) -> httpx.Response:
    return service.viewer.get(f"/api/v1/devices/{device}/connectivity", params=query)  # type: ignore[arg-type] # texts and numbers


def _pages(service: RunningService, device: str, size: int) -> list[list[dict[str, Any]]]:
    pages: list[list[dict[str, Any]]] = []
    query: dict[str, object] = {"MaxResults": size}
    for _ in range(20):
        answer = _get(service, device, **query)
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert set(page) == {"items", "nextToken"}
        pages.append(page["items"])
        if page["nextToken"] is None:
            return pages
        query["NextToken"] = page["nextToken"]
    raise AssertionError("there is no end")


@pytest.mark.rule("rest-189")
def test_changes_are_listed_the_newest_first_with_time_and_cause(service: RunningService) -> None:
    device = _device(
        service,
        (True, PresenceCause.HEARD, 0),
        (False, PresenceCause.SILENT, 1),
        (True, PresenceCause.GATEWAY, 60_000),
        (False, PresenceCause.CONNECTION, 61_234),
    )
    answer = _get(service, device)
    assert answer.status_code == 200
    assert answer.json() == {
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
    assert [list(each) for each in answer.json()["items"]] == [["time", "connected", "cause", "gateway"]] * 4


@pytest.mark.rule("rest-53", "rest-189")
def test_the_newest_is_what_the_device_itself_says(service: RunningService) -> None:
    device = _device(service, (True, PresenceCause.HEARD, 5))
    shown = service.viewer.get(f"/api/v1/devices/{device}").json()
    (newest,) = _get(service, device).json()["items"]
    assert shown["connectivity"] == {"connected": newest["connected"], "timestamp": newest["time"]}
    assert newest["time"] == format_millis(NOON + 5)


@pytest.mark.rule("rest-189")
def test_of_whom_no_gateway_is_known_none_is_told(service: RunningService) -> None:
    device = _device(service, (True, PresenceCause.HEARD, 0), gateway=0)
    assert _get(service, device).json()["items"][0]["gateway"] is None


@pytest.mark.rule("rest-189")
def test_a_device_that_was_never_heard_has_no_history(service: RunningService) -> None:
    assert _get(service, service.new_device()).json() == {"items": [], "nextToken": None}


@pytest.mark.rule("rest-189")
@each_row("size", [1, 2, 3, 6, 7, 1000])
def test_pages_follow_each_other_without_a_gap(service: RunningService, size: int) -> None:
    device = _device(service, *((place % 2 == 0, PresenceCause.HEARD, place) for place in range(6)))
    other = _device(service, (True, PresenceCause.HEARD, 3))
    pages = _pages(service, device, size)
    times = [each["time"] for page in pages for each in page]
    assert times == [format_millis(NOON + place) for place in reversed(range(6))]
    assert [len(page) for page in pages] == [min(size, 6 - start) for start in range(0, 6, size)]
    assert len(_pages(service, other, size)[0]) == 1


def test_what_happens_meanwhile_makes_no_row_appear_twice(service: RunningService) -> None:
    device = _device(service, *((place % 2 == 0, PresenceCause.HEARD, place) for place in range(4)))
    first = _get(service, device, MaxResults=2).json()
    service.database.write_now(
        store.update_presence,
        [PresenceChange.to_connected(_number(device), NOON + 9, PresenceCause.HEARD, 1)],
    )
    second = _get(service, device, MaxResults=2, NextToken=first["nextToken"]).json()
    assert [each["time"] for each in first["items"] + second["items"]] == [
        format_millis(NOON + place) for place in (3, 2, 1, 0)
    ]
    assert second["nextToken"] is None


def test_a_token_belongs_to_one_device(service: RunningService) -> None:
    mine, yours = (
        _device(service, (True, PresenceCause.HEARD, 0), (False, PresenceCause.SILENT, 1)) for _ in range(2)
    )
    token = _get(service, mine, MaxResults=1).json()["nextToken"]
    answer = _get(service, yours, MaxResults=1, NextToken=token)
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid-token")
    assert _get(service, mine, MaxResults=1, NextToken=token + "A").status_code == 400


@pytest.mark.rule("rest-189")
def test_every_role_may_look_and_nobody_else(service: RunningService) -> None:
    path = f"/api/v1/devices/{_device(service, (True, PresenceCause.HEARD, 0))}/connectivity"
    for client in (service.viewer, service.operator, service.admin):
        assert client.get(path).status_code == 200
    answer = service.anonymous.get(path)
    assert (answer.status_code, answer.headers["WWW-Authenticate"].split()[0]) == (401, "Bearer")
    assert service.viewer.post(path, json={}).status_code == 405


@pytest.mark.rule("rest-189")
@each_row("device", ["bmac-0123456789ab", "bmac-0", "0123456789ab", "nobody", "bmac-%2E%2E"])
def test_there_is_no_history_of_nobody(service: RunningService, device: str) -> None:
    answer = _get(service, device)
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


@pytest.mark.rule("rest-189")
@each_row(
    "query",
    [{"Unknown": "1"}, {"MaxResults": "0"}, {"MaxResults": "1001"}, {"MaxResults": "x"}, {"NextToken": "x"}],
)
def test_a_parameter_that_is_unknown_or_wrong_is_refused(
    service: RunningService, query: dict[str, str]
) -> None:
    device = _device(service, (True, PresenceCause.HEARD, 0))
    answer = _get(service, device, **query)
    assert answer.status_code == 400
    assert answer.headers["Content-Type"].startswith("application/problem+json")


def test_the_history_of_a_forgotten_device_stays(service: RunningService) -> None:
    device = _device(service, (True, PresenceCause.HEARD, 0))
    assert service.admin.delete(f"/api/v1/devices/{device}").status_code in {200, 204}
    assert len(_get(service, device).json()["items"]) == 1


@pytest.mark.rule("rest-189")
def test_what_is_older_than_is_wanted_is_forgotten_a_thousand_at_a_time(service: RunningService) -> None:
    device = service.new_device()
    rows = [
        {"device": _number(device), "time": place, "connected": True, "cause": "heard", "gateway": None}
        for place in range(1100)
    ]
    service.database.write_now(lambda connection: connection.execute(connectivity.insert(), rows))
    for oldest in (1000, 1050, 1050):
        service.database.write_now(store.delete_history, 1050)
        found = _get(service, device, MaxResults=1000).json()["items"]
        assert (len(found), found[-1]["time"]) == (1100 - oldest, format_millis(oldest))
