"""Events of reports, devices and gateways, in their REST representation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac, mac_to_int
from tests.row_tables import each_row
from tests.service.ingest.messages import (
    A,
    B,
    D,
    E,
    P,
    build_raw_report,
    build_report,
    dfu,
    heartbeat,
    link,
    temperature,
)

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService


def _load_listed_device(service: LiveService, device: str) -> Any:
    response = service.viewer.get("/api/v1/devices", params={"Ids": device, "Include": "live"})
    (only,) = response.json()["items"]
    return only


@pytest.mark.rule("rest-146", "rest-147", "rest-148")
def test_a_renamed_device_is_published_as_the_list_shows_it(service_on_each_database: LiveService) -> None:
    device = service_on_each_database.new_device()
    with service_on_each_database.stream(Types="device") as stream:
        service_on_each_database.operator.put(
            f"/api/v1/devices/{device}/friendly-name", json={"name": "Kuno"}
        )
        event = stream.next()
    assert set(event) == {"id", "type", "time", "data"}
    assert event["type"] == "device"
    assert event["data"]["friendlyName"] == "Kuno"
    assert event["data"] == _load_listed_device(service_on_each_database, device)


@pytest.mark.rule("rest-90", "rest-146")
def test_a_device_whose_place_changes_is_published(service: LiveService) -> None:
    device = service.new_device()
    floor = {"floor": 0, "minX": 0, "minY": 0, "maxX": 9, "maxY": 9}
    site = service.operator.post("/api/v1/sites", json={"name": "Site", "floors": [floor]}).json()["id"]
    place = {"site": site, "floor": 0, "x": 1.5, "y": 2.0}
    with service.stream(Types="device,resync") as stream:
        service.operator.put(f"/api/v1/devices/{device}/place", json=place)
        event = stream.next()
        assert event["data"] == _load_listed_device(service, device)
        assert event["data"]["live"]["place"] == place
        service.operator.delete(f"/api/v1/sites/{site}")
        assert stream.next()["type"] == "resync"
    assert _load_listed_device(service, device)["live"]["place"] is None


@pytest.mark.rule("rest-151")
def test_streams_and_websockets_get_the_same_events(service: LiveService) -> None:
    device = service.new_device()
    with service.open_authenticated() as websocket, service.stream(Types="device") as stream:
        websocket.subscribe(Types=["device"])
        service.operator.put(f"/api/v1/devices/{device}/labels/north", json={})
        assert websocket.next() == stream.next()


@pytest.mark.rule("rest-146")
@pytest.mark.parametrize(
    "sent",
    [
        temperature(1_700_000_000_000, 21.5),
        build_report("measurement/8800", 1_700_000_000_000, seq=7, value="0a0b"),
        build_report("measurement-decoded/something-odd", 1_700_000_000_000, seq=7, value={"a": [1, "b"]}),
        build_report("property-decoded/firmware-version", 1_700_000_000_000, value="1.2.3"),
        build_report("measurement-error/8800", 1_700_000_000_000, seq=3, error=8, errorExt=2),
    ],
    ids=["decoded", "raw", "foreign name", "property", "error"],
)
def test_a_report_is_published_as_the_list_shows_its_sample(service: LiveService, sent: Any) -> None:
    with service.stream(Types="report") as stream:
        service.ingest(sent)
        data = stream.next()["data"]
    (row,) = service.viewer.get(f"/api/v1/devices/bmac-{D}/samples?From=2000-01-01T00:00:00.000Z").json()[
        "items"
    ]
    assert data.pop("device") == f"bmac-{D}"
    assert data == row


@pytest.mark.rule("rest-146")
def test_a_value_with_line_breaks_is_published_complete(service: LiveService) -> None:
    with service.stream(Types="report") as stream:
        odd = '"one\\nline\u2028\u0085"'
        service.ingest(
            build_raw_report(
                "event-decoded/odd", service.clock(), f'"seq":1,"value":{{"a":\n[1,\r\n2],"b":\r{odd}}}'
            )
        )
        assert stream.next()["data"]["value"] == {"a": [1, 2], "b": "one\nline\u2028\u0085"}


@pytest.mark.rule("rest-146")
def test_heartbeats_links_and_dfu_mode_are_reports_too(service: LiveService) -> None:
    now = service.clock()
    with service.stream(Types="report") as stream:
        service.ingest(heartbeat(now, 2), link(now, -61), dfu(now))
        events = [stream.next()["data"] for _ in range(3)]
    common = {"device": f"bmac-{D}", "gateway": A, "time": events[0]["time"]}
    assert events == [
        {**common, "kind": "heartbeat", "status": 2},
        {**common, "kind": "rssi", "parent": P, "rssi": -61, "unreachable": False},
        {**common, "kind": "dfu", "parent": P, "rssi": -50, "unreachable": False},
    ]


@pytest.mark.rule("rest-146")
def test_a_reported_device_is_published_after_its_state_is_stored(
    service_on_each_database: LiveService,
) -> None:
    with service_on_each_database.stream(Types="device") as stream:
        service_on_each_database.ingest_and_flush(
            heartbeat(service_on_each_database.clock(), 2), link(service_on_each_database.clock(), -61)
        )
        data = stream.next()["data"]
    assert (data["id"], data["status"], data["live"]["rssi"]) == (f"bmac-{D}", 2, -61)
    assert data == _load_listed_device(service_on_each_database, f"bmac-{D}")


def test_several_changes_of_a_device_are_published_as_one_event(service: LiveService) -> None:
    device, other = service.new_device(), service.new_device()
    number = mac_to_int(Mac(device.removeprefix("bmac-")))

    def mark_often() -> None:
        for _ in range(100):
            service.api.live.devices.mark_changed([number])

    with service.stream(Types="device", Ids=[device, other]) as stream:
        service.call_in_loop(mark_often)
        assert stream.next()["data"]["id"] == device
        service.call_in_loop(
            lambda: service.api.live.devices.mark_changed([mac_to_int(Mac(other.removeprefix("bmac-")))])
        )
        assert stream.next()["data"]["id"] == other


@pytest.mark.rule("rest-146")
def test_a_deleted_device_is_published_as_forgotten(service_on_each_database: LiveService) -> None:
    device = service_on_each_database.new_device()
    with service_on_each_database.stream(Types="device") as stream:
        assert service_on_each_database.admin.delete(f"/api/v1/devices/{device}").status_code == 204
        assert stream.next()["data"] == {"id": device, "forgotten": True}


@pytest.mark.rule("rest-156")
def test_removing_a_label_from_all_devices_causes_a_resync_of_device_events(service: LiveService) -> None:
    device = service.new_device()
    service.operator.put(f"/api/v1/devices/{device}/labels/north", json={})
    with service.stream(Types="device") as device_stream, service.stream(Types="gateway") as gateway_stream:
        service.operator.delete("/api/v1/labels/north")
        service.admin.post("/api/v1/gateways", json={"mac": A})
        for _ in range(100):
            if device_stream.next()["type"] == "resync":
                break
        else:
            raise AssertionError("no resync was sent")
        assert gateway_stream.next()["type"] == "gateway"


@pytest.mark.rule("rest-146")
def test_claimed_and_released_gateways_are_published(service_on_each_database: LiveService) -> None:
    with service_on_each_database.stream(Types="gateway") as stream:
        service_on_each_database.admin.post("/api/v1/gateways", json={"mac": A})
        event = stream.next()
        gateway = service_on_each_database.viewer.get(f"/api/v1/gateways/{A}").json()
        assert (event["type"], event["data"]) == ("gateway", {**gateway, "cause": "claimed", "devices": 0})
        service_on_each_database.admin.delete(f"/api/v1/gateways/{A}")
        assert stream.next()["data"] == {"mac": A, "deviceId": f"bmac-{A}", "released": True}


def test_a_disconnected_gateway_is_one_event_with_its_number_of_devices(
    service: LiveService,
) -> None:
    service.admin.post("/api/v1/gateways", json={"mac": A})
    service.ingest_and_flush(
        *(heartbeat(service.clock(), device=f"c0ffee00{each:04x}") for each in range(50))
    )
    with service.stream(Types="gateway", Gateway=A) as stream:
        service.call_in_loop(
            lambda: service.api.live.devices.on_gateway_changed(mac_to_int(Mac(A)), devices=range(50))
        )
        event = stream.next()
    assert (event["data"]["mac"], event["data"]["cause"]) == (A, "disconnected")
    assert (event["data"]["devices"], event["data"]["deviceCount"]) == (50, 50)
    assert event["data"]["reportsPerMinute"] > 0


@pytest.mark.rule("rest-147")
@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, {(A, D), (B, D), (A, E), (B, E)}),
        ({"Ids": [f"bmac-{D}"]}, {(A, D), (B, D)}),
        ({"Ids": [f"bmac-{D}", f"bmac-{E}"]}, {(A, D), (B, D), (A, E), (B, E)}),
        ({"Gateway": [A]}, {(A, D), (A, E)}),
        ({"Gateway": [f"bmac-{A.upper()}"], "Ids": [f"bmac-{D}"]}, {(A, D)}),
        ({"Types": ["report", "job"], "gateway": [A, B], "ids": [f"bmac-{E}"]}, {(A, E), (B, E)}),
    ],
    ids=["none", "a device", "devices", "a gateway", "a device and a gateway", "all, in any case"],
)
def test_a_filter_matches_any_of_its_values_and_all_filters_must_match(
    service: LiveService, filters: dict[str, list[str]], expected: set[tuple[str, str]]
) -> None:
    now = service.clock()
    pairs = [(gateway, device) for gateway in (A, B) for device in (D, E)]
    sent = [temperature(now + index, gateway=g, device=d) for index, (g, d) in enumerate(pairs)]
    gateway, device = min(expected)
    query: dict[str, Any] = {"Types": "report", **filters}
    with service.stream(**query) as stream:
        service.ingest(*sent)
        service.ingest(temperature(now, -40, gateway=gateway, device=device, seq=99))
        events = [stream.next()["data"] for _ in expected]
        assert stream.next()["data"]["value"] == -40, "an event did not match the filters"
    assert {(data["gateway"], data["device"].removeprefix("bmac-")) for data in events} == expected


@pytest.mark.rule("rest-147")
@each_row(
    ("query", "field"),
    [
        ("Types=nonsense", "Types"),
        ("Ids=bmac-12", "Ids"),
        ("Ids=", "Ids"),
        ("Gateway=nowhere", "Gateway"),
        ("Jobs=", "Jobs"),
        ("Jobs=12", "Jobs"),
        ("Idz=bmac-c0ffee0000a1", "Idz"),
        ("token=secret", "token"),
        ("Jobs=" + ",".join(map(str, range(1001))), "Jobs"),
    ],
)
def test_an_invalid_filter_is_refused_with_its_name(service: LiveService, query: str, field: str) -> None:
    response = service.viewer.get(f"/api/v1/stream?{query}")
    assert (response.status_code, [each["field"] for each in response.json()["errors"]]) == (400, [field])
