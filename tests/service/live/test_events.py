"""What is told: reports, devices and gateways, in the words of the REST interface."""

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


def _shown(stage: LiveService, device: str) -> Any:
    answer = stage.viewer.get("/api/v1/devices", params={"Ids": device, "Include": "live"})
    (only,) = answer.json()["items"]
    return only


@pytest.mark.rule("rest-146", "rest-147", "rest-148")
def test_a_rename_is_told_as_the_device_in_the_list(on_both: LiveService) -> None:
    device = on_both.new_device()
    with on_both.stream(Types="device") as stream:
        on_both.operator.put(f"/api/v1/devices/{device}/friendly-name", json={"name": "Kuno"})
        event = stream.next()
    assert set(event) == {"id", "type", "time", "data"}
    assert event["type"] == "device"
    assert event["data"]["friendlyName"] == "Kuno"
    assert event["data"] == _shown(on_both, device)


@pytest.mark.rule("rest-151")
def test_both_doors_tell_the_same_events(stage: LiveService) -> None:
    device = stage.new_device()
    with stage.open_authenticated() as talk, stage.stream(Types="device") as stream:
        talk.subscribe(Types=["device"])
        stage.operator.put(f"/api/v1/devices/{device}/labels/north", json={})
        assert talk.next() == stream.next()


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
def test_a_report_is_told_as_the_sample_in_the_list(stage: LiveService, sent: Any) -> None:
    with stage.stream(Types="report") as stream:
        stage.ingest(sent)
        data = stream.next()["data"]
    (row,) = stage.viewer.get(f"/api/v1/devices/bmac-{D}/samples?From=2000-01-01T00:00:00.000Z").json()[
        "items"
    ]
    assert data.pop("device") == f"bmac-{D}"
    assert data == row


@pytest.mark.rule("rest-146")
def test_a_value_that_was_spelt_over_several_lines_is_told_whole(stage: LiveService) -> None:
    with stage.stream(Types="report") as stream:
        odd = '"one\\nline\u2028\u0085"'
        stage.ingest(
            build_raw_report(
                "event-decoded/odd", stage.clock(), f'"seq":1,"value":{{"a":\n[1,\r\n2],"b":\r{odd}}}'
            )
        )
        assert stream.next()["data"]["value"] == {"a": [1, 2], "b": "one\nline\u2028\u0085"}


@pytest.mark.rule("rest-146")
def test_heartbeats_links_and_dfu_mode_are_reports_too(stage: LiveService) -> None:
    now = stage.clock()
    with stage.stream(Types="report") as stream:
        stage.ingest(heartbeat(now, 2), link(now, -61), dfu(now))
        told = [stream.next()["data"] for _ in range(3)]
    common = {"device": f"bmac-{D}", "gateway": A, "time": told[0]["time"]}
    assert told == [
        {**common, "kind": "heartbeat", "status": 2},
        {**common, "kind": "rssi", "parent": P, "rssi": -61, "unreachable": False},
        {**common, "kind": "dfu", "parent": P, "rssi": -50, "unreachable": False},
    ]


@pytest.mark.rule("rest-146")
def test_a_report_changes_its_device_once_that_is_written(on_both: LiveService) -> None:
    with on_both.stream(Types="device") as stream:
        on_both.ingest_and_flush(heartbeat(on_both.clock(), 2), link(on_both.clock(), -61))
        data = stream.next()["data"]
    assert (data["id"], data["status"], data["live"]["rssi"]) == (f"bmac-{D}", 2, -61)
    assert data == _shown(on_both, f"bmac-{D}")


def test_however_often_a_device_changes_at_once_it_is_told_once_as_it_is(stage: LiveService) -> None:
    device, other = stage.new_device(), stage.new_device()
    number = mac_to_int(Mac(device.removeprefix("bmac-")))

    def touch_often() -> None:
        for _ in range(100):
            stage.api.live.devices.mark_changed([number])

    with stage.stream(Types="device", Ids=[device, other]) as stream:
        stage.call_in_loop(touch_often)
        assert stream.next()["data"]["id"] == device
        stage.call_in_loop(
            lambda: stage.api.live.devices.mark_changed([mac_to_int(Mac(other.removeprefix("bmac-")))])
        )
        assert stream.next()["data"]["id"] == other


@pytest.mark.rule("rest-146")
def test_a_forgotten_device_is_told_as_such(on_both: LiveService) -> None:
    device = on_both.new_device()
    with on_both.stream(Types="device") as stream:
        assert on_both.admin.delete(f"/api/v1/devices/{device}").status_code == 204
        assert stream.next()["data"] == {"id": device, "forgotten": True}


@pytest.mark.rule("rest-156")
def test_a_label_that_is_removed_everywhere_calls_for_a_resync_of_devices_alone(stage: LiveService) -> None:
    device = stage.new_device()
    stage.operator.put(f"/api/v1/devices/{device}/labels/north", json={})
    with stage.stream(Types="device") as concerned, stage.stream(Types="gateway") as other:
        stage.operator.delete("/api/v1/labels/north")
        stage.admin.post("/api/v1/gateways", json={"mac": A})
        for _ in range(100):
            if concerned.next()["type"] == "resync":
                break
        else:
            raise AssertionError("it is not told")
        assert other.next()["type"] == "gateway"


@pytest.mark.rule("rest-146")
def test_a_claimed_gateway_is_told_as_it_is_shown_and_a_released_one_as_such(on_both: LiveService) -> None:
    with on_both.stream(Types="gateway") as stream:
        on_both.admin.post("/api/v1/gateways", json={"mac": A})
        event = stream.next()
        shown = on_both.viewer.get(f"/api/v1/gateways/{A}").json()
        assert (event["type"], event["data"]) == ("gateway", {**shown, "cause": "claimed", "devices": 0})
        on_both.admin.delete(f"/api/v1/gateways/{A}")
        assert stream.next()["data"] == {"mac": A, "deviceId": f"bmac-{A}", "released": True}


def test_a_gateway_that_goes_is_one_event_with_its_cause_however_many_devices_go_with_it(
    stage: LiveService,
) -> None:
    stage.admin.post("/api/v1/gateways", json={"mac": A})
    stage.ingest_and_flush(*(heartbeat(stage.clock(), device=f"c0ffee00{each:04x}") for each in range(50)))
    with stage.stream(Types="gateway", Gateway=A) as stream:
        stage.call_in_loop(
            lambda: stage.api.live.devices.gateway_changed(mac_to_int(Mac(A)), devices=range(50))
        )
        event = stream.next()
    assert (event["data"]["mac"], event["data"]["cause"]) == (A, "disconnected")
    assert (event["data"]["devices"], event["data"]["deviceCount"]) == (50, 50)
    assert event["data"]["reportsPerMinute"] > 0


@pytest.mark.rule("rest-147")
@pytest.mark.parametrize(
    ("filters", "wanted"),
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
def test_a_filter_chooses_any_of_its_values_and_several_must_all_hold(
    stage: LiveService, filters: dict[str, list[str]], wanted: set[tuple[str, str]]
) -> None:
    now = stage.clock()
    several = [(gateway, device) for gateway in (A, B) for device in (D, E)]
    sent = [temperature(now + place, gateway=g, device=d) for place, (g, d) in enumerate(several)]
    gateway, device = min(wanted)
    chosen: dict[str, Any] = {"Types": "report", **filters}
    with stage.stream(**chosen) as stream:
        stage.ingest(*sent)
        stage.ingest(temperature(now, -40, gateway=gateway, device=device, seq=99))
        told = [stream.next()["data"] for _ in wanted]
        assert stream.next()["data"]["value"] == -40, "more is told than is wanted"
    assert {(data["gateway"], data["device"].removeprefix("bmac-")) for data in told} == wanted


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
def test_a_wrong_filter_is_refused_by_its_name(stage: LiveService, query: str, field: str) -> None:
    answer = stage.viewer.get(f"/api/v1/stream?{query}")
    assert (answer.status_code, [each["field"] for each in answer.json()["errors"]]) == (400, [field])
