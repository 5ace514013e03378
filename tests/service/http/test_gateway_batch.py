"""Claims of many gateways in one request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.row_tables import each_row

if TYPE_CHECKING:
    import httpx

    from meshfleet.protocol.ids import Mac
    from tests.service.http.running_service import RunningService

pytestmark = pytest.mark.both_databases

PATH = "/api/v1/gateways/batch"


def _claim(service: RunningService, *gateways: Any, key: str | None = None) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return service.admin.post(PATH, json={"gateways": gateways}, headers=headers)


def _new_macs(service: RunningService, count: int) -> list[Mac]:
    return [service.new_mac() for _ in range(count)]


def _list_audit(service: RunningService, target: str) -> list[tuple[str, dict[str, Any]]]:
    rows = service.admin.get("/api/v1/audit", params={"Target": target}).json()["items"]
    return [(row["action"], row["detail"]) for row in reversed(rows)]


def _is_claimed(service: RunningService, mac: Mac) -> bool:
    return service.viewer.get(f"/api/v1/gateways/{mac}").status_code == 200


@pytest.mark.rule("rest-8", "rest-226", "rest-228")
def test_many_gateways_are_claimed_named_and_labeled(service: RunningService) -> None:
    first, second, third = _new_macs(service, 3)
    response = _claim(
        service,
        {"mac": third, "friendlyName": " Lobby ", "labels": ["Home", "2nd floor", "Home"]},
        {"mac": f"BMAC-{first.upper()}", "labels": ["Home"]},
        {"mac": second},
    )
    assert response.status_code == 201, response.text
    items = response.json()["items"]
    assert [each["mac"] for each in items] == [third, first, second]
    single = service.admin.post("/api/v1/gateways", json={"mac": service.new_mac()}).json()
    assert {tuple(each) for each in items} == {tuple(single)}
    assert {str(each["broker"]) for each in items} == {str(single["broker"])}
    assert len({each["password"] for each in items}) == 3
    shown = [service.viewer.get(f"/api/v1/devices/bmac-{mac}").json() for mac in (third, first, second)]
    assert shown[0]["friendlyName"] == "Lobby"
    assert [sorted(each["labels"]) for each in shown] == [["2nd floor", "Home"], ["Home"], []]
    detail = dict(_list_audit(service, f"bmac-{third}"))["gateway.claim"]
    assert detail["after"] == "Lobby"
    for mac, expected in (
        (third, ["device.label", "device.label", "gateway.claim"]),
        (first, ["device.label", "gateway.claim"]),
        (second, ["gateway.claim"]),
    ):
        assert [action for action, _ in _list_audit(service, f"bmac-{mac}")] == expected
    assert "password" not in service.admin.get("/api/v1/audit", params={"MaxResults": 1000}).text


@pytest.mark.rule("rest-226", "rest-228")
def test_every_gateway_may_have_labels_of_its_own(service: RunningService) -> None:
    macs = _new_macs(service, 200)
    bodies = [{"mac": mac, "labels": [f"{mac} {number}" for number in range(20)]} for mac in macs]
    assert _claim(service, *bodies).status_code == 201
    for each in (bodies[0], bodies[-1]):
        shown = service.viewer.get(f"/api/v1/devices/bmac-{each['mac']}").json()
        assert sorted(shown["labels"]) == sorted(each["labels"])
        assert len(_list_audit(service, f"bmac-{each['mac']}")) == 21
        assert _list_audit(service, each["labels"][0]) == [("label.create", {})]


@pytest.mark.rule("rest-226")
def test_all_mistakes_are_reported_and_nothing_is_claimed(service: RunningService) -> None:
    good = service.new_mac()
    response = _claim(
        service,
        {"mac": good},
        {"mac": "c0ffee"},
        {"mac": "ffffffffffff"},
        {"mac": service.new_mac(), "friendlyName": "n" * 129},
        {"mac": service.new_mac(), "labels": ["good", ""]},
        {"mac": good.upper()},
        {"mac": service.new_mac(), "labels": ["x"] * 21},
    )
    assert (response.status_code, response.json()["code"]) == (400, "invalid-request")
    assert [each["field"] for each in response.json()["errors"]] == [
        *("gateways[1].mac", "gateways[2].mac", "gateways[3].friendlyName"),
        *("gateways[4].labels[1]", "gateways[5].mac", "gateways[6].labels"),
    ]
    assert "is also in gateways[0]" in response.text
    assert not _is_claimed(service, good)


@pytest.mark.rule("rest-226")
@each_row(
    ("body", "field"),
    [
        ({}, "gateways"),
        ({"gateways": []}, "gateways"),
        ({"gateways": [{"mac": "020000000000"}] * 1001}, "gateways"),
        ({"gateways": [{"name": "x"}]}, "gateways[0].name"),
        ({"gateways": [], "dryRun": True}, "dryRun"),
        ([], "body"),
    ],
)
def test_an_invalid_batch_is_refused(service: RunningService, body: Any, field: str) -> None:
    response = service.admin.post(PATH, json=body)
    assert response.status_code == 400, response.text
    assert [each["field"] for each in response.json()["errors"]] == [field]


@pytest.mark.rule("rest-226", "rest-72")
def test_one_claimed_gateway_refuses_the_whole_batch(service: RunningService) -> None:
    macs = _new_macs(service, 7)
    for mac in macs[:6]:
        service.admin.post("/api/v1/gateways", json={"mac": mac})
    response = _claim(service, *({"mac": mac, "labels": ["never attached"]} for mac in macs))
    assert (response.status_code, response.json()["code"]) == (409, "already-exists")
    assert "and 1 others are already claimed" in response.json()["detail"]
    assert not _is_claimed(service, macs[6])
    assert "never attached" not in service.viewer.get("/api/v1/labels").text


@pytest.mark.rule("rest-227", "rest-228")
def test_a_repeated_request_shows_no_passwords(service: RunningService) -> None:
    mac, other = _new_macs(service, 2)
    key = f"key-of-{mac}"
    claimed = _claim(service, {"mac": mac}, key=key).json()["items"][0]
    again = _claim(service, {"mac": mac, "friendlyName": None, "labels": []}, key=key)
    assert (again.status_code, again.json()["code"]) == (409, "already-exists")
    assert "claimed these 1 gateways" in again.json()["detail"]
    assert "create new ones" in again.json()["detail"]
    assert claimed["password"] not in again.text
    different = _claim(service, {"mac": other}, key=key)
    assert (different.status_code, different.json()["code"]) == (409, "idempotency-key-reused")
    assert not _is_claimed(service, other)
    rows = service.admin.get("/api/v1/audit", params={"Action": "gateway.batch"}).json()["items"]
    assert rows[0]["detail"]["gateways"] == 1
    assert key not in str(rows)
    assert _claim(service, {"mac": other}, key="with blank").status_code == 400


@pytest.mark.rule("auth-18")
def test_only_an_admin_claims_many_gateways(service: RunningService) -> None:
    body = {"gateways": [{"mac": service.new_mac()}]}
    assert [each.post(PATH, json=body).status_code for each in (service.viewer, service.operator)] == [
        403,
        403,
    ]
