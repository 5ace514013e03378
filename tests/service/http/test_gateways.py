"""Gateways: claiming them, their credentials, and what is shown of them."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.tables import gateway as gateway_table
from meshfleet.protocol.ids import mac_to_int
from meshfleet.protocol.times import format_time, from_millis
from meshfleet.rest import BrokerPlace
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


def _claimed(service: RunningService, **more: Any) -> Mac:
    mac = service.new_mac()
    answer = _claim(service, mac, **more)
    assert answer.status_code == 201, answer.text
    return mac


def _audited(service: RunningService, mac: Mac) -> list[str]:
    rows = service.admin.get("/api/v1/audit", params={"Target": f"bmac-{mac}"}).json()["items"]
    return [row["action"] for row in reversed(rows)]


def _stored_password(service: RunningService, mac: Mac) -> bytes | None:
    query = gateway_table.select().where(gateway_table.c.device == mac_to_int(mac))
    row = service.database.read_now(lambda connection: connection.execute(query).first())
    return None if row is None else bytes(row.password)


@pytest.mark.rule("rest-8", "rest-69", "rest-70")
def test_a_claim_answers_with_credentials_and_the_place_of_the_broker(service: RunningService) -> None:
    mac = service.new_mac()
    answer = _claim(service, mac)
    assert (answer.status_code, answer.headers["content-type"]) == (201, "application/json")
    body = answer.json()
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
    assert _audited(service, mac) == ["gateway.claim"]


@pytest.mark.rule("rest-69", "rest-76")
@each_row("spell", ["{}", "bmac-{}"])
@each_row("upper", [False, True])
def test_a_gateway_is_named_by_its_mac_or_device_id_in_either_case(
    service: RunningService, spell: str, *, upper: bool
) -> None:
    mac = service.new_mac()
    spelt = spell.format(mac).upper() if upper else spell.format(mac)
    answer = _claim(service, spelt)
    assert (answer.status_code, answer.json()["mac"], answer.json()["username"]) == (201, mac, mac)
    assert service.viewer.get(f"{PATH}/{spelt}").json()["mac"] == mac
    assert service.admin.post(f"{PATH}/{spelt}/credentials").json()["mac"] == mac
    assert _claim(service, spelt).status_code == 409
    assert service.admin.delete(f"{PATH}/{spelt}").status_code == 204
    assert service.viewer.get(f"{PATH}/{mac}").status_code == 404


@pytest.mark.rule("rest-71")
def test_the_password_is_shown_once_and_stored_as_its_hash(service: RunningService) -> None:
    mac = service.new_mac()
    password = _claim(service, mac).json()["password"]
    assert _stored_password(service, mac) == hashlib.sha256(password.encode()).digest()
    for path in (PATH, f"{PATH}/{mac}", f"/api/v1/devices/bmac-{mac}", "/api/v1/audit"):
        answer = service.admin.get(
            path, params={"MaxResults": 1000} if path in {PATH, "/api/v1/audit"} else {}
        )
        assert answer.status_code == 200
        assert mac in answer.text
        assert password not in answer.text
        assert "password" not in answer.text


@pytest.mark.rule("rest-72")
def test_a_second_claim_is_a_conflict_and_changes_nothing(service: RunningService) -> None:
    mac = _claimed(service, friendlyName="First")
    before = _stored_password(service, mac)
    answer = _claim(service, mac, friendlyName="Second")
    assert (answer.status_code, answer.json()["code"]) == (409, "already-exists")
    assert answer.headers["content-type"] == "application/problem+json"
    assert service.viewer.get(f"{PATH}/{mac}").json()["friendlyName"] == "First"
    assert _stored_password(service, mac) == before
    assert _audited(service, mac) == ["gateway.claim"]


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
def test_a_claim_that_cannot_be_is_refused(service: RunningService, body: Any, field: str) -> None:
    answer = service.admin.post(PATH, json=body)
    assert answer.status_code == 400, answer.text
    assert [each["field"] for each in answer.json()["errors"]] == [field]
    listed = service.viewer.get("/api/v1/devices", params={"Ids": ["bmac-abcdef012345", "bmac-ffffffffffff"]})
    assert listed.json()["items"] == []


@pytest.mark.rule("rest-57", "rest-69", "rest-39", "rest-53")
def test_a_claimed_gateway_is_a_device_before_it_was_ever_heard(service: RunningService) -> None:
    before = format_time(from_millis(service.clock()))
    mac = _claimed(service, friendlyName="  Depot 4 \N{DOOR} ")
    after = format_time(from_millis(service.clock()))
    (item,) = service.viewer.get("/api/v1/devices", params={"FriendlyName": "depot 4 \N{DOOR}"}).json()[
        "items"
    ]
    assert (item["id"], item["friendlyName"]) == (f"bmac-{mac}", "Depot 4 \N{DOOR}")
    assert item["connectivity"]["connected"] is False
    shown = service.viewer.get(f"/api/v1/devices/bmac-{mac}").json()
    assert before <= shown["claimedAt"] <= after
    assert shown["connectivity"]["timestamp"] == shown["claimedAt"]
    assert shown["live"]["lastReportAt"] is None


@pytest.mark.rule("rest-69")
def test_a_device_that_was_heard_before_keeps_name_and_labels_when_it_is_claimed(
    service: RunningService,
) -> None:
    device = service.new_device(name="Known")
    service.operator.put(f"/api/v1/devices/{device}/labels/depot")
    assert _claim(service, device).status_code == 201
    shown = service.viewer.get(f"/api/v1/devices/{device}").json()
    assert (shown["friendlyName"], shown["labels"]) == ("Known", ["depot"])


@pytest.mark.rule("rest-75", "rest-76")
def test_a_gateway_is_shown_with_ten_fields_and_how_many_devices_it_has(service: RunningService) -> None:
    before = format_time(from_millis(service.clock()))
    mac = _claimed(service, friendlyName="Depot")
    devices = [service.new_device(gateway=mac) for _ in range(3)]
    service.new_device(gateway=service.new_mac())
    shown = service.viewer.get(f"{PATH}/{mac}").json()
    assert list(shown) == FIELDS
    assert before <= shown.pop("since") <= format_time(from_millis(service.clock()))
    assert shown == {
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
    shown = service.viewer.get(f"{PATH}/{mac}").json()
    assert (shown["deviceCount"], shown["friendlyName"]) == (2, "Renamed")
    listed = service.viewer.get("/api/v1/devices", params={"Gateway": f"BMAC-{mac.upper()}"}).json()["items"]
    assert [item["id"] for item in listed] == devices[1:]


@pytest.mark.rule("rest-75")
def test_a_gateway_is_connected_when_its_device_is_and_since_then(service: RunningService) -> None:
    mac = _claimed(service)
    at = service.clock() + 1000
    service.observe(DeviceObservation(device=mac, at=at, connected=True))
    shown = service.viewer.get(f"{PATH}/{mac}").json()
    assert (shown["connected"], shown["since"]) == (True, format_time(from_millis(at)))


@pytest.mark.rule("rest-75", "rest-16")
def test_gateways_are_listed_by_mac_in_pages(service: RunningService) -> None:
    macs = [_claimed(service) for _ in range(5)]
    service.new_device()
    whole = service.viewer.get(PATH, params={"MaxResults": 1000}).json()
    listed = [item["mac"] for item in whole["items"]]
    assert listed == sorted(listed)
    assert set(macs) <= set(listed)
    assert all(list(item) == FIELDS for item in whole["items"])
    assert whole["items"][-1] == service.viewer.get(f"{PATH}/{listed[-1]}").json()
    walked: list[Any] = []
    query: dict[str, Any] = {"MaxResults": 2}
    while "NextToken" not in query or query["NextToken"] is not None:
        page = service.viewer.get(PATH, params=query).json()
        walked += page["items"]
        query["NextToken"] = page["nextToken"]
    assert walked == whole["items"]


@pytest.mark.rule("rest-73")
def test_new_credentials_are_others_and_the_old_hold_no_longer(service: RunningService) -> None:
    mac = service.new_mac()
    claim = _claim(service, mac).json()
    answer = service.admin.post(f"{PATH}/{mac}/credentials")
    assert answer.status_code == 200
    rotated = answer.json()
    assert list(rotated) == list(claim)
    assert rotated["password"] != claim["password"]
    assert {**rotated, "password": ""} == {**claim, "password": ""}
    assert _stored_password(service, mac) == hashlib.sha256(rotated["password"].encode()).digest()
    assert _audited(service, mac) == ["gateway.claim", "gateway.rotate"]


@pytest.mark.rule("rest-74", "rest-57")
def test_a_released_gateway_stays_a_device_and_can_be_claimed_again(service: RunningService) -> None:
    mac = service.new_mac()
    first = _claim(service, mac, friendlyName="Depot").json()["password"]
    answer = service.admin.delete(f"{PATH}/{mac}")
    assert (answer.status_code, answer.content) == (204, b"")
    assert _stored_password(service, mac) is None
    shown = service.viewer.get(f"/api/v1/devices/bmac-{mac}").json()
    assert (shown["friendlyName"], shown["claimedAt"]) == ("Depot", None)
    assert mac not in service.viewer.get(PATH, params={"MaxResults": 1000}).text
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/credentials")):
        answer = service.admin.request(method, f"{PATH}/{mac}{path}")
        assert (answer.status_code, answer.json()["code"]) == (404, "not-found")
    again = _claim(service, mac)
    assert (again.status_code, again.json()["password"] == first) == (201, False)
    assert _audited(service, mac) == ["gateway.claim", "gateway.release", "gateway.claim"]


@pytest.mark.rule("rest-40", "rest-74")
def test_a_claimed_gateway_is_forgotten_only_after_its_release(service: RunningService) -> None:
    mac = _claimed(service)
    answer = service.admin.delete(f"/api/v1/devices/bmac-{mac}")
    assert (answer.status_code, answer.json()["code"]) == (409, "still-claimed")
    assert service.viewer.get(f"/api/v1/devices/bmac-{mac}").status_code == 200
    assert service.admin.delete(f"{PATH}/{mac}").status_code == 204
    assert service.admin.delete(f"/api/v1/devices/bmac-{mac}").status_code == 204


@pytest.mark.rule("rest-15", "rest-76")
@each_row("text", ["0123456789ab", "x", "%20c0ffee000001", "c0:ff:ee:00:00:01", "%00", "-", "%FF"])
@each_row(("method", "end"), [("GET", ""), ("DELETE", ""), ("POST", "/credentials")])
def test_an_unknown_or_malformed_gateway_is_not_found(
    service: RunningService, method: str, end: str, text: str
) -> None:
    answer = service.admin.request(method, f"{PATH}/{text}{end}")
    assert (answer.status_code, answer.json()["code"]) == (404, "not-found")


def test_a_device_that_is_not_claimed_is_no_gateway(service: RunningService) -> None:
    assert service.viewer.get(f"{PATH}/{service.new_device()}").status_code == 404


@pytest.mark.rule("rest-70", "rest-168")
def test_a_gateway_is_told_the_public_place_of_the_broker(database: Database) -> None:
    place = BrokerPlace(host="mqtt.example.org", port=8883, tls=True)
    with run_service(database, Settings(public_mqtt=place)) as service:
        mac = service.new_mac()
        claim = _claim(service, mac).json()
        assert claim["broker"] == {"host": "mqtt.example.org", "port": 8883, "tls": True}
        assert service.admin.post(f"{PATH}/{mac}/credentials").json()["broker"] == claim["broker"]
        assert json.dumps(claim).count("mqtt.example.org") == 1
