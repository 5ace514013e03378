"""Gateways: claims, credentials, and the gateway list."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.tables import gateway as gateway_table
from meshfleet.protocol.ids import mac_to_int
from meshfleet.protocol.times import format_time, from_millis
from meshfleet.rest.gateways import BrokerEndpoint
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.settings import Settings
from tests.row_tables import each_row
from tests.service.http.running_service import run_service

if TYPE_CHECKING:
    import httpx

    from meshfleet.db import Database
    from meshfleet.protocol.ids import Mac
    from tests.service.http.running_service import RunningService

FIELDS = ["mac", "deviceId", "friendlyName", "connected", "since"]
FIELDS += ["apiVersion", "mode", "deviceCount", "reportsPerMinute", "clockOffset"]
PATH = "/api/v1/gateways"


def _claim(service: RunningService, mac: str, **more: Any) -> httpx.Response:
    return service.admin.post(PATH, json={"mac": mac, **more})


def _claim_new(service: RunningService, **more: Any) -> Mac:
    mac = service.new_mac()
    response = _claim(service, mac, **more)
    assert response.status_code == 201, response.text
    return mac


def _list_actions(service: RunningService, mac: Mac) -> list[str]:
    rows = service.admin.get("/api/v1/audit", params={"Target": f"bmac-{mac}"}).json()["items"]
    return [row["action"] for row in reversed(rows)]


def _load_stored_password(service: RunningService, mac: Mac) -> bytes | None:
    query = gateway_table.select().where(gateway_table.c.device == mac_to_int(mac))
    row = service.database.read_now(lambda connection: connection.execute(query).first())
    return None if row is None else bytes(row.password)


@pytest.mark.rule("rest-8", "rest-69", "rest-70")
def test_a_claim_returns_credentials_and_the_broker_address(service: RunningService) -> None:
    mac = service.new_mac()
    response = _claim(service, mac)
    assert (response.status_code, response.headers["content-type"]) == (201, "application/json")
    body = response.json()
    assert list(body) == ["mac", "deviceId", "username", "password", "broker"]
    password = body.pop("password")
    assert len(password) >= 43, "256 bits"
    assert body == {
        "mac": mac,
        "deviceId": f"bmac-{mac}",
        "username": mac,
        "broker": {"host": "127.0.0.1", "port": 1883, "tls": False},
    }
    assert list(body["broker"]) == ["host", "port", "tls"]
    assert _list_actions(service, mac) == ["gateway.claim"]


@pytest.mark.rule("rest-69", "rest-76")
@each_row("form", ["{}", "bmac-{}"])
@each_row("upper", [False, True])
def test_a_gateway_is_addressed_by_mac_or_device_id_in_any_case(
    service: RunningService, form: str, *, upper: bool
) -> None:
    mac = service.new_mac()
    address = form.format(mac).upper() if upper else form.format(mac)
    response = _claim(service, address)
    assert (response.status_code, response.json()["mac"], response.json()["username"]) == (201, mac, mac)
    assert service.viewer.get(f"{PATH}/{address}").json()["mac"] == mac
    assert service.admin.post(f"{PATH}/{address}/credentials").json()["mac"] == mac
    assert _claim(service, address).status_code == 409
    assert service.admin.delete(f"{PATH}/{address}").status_code == 204
    assert service.viewer.get(f"{PATH}/{mac}").status_code == 404


@pytest.mark.rule("rest-71")
def test_the_password_is_returned_once_and_stored_as_its_hash(service: RunningService) -> None:
    mac = service.new_mac()
    password = _claim(service, mac).json()["password"]
    assert _load_stored_password(service, mac) == hashlib.sha256(password.encode()).digest()
    for path in (PATH, f"{PATH}/{mac}", f"/api/v1/devices/bmac-{mac}", "/api/v1/audit"):
        response = service.admin.get(
            path, params={"MaxResults": 1000} if path in {PATH, "/api/v1/audit"} else {}
        )
        assert response.status_code == 200
        assert mac in response.text
        assert password not in response.text
        assert "password" not in response.text


@pytest.mark.rule("rest-72")
def test_a_second_claim_is_a_conflict_and_changes_nothing(service: RunningService) -> None:
    mac = _claim_new(service, friendlyName="First")
    before = _load_stored_password(service, mac)
    response = _claim(service, mac, friendlyName="Second")
    assert (response.status_code, response.json()["code"]) == (409, "already-exists")
    assert response.headers["content-type"] == "application/problem+json"
    assert service.viewer.get(f"{PATH}/{mac}").json()["friendlyName"] == "First"
    assert _load_stored_password(service, mac) == before
    assert _list_actions(service, mac) == ["gateway.claim"]


@pytest.mark.rule("rest-69")
@each_row(
    ("body", "field"),
    [
        ({}, "mac"),
        ({"mac": None}, "mac"),
        ({"mac": 12}, "mac"),
        ({"mac": ""}, "mac"),
        ({"mac": "c0ffee"}, "mac"),
        ({"mac": "c0:ff:ee:00:00:01"}, "mac"),
        ({"mac": " c0ffee000001"}, "mac"),
        ({"mac": "c0ffee00000g"}, "mac"),
        ({"mac": "bmac-bmac-c0ffee000001"}, "mac"),
        ({"mac": "ffffffffffff"}, "mac"),
        ({"mac": "FFFFFFFFFFFF"}, "mac"),
        ({"mac": "bmac-ffffffffffff"}, "mac"),
        ({"mac": "abcdef012345", "friendlyName": ""}, "friendlyName"),
        ({"mac": "abcdef012345", "friendlyName": "a\nb"}, "friendlyName"),
        ({"mac": "abcdef012345", "friendlyName": "n" * 129}, "friendlyName"),
        ({"mac": "abcdef012345", "friendlyName": 5}, "friendlyName"),
        ({"mac": "abcdef012345", "name": "x"}, "name"),
        ([], "body"),
    ],
)
def test_an_invalid_claim_is_refused(service: RunningService, body: Any, field: str) -> None:
    response = service.admin.post(PATH, json=body)
    assert response.status_code == 400, response.text
    assert [each["field"] for each in response.json()["errors"]] == [field]
    listed = service.viewer.get("/api/v1/devices", params={"Ids": ["bmac-abcdef012345", "bmac-ffffffffffff"]})
    assert listed.json()["items"] == []


@pytest.mark.rule("rest-57", "rest-69", "rest-39", "rest-53")
def test_a_claimed_gateway_is_a_device_before_its_first_report(service: RunningService) -> None:
    before = format_time(from_millis(service.clock()))
    mac = _claim_new(service, friendlyName="  Depot 4 \N{DOOR} ")
    after = format_time(from_millis(service.clock()))
    (item,) = service.viewer.get("/api/v1/devices", params={"FriendlyName": "depot 4 \N{DOOR}"}).json()[
        "items"
    ]
    assert (item["id"], item["friendlyName"]) == (f"bmac-{mac}", "Depot 4 \N{DOOR}")
    assert item["connectivity"]["connected"] is False
    detail = service.viewer.get(f"/api/v1/devices/bmac-{mac}").json()
    assert before <= detail["claimedAt"] <= after
    assert detail["connectivity"]["timestamp"] == detail["claimedAt"]
    assert detail["live"]["lastReportAt"] is None


@pytest.mark.rule("rest-69")
def test_a_known_device_keeps_name_and_labels_when_it_is_claimed(
    service: RunningService,
) -> None:
    device = service.new_device(name="Known")
    service.operator.put(f"/api/v1/devices/{device}/labels/depot")
    assert _claim(service, device).status_code == 201
    detail = service.viewer.get(f"/api/v1/devices/{device}").json()
    assert (detail["friendlyName"], detail["labels"]) == ("Known", ["depot"])


@pytest.mark.rule("rest-75", "rest-76")
def test_a_gateway_has_ten_fields_including_its_device_count(service: RunningService) -> None:
    before = format_time(from_millis(service.clock()))
    mac = _claim_new(service, friendlyName="Depot")
    devices = [service.new_device(gateway=mac) for _ in range(3)]
    service.new_device(gateway=service.new_mac())
    detail = service.viewer.get(f"{PATH}/{mac}").json()
    assert list(detail) == FIELDS
    assert before <= detail.pop("since") <= format_time(from_millis(service.clock()))
    assert detail == {
        "mac": mac,
        "deviceId": f"bmac-{mac}",
        "friendlyName": "Depot",
        "connected": False,
        "apiVersion": None,
        "mode": None,
        "deviceCount": 3,
        "reportsPerMinute": 0.0,
        "clockOffset": None,
    }
    service.admin.delete(f"/api/v1/devices/{devices[0]}")
    service.operator.put(f"/api/v1/devices/bmac-{mac}/friendly-name", json={"name": "Renamed"})
    detail = service.viewer.get(f"{PATH}/{mac}").json()
    assert (detail["deviceCount"], detail["friendlyName"]) == (2, "Renamed")
    listed = service.viewer.get("/api/v1/devices", params={"Gateway": f"BMAC-{mac.upper()}"}).json()["items"]
    assert [item["id"] for item in listed] == devices[1:]


@pytest.mark.rule("rest-75")
def test_a_gateway_is_connected_when_its_device_is_and_since_then(service: RunningService) -> None:
    mac = _claim_new(service)
    at = service.clock() + 1000
    service.observe(DeviceObservation(device=mac, at=at, connected=True))
    detail = service.viewer.get(f"{PATH}/{mac}").json()
    assert (detail["connected"], detail["since"]) == (True, format_time(from_millis(at)))


@pytest.mark.rule("rest-75", "rest-16")
def test_gateways_are_listed_by_mac_in_pages(service: RunningService) -> None:
    macs = [_claim_new(service) for _ in range(5)]
    service.new_device()
    complete = service.viewer.get(PATH, params={"MaxResults": 1000}).json()
    listed = [item["mac"] for item in complete["items"]]
    assert listed == sorted(listed)
    assert set(macs) <= set(listed)
    assert all(list(item) == FIELDS for item in complete["items"])
    assert complete["items"][-1] == service.viewer.get(f"{PATH}/{listed[-1]}").json()
    paged: list[Any] = []
    query: dict[str, Any] = {"MaxResults": 2}
    while "NextToken" not in query or query["NextToken"] is not None:
        page = service.viewer.get(PATH, params=query).json()
        paged += page["items"]
        query["NextToken"] = page["nextToken"]
    assert paged == complete["items"]


@pytest.mark.rule("rest-73")
def test_new_credentials_replace_the_old_ones(service: RunningService) -> None:
    mac = service.new_mac()
    claim = _claim(service, mac).json()
    response = service.admin.post(f"{PATH}/{mac}/credentials")
    assert response.status_code == 200
    rotated = response.json()
    assert list(rotated) == list(claim)
    assert rotated["password"] != claim["password"]
    assert {**rotated, "password": ""} == {**claim, "password": ""}
    assert _load_stored_password(service, mac) == hashlib.sha256(rotated["password"].encode()).digest()
    assert _list_actions(service, mac) == ["gateway.claim", "gateway.rotate"]


@pytest.mark.rule("rest-74", "rest-57")
def test_a_released_gateway_stays_a_device_and_can_be_claimed_again(service: RunningService) -> None:
    mac = service.new_mac()
    first = _claim(service, mac, friendlyName="Depot").json()["password"]
    response = service.admin.delete(f"{PATH}/{mac}")
    assert (response.status_code, response.content) == (204, b"")
    assert _load_stored_password(service, mac) is None
    detail = service.viewer.get(f"/api/v1/devices/bmac-{mac}").json()
    assert (detail["friendlyName"], detail["claimedAt"]) == ("Depot", None)
    assert mac not in service.viewer.get(PATH, params={"MaxResults": 1000}).text
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/credentials")):
        response = service.admin.request(method, f"{PATH}/{mac}{path}")
        assert (response.status_code, response.json()["code"]) == (404, "not-found")
    again = _claim(service, mac)
    assert (again.status_code, again.json()["password"] == first) == (201, False)
    assert _list_actions(service, mac) == ["gateway.claim", "gateway.release", "gateway.claim"]


@pytest.mark.rule("rest-40", "rest-74")
def test_a_claimed_gateway_can_be_deleted_only_after_its_release(service: RunningService) -> None:
    mac = _claim_new(service)
    response = service.admin.delete(f"/api/v1/devices/bmac-{mac}")
    assert (response.status_code, response.json()["code"]) == (409, "still-claimed")
    assert service.viewer.get(f"/api/v1/devices/bmac-{mac}").status_code == 200
    assert service.admin.delete(f"{PATH}/{mac}").status_code == 204
    assert service.admin.delete(f"/api/v1/devices/bmac-{mac}").status_code == 204


@pytest.mark.rule("rest-15", "rest-76")
@each_row("text", ["0123456789ab", "x", "%20c0ffee000001", "c0:ff:ee:00:00:01", "%00", "-", "%FF"])
@each_row(("method", "suffix"), [("GET", ""), ("DELETE", ""), ("POST", "/credentials")])
def test_an_unknown_or_malformed_gateway_is_not_found(
    service: RunningService, method: str, suffix: str, text: str
) -> None:
    response = service.admin.request(method, f"{PATH}/{text}{suffix}")
    assert (response.status_code, response.json()["code"]) == (404, "not-found")


def test_an_unclaimed_device_is_not_a_gateway(service: RunningService) -> None:
    assert service.viewer.get(f"{PATH}/{service.new_device()}").status_code == 404


@pytest.mark.rule("rest-70", "rest-168")
def test_a_claim_returns_the_public_broker_address(database: Database) -> None:
    broker = BrokerEndpoint(host="mqtt.example.org", port=8883, tls=True)
    with run_service(database, Settings(public_mqtt=broker)) as service:
        mac = service.new_mac()
        claim = _claim(service, mac).json()
        assert claim["broker"] == {"host": "mqtt.example.org", "port": 8883, "tls": True}
        assert service.admin.post(f"{PATH}/{mac}/credentials").json()["broker"] == claim["broker"]
        assert json.dumps(claim).count("mqtt.example.org") == 1
