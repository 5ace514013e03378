"""Devices: list, detail, summary and deletion."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac, ModelNumber, Version
from meshfleet.protocol.times import format_time, from_millis
from meshfleet.service.devices.model import DeviceObservation
from tests.row_tables import each_row

if TYPE_CHECKING:
    from tests.service.http.running_service import RunningService

FIELDS = ["id", "friendlyName", "modelNumber", "labels", "bootMode", "connectivity"]
FIELDS += ["firmwareVersion", "hardwareVersion", "imei", "status"]
LIVE_FIELDS = ["gateway", "parent", "rssi", "battery", "lastReportAt", "updating", "place"]
UNKNOWN_DEVICE = "bmac-0123456789ab"

OPERATIONS = [
    ("GET", "/api/v1/devices/{}", None),
    ("DELETE", "/api/v1/devices/{}", None),
    ("PUT", "/api/v1/devices/{}/friendly-name", {"name": "a name"}),
    ("PUT", "/api/v1/devices/{}/labels/any", None),
    ("DELETE", "/api/v1/devices/{}/labels/any", None),
]
"""Operations with a device in their path."""


def _load_item(service: RunningService, device: str, **query: str) -> dict[str, Any]:
    response = service.viewer.get("/api/v1/devices", params={"Ids": device, **query})
    assert response.status_code == 200, response.text
    (item,) = response.json()["items"]
    return dict(item)


def _load_detail(service: RunningService, device: str) -> dict[str, Any]:
    response = service.viewer.get(f"/api/v1/devices/{device}")
    assert response.status_code == 200, response.text
    return dict(response.json())


def _create_full_device(service: RunningService, **facts: Any) -> str:
    """Create a device of which all fields are known."""
    defaults: dict[str, Any] = {
        "model": ModelNumber("000F"),
        "firmware": Version(2, 4, 1, 3),
        "hardware": Version.parse("1.7"),
        "imei": "356938035643809",
        "connected": True,
        "status": 0,
        "boot_mode": "dfu",
        "gateway": service.new_mac(),
        "parent": service.new_mac(),
        "rssi": -70,
        "battery": 88,
    }
    return service.new_device(**defaults | facts)


@pytest.mark.rule("rest-6", "rest-28", "rest-29", "rest-30", "rest-31", "rest-32", "rest-33", "rest-45")
@pytest.mark.rule("rest-48", "rest-53")
def test_a_new_device_is_listed_with_ten_fields_in_order(service: RunningService) -> None:
    mac = service.new_mac()
    at = service.clock()
    service.observe(DeviceObservation(device=mac, at=at))
    item = _load_item(service, f"bmac-{mac}")
    assert list(item) == FIELDS
    assert item == {
        "id": f"bmac-{mac}",
        "friendlyName": f"Device {mac[-4:]}",
        "modelNumber": "0000",
        "labels": [],
        "bootMode": None,
        "connectivity": {"connected": False, "timestamp": format_time(from_millis(at))},
        "firmwareVersion": "0.0.0",
        "hardwareVersion": "0.0.0",
        "imei": None,
        "status": None,
    }
    assert list(item["connectivity"]) == ["connected", "timestamp"]


@pytest.mark.rule("rest-29", "rest-45", "rest-49", "rest-50", "rest-54", "rest-55", "rest-56")
def test_a_fully_known_device_is_listed_with_the_same_ten_fields(service: RunningService) -> None:
    device = _create_full_device(service)
    item = _load_item(service, device)
    assert list(item) == FIELDS
    assert item.pop("connectivity")["connected"] is True
    assert item == {
        "id": device,
        "friendlyName": f"MT PocketClip 231 {device[-4:]}",
        "modelNumber": "000F",
        "labels": [],
        "bootMode": "dfu",
        "firmwareVersion": "2.4.1",
        "hardwareVersion": "1.7.0",
        "imei": "356938035643809",
        "status": 0,
    }


@pytest.mark.rule("rest-38")
def test_live_adds_one_field_at_the_end(service: RunningService) -> None:
    gateway, parent = service.new_mac(), service.new_mac()
    device = _create_full_device(service, gateway=gateway, parent=parent)
    item = _load_item(service, device, Include="live")
    assert list(item) == [*FIELDS, "live"]
    live = item.pop("live")
    assert list(live) == LIVE_FIELDS
    assert item == _load_item(service, device)
    last = live.pop("lastReportAt")
    assert last == item["connectivity"]["timestamp"]
    assert live == {
        "gateway": gateway,
        "parent": parent,
        "rssi": -70,
        "battery": 88,
        "updating": False,
        "place": None,
    }


@pytest.mark.rule("rest-38")
def test_the_live_fields_of_a_device_without_reports_are_null(service: RunningService) -> None:
    mac = service.new_mac()
    service.observe(DeviceObservation(device=mac, at=service.clock(), heard=False))
    live = _load_item(service, f"bmac-{mac}", Include="live")["live"]
    assert live == {**dict.fromkeys(LIVE_FIELDS), "updating": False}


@each_row("value", ["Live", "LIVE", "all", "", "live,live", "null"])
def test_only_live_can_be_included(service: RunningService, value: str) -> None:
    response = service.viewer.get("/api/v1/devices", params={"Include": value})
    assert response.status_code == 400, response.text
    assert [each["field"] for each in response.json()["errors"]] == ["Include"]


@pytest.mark.rule("rest-39", "rest-49")
def test_the_detail_of_a_device_has_four_more_fields(service: RunningService) -> None:
    device = _create_full_device(service)
    detail = _load_detail(service, device)
    assert list(detail) == [*FIELDS, "live", "firmwareVersionText", "product", "claimedAt"]
    assert detail["firmwareVersionText"] == "2.4.1-beta.3"
    assert detail["product"] == "MT PocketClip 231"
    assert detail["claimedAt"] is None
    assert {name: detail[name] for name in [*FIELDS, "live"]} == _load_item(service, device, Include="live")


@pytest.mark.rule("rest-39")
def test_a_release_has_the_same_version_in_both_fields(service: RunningService) -> None:
    detail = _load_detail(service, service.new_device(firmware=Version(2, 4, 1)))
    assert (detail["firmwareVersion"], detail["firmwareVersionText"]) == ("2.4.1", "2.4.1")
    assert detail["product"] is None


@pytest.mark.rule("rest-53")
def test_the_connectivity_timestamp_is_that_of_its_last_change(service: RunningService) -> None:
    mac = service.new_mac()
    start = service.clock()
    for passed, connected in [(0, True), (1000, True), (2000, False), (3000, False)]:
        service.observe(DeviceObservation(device=mac, at=start + passed, connected=connected))
    assert _load_item(service, f"bmac-{mac}")["connectivity"] == {
        "connected": False,
        "timestamp": format_time(from_millis(start + 2000)),
    }


@pytest.mark.rule("rest-54")
def test_boot_mode_is_null_again_after_an_update(service: RunningService) -> None:
    device = service.new_device(boot_mode="dfu")
    service.observe(DeviceObservation(device=Mac(device[5:]), at=service.clock() + 1, boot_mode=None))
    assert _load_item(service, device)["bootMode"] is None


@pytest.mark.rule("rest-55")
def test_a_nonzero_status_is_returned_unchanged(service: RunningService) -> None:
    assert _load_item(service, service.new_device(status=255))["status"] == 255


@pytest.mark.rule("rest-15")
@each_row(("method", "path", "body"), OPERATIONS)
def test_a_malformed_id_in_a_path_is_not_found(
    service: RunningService, method: str, path: str, body: Any
) -> None:
    device = service.new_device()
    mac = device[5:]
    malformed = [mac, device.upper(), f"bmac-{mac.upper()}", device[:-1], f"{device}0", f"bmac-bmac-{mac}"]
    malformed += [
        "bmac-",
        "0",
        "-",
        f"BMAC-{mac}",
        f"bmac-{mac[:-1]}g",
        f"{device}%0A",
        f"%20{device}",
        f"{device}%20",
    ]
    malformed += [
        f"bmac-{mac[:-1]}%EF%BC%91",
        "%00",
        "%FF",
        f"{device}%2F",
        f"..%2F{device}",
        f"{device}%00",
        "%25",
    ]
    for each in malformed:
        response = service.admin.request(method, path.format(each), json=body)
        assert (response.status_code, response.json()["code"]) == (404, "not-found"), each
    assert service.viewer.get(f"/api/v1/devices/{device}").status_code == 200


@pytest.mark.rule("rest-15")
@each_row(("method", "path", "body"), OPERATIONS)
def test_an_unknown_device_is_not_found(service: RunningService, method: str, path: str, body: Any) -> None:
    response = service.admin.request(method, path.format(UNKNOWN_DEVICE), json=body)
    assert (response.status_code, response.json()["code"]) == (404, "not-found")
    assert response.json()["instance"] == path.format(UNKNOWN_DEVICE)
    listed = service.viewer.get("/api/v1/devices", params={"Ids": UNKNOWN_DEVICE})
    assert listed.json() == {"items": [], "nextToken": None}


def test_a_percent_encoded_device_id_is_decoded(service: RunningService) -> None:
    device = service.new_device()
    assert _load_detail(service, device.replace("-", "%2d"))["id"] == device


@pytest.mark.rule("rest-40")
def test_only_an_admin_deletes_a_device(service: RunningService) -> None:
    device = service.new_device()
    for client in (service.viewer, service.operator):
        response = client.delete(f"/api/v1/devices/{device}")
        assert (response.status_code, response.json()["code"]) == (403, "not-allowed")
    response = service.admin.delete(f"/api/v1/devices/{device}")
    assert (response.status_code, response.content) == (204, b"")
    assert service.viewer.get(f"/api/v1/devices/{device}").status_code == 404
    assert service.admin.delete(f"/api/v1/devices/{device}").status_code == 404
    rows = service.admin.get("/api/v1/audit", params={"Target": device}).json()["items"]
    assert [(row["action"], row["actor"]) for row in rows] == [("device.forget", "api-key: key of a admin")]


@pytest.mark.rule("rest-40", "rest-41")
def test_a_deleted_device_is_added_again_without_name_and_labels_by_its_next_report(
    service: RunningService,
) -> None:
    device, label = service.new_device(), service.new_name("label")
    name = service.new_name("A peculiar name")
    service.operator.put(f"/api/v1/devices/{device}/labels/{label}")
    service.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": name})
    service.admin.delete(f"/api/v1/devices/{device}")
    for query in ({"Label": label}, {"FriendlyName": name}, {"Ids": device}):
        assert service.viewer.get("/api/v1/devices", params=query).json()["items"] == [], query
    service.observe(DeviceObservation(device=Mac(device[5:]), at=service.clock()))
    item = _load_item(service, device)
    assert (item["friendlyName"], item["labels"]) == (f"Device {device[-4:]}", [])
    assert service.viewer.get("/api/v1/devices", params={"FriendlyName": name}).json()["items"] == []


@pytest.mark.rule("rest-42")
def test_a_summary_counts_the_devices_that_match_the_filters(service: RunningService) -> None:
    gateway = service.new_mac()
    label, other = service.new_name("a"), service.new_name("b")
    models = [ModelNumber("0018"), ModelNumber("0018"), ModelNumber("000F")]
    versions = [Version(1, 0, 0), Version(2, 0, 0), Version(2, 0, 0, 1)]
    devices = [
        service.new_device(gateway=gateway, model=model, firmware=firmware, connected=firmware[0] == 1)
        for model, firmware in zip(models, versions, strict=True)
    ]
    service.operator.post("/api/v1/labels", json={"label": label, "deviceIds": devices})
    service.operator.post("/api/v1/labels", json={"label": other, "deviceIds": devices[:1]})
    summary = service.viewer.get("/api/v1/devices/summary", params={"gateway": gateway}).json()
    assert list(summary) == ["total", "connected", "disconnected", "models", "firmware", "labels", "exact"]
    assert isinstance(summary.pop("exact"), bool)
    assert summary == {
        "total": 3,
        "connected": 1,
        "disconnected": 2,
        "models": [{"value": "0018", "count": 2}, {"value": "000F", "count": 1}],
        "firmware": [{"value": "2.0.0", "count": 2}, {"value": "1.0.0", "count": 1}],
        "labels": [{"value": label, "count": 3}, {"value": other, "count": 1}],
    }
    query = {"Gateway": gateway, "Label": [label, other], "Connected": "true"}
    assert service.viewer.get("/api/v1/devices/summary", params=query).json()["total"] == 1


@pytest.mark.rule("rest-42")
def test_a_summary_without_matches_is_zero(service: RunningService) -> None:
    summary = service.viewer.get("/api/v1/devices/summary", params={"Label": "unknown label"}).json()
    assert (summary["total"], summary["models"], summary["labels"]) == (0, [], [])


@pytest.mark.rule("rest-42")
@each_row("query", ["ModelNumber=x", "Connected=perhaps", "MaxResults=1", "Sort=id", "Include=live"])
def test_a_summary_accepts_only_the_filters_of_the_list(service: RunningService, query: str) -> None:
    response = service.viewer.get(f"/api/v1/devices/summary?{query}")
    assert response.status_code == 400
    assert [each["field"] for each in response.json()["errors"]] == [query.partition("=")[0]]
