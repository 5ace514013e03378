"""Alarms over REST: lists, members, events, acknowledgments, and what needs attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from meshfleet.db.tables import device
from meshfleet.protocol.ids import to_device_id
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.presence_log import PresenceLog
from tests.service.http.running_service import run_service
from tests.service.ingest.messages import mac_to_number

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from tests.service.http.running_service import RunningService


@pytest.fixture
def service(database: Database) -> Iterator[RunningService]:
    with run_service(database) as running:
        yield running


def get(service: RunningService, path: str, **query: Any) -> Any:
    response = service.viewer.get(f"/api/v1{path}", params=query)
    assert response.status_code == 200, response.text
    return response.json()


def list_sentences(service: RunningService, **query: Any) -> list[str]:
    return [each["sentence"] for each in get(service, "/alarms", **query)["items"]]


@pytest.mark.both_databases
@pytest.mark.rule("rest-269", "rest-270", "rest-271", "rest-272", "rest-273")
def test_a_fault_is_shown_from_its_beginning_to_its_end(service: RunningService) -> None:
    assert get(service, "/attention")["verdict"]["tone"] == "unknown"
    log = PresenceLog(service.database)
    office, devices = log.add_gateway(1, 24)
    log.add_gateway(2)
    log.run(MINUTE)
    assert get(service, "/alarms")["items"] == []
    log.set_gateway(office, connected=False)
    log.change(*devices, connected=False, cause=log.WITH_GATEWAY, gateway=office)
    log.run(6 * MINUTE)

    (alarm,) = get(service, "/alarms")["items"]
    path = f"/alarms/{alarm['id']}"
    assert alarm == get(service, path)
    assert alarm["sentence"] == "Gateway Gateway 1 is offline. 24 devices are cut off with it."
    assert (alarm["rule"], alarm["severity"], alarm["state"]) == ("gateway-offline", "critical", "open")
    assert alarm["action"]["href"] == f"/gateways/{office}"
    assert alarm["subject"] == {"kind": "gateway", "id": f"bmac-{office}", "name": "Gateway 1"}
    assert (alarm["memberCount"], alarm["affectedDevices"]) == (1, 24)
    assert alarm["cause"] == {"code": "no-connection", "params": {"devices": 24, "gateway": office}}
    (member,) = get(service, f"{path}/members")["items"]
    assert (member["id"], member["state"]) == (f"bmac-{office}", "active")
    log.change(*devices[:20], connected=True, cause=log.WITH_GATEWAY, gateway=office)
    log.set_gateway(office, connected=True)
    log.run(MINUTE)
    assert get(service, path)["sentence"].endswith("and is watched.")
    log.run(2 * MINUTE)
    assert list_sentences(service) == []
    assert list_sentences(service, State="cleared") == [
        "Gateway Gateway 1 is back after 8 min. 20 of 24 devices are back; 4 have not reported yet."
    ]
    events = get(service, f"{path}/events")["items"]
    assert [each["kind"] for each in events] == ["cleared", "recovering", "opened"]


def test_the_state_of_the_fleet_is_one_sentence(service: RunningService) -> None:
    log = PresenceLog(service.database, service.clock())

    def run(seconds: int) -> None:
        log.run(seconds)
        service.clock.move(seconds=seconds)

    assert get(service, "/attention")["verdict"] == {
        "tone": "unknown",
        "sentence": "No gateway is set up yet. Claim the first one.",
    }
    office, devices = log.add_gateway(1, 3)
    assert get(service, "/attention")["verdict"]["sentence"] == "The state of the fleet is not known yet."
    run(3 * MINUTE)
    assert get(service, "/attention")["verdict"] == {"tone": "ok", "sentence": "All 4 devices are online."}
    log.set_device(devices[0], office, connected=False)
    run(11 * MINUTE)
    attention = get(service, "/attention")
    assert attention["verdict"] == {
        "tone": "warning",
        "sentence": "3 of 4 devices are online. 1 thing needs you.",
    }
    assert attention["counts"] == {"devices": 4, "connected": 3, "gateways": 1, "gatewaysConnected": 1}
    assert [each["sentence"] for each in attention["items"]] == ["Device 0000 stopped without a warning."]
    service.clock.move(seconds=HOUR)
    assert get(service, "/attention")["verdict"]["tone"] == "unknown"


@pytest.mark.rule("rest-271")
def test_an_alarm_is_acknowledged_with_a_note(service: RunningService) -> None:
    log = PresenceLog(service.database)
    office, devices = log.add_gateway(1, 3)
    log.set_device(devices[0], office, connected=False)
    log.run(11 * MINUTE)
    path = f"/api/v1/alarms/{get(service, '/alarms')['items'][0]['id']}"
    assert service.viewer.post(f"{path}/acknowledge").status_code == 403
    for _ in range(2):
        acknowledged = service.operator.post(f"{path}/acknowledge").json()
        assert (acknowledged["state"], acknowledged["newSinceAcknowledged"]) == ("acknowledged", 0)
        assert acknowledged["acknowledged"]["by"].startswith("api-key: ")
    noted = service.operator.post(f"{path}/notes", json={"text": "On my way <b>now</b>"})
    assert noted.status_code == 200
    assert service.operator.post(f"{path}/notes", json={"text": ""}).status_code == 400
    assert list_sentences(service, State="open") == []
    assert len(list_sentences(service, State=["open", "acknowledged"])) == 1
    assert service.operator.post(f"{path}/unacknowledge").json()["acknowledged"] is None
    log.set_device(devices[0], office, connected=True)
    log.run(5 * MINUTE)
    over = service.operator.post(f"{path}/acknowledge")
    assert (over.status_code, over.json()["code"]) == (409, "alarm-cleared")
    kinds = [each["kind"] for each in get(service, path.removeprefix("/api/v1") + "/events")["items"]]
    assert kinds == ["cleared", "recovering", "unacknowledged", "note", "acknowledged", "opened"]
    actions = [each["action"] for each in service.admin.get("/api/v1/audit").json()["items"]]
    assert {"alarm.acknowledge", "alarm.unacknowledge", "alarm.note"} <= set(actions)


@pytest.mark.rule("rest-269")
def test_alarms_are_filtered_and_read_page_by_page(service: RunningService) -> None:
    log = PresenceLog(service.database)
    gateways = [log.add_gateway(number, 2) for number in range(1, 9)]
    for office, devices in gateways[:4]:
        log.set_device(devices[0], office, connected=False)
    log.run(11 * MINUTE)
    log.set_gateway(gateways[7][0], connected=False)
    log.run(6 * MINUTE)
    assert [each["severity"] for each in get(service, "/alarms")["items"]] == ["warning"] * 5
    first = get(service, "/alarms", MaxResults=2)
    second = get(service, "/alarms", MaxResults=2, NextToken=first["nextToken"])
    listed = [each["id"] for each in (*first["items"], *second["items"])]
    assert listed == ["alarm-5", "alarm-4", "alarm-3", "alarm-2"]
    assert len(list_sentences(service, Rule="device-offline")) == 4
    assert len(list_sentences(service, Gateway=gateways[1][0])) == 1
    assert len(list_sentences(service, Device=to_device_id(gateways[2][1][0]))) == 1  # type: ignore[arg-type]
    assert list_sentences(service, Severity="critical") == []
    assert len(list_sentences(service, From="2000-01-01T00:00:00Z", To="2100-01-01T00:00:00Z")) == 5
    for name, value in (
        ("State", "lost"),
        ("Severity", "high"),
        ("Rule", "x"),
        ("Gateway", "y"),
        ("Device", "z"),
    ):
        refused = service.viewer.get("/api/v1/alarms", params={name: value})
        assert refused.json()["errors"][0]["field"] == name
    for unknown in ("alarm-99", "alarm-0", "job-1", "alarm-1%20"):
        for action in ("", "/members", "/events"):
            assert service.viewer.get(f"/api/v1/alarms/{unknown}{action}").status_code == 404


def test_a_name_with_markup_is_only_text(service: RunningService) -> None:
    log = PresenceLog(service.database)
    office, devices = log.add_gateway(1, 1)
    name = "<script>alert(1)</script>\u202e"
    renamed = update(device).where(device.c.id == mac_to_number(devices[0])).values(name=name)
    service.database.write_now(lambda connection: connection.execute(renamed))
    log.set_device(devices[0], office, connected=False)
    log.run(11 * MINUTE)
    assert list_sentences(service) == [f"{name} stopped without a warning."]
