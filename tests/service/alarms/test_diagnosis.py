"""Diagnosis of a device: the first cause that applies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import update

from meshfleet.db.tables import device as device_table
from meshfleet.db.tables import device_state
from meshfleet.db.tables import execution as execution_table
from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.presence_log import PresenceLog
from tests.service.http.running_service import run_service
from tests.service.ingest.messages import mac_to_number
from tests.service.jobs.job_environment import JobEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from tests.service.http.running_service import RunningService


@pytest.fixture
def service(database: Database) -> Iterator[RunningService]:
    with run_service(database) as running:
        yield running


@pytest.fixture
def log(service: RunningService) -> PresenceLog:
    return PresenceLog(service.database, service.clock() - 2 * HOUR * 1000)


STOPPED = "It stopped without a warning; gateway Gateway 1"


def diagnose(service: RunningService, mac: str) -> Any:
    response = service.viewer.get(f"/api/v1/devices/bmac-{mac}/diagnosis")
    assert response.status_code == 200, response.text
    return response.json()


def set_state(log: PresenceLog, mac: str, **values: Any) -> None:
    statement = update(device_state).where(device_state.c.device == mac_to_number(mac)).values(**values)
    log.database.write_now(lambda connection: connection.execute(statement))


@pytest.mark.both_databases
@pytest.mark.rule("rest-275", "rest-294")
def test_the_first_cause_that_applies_is_the_diagnosis(service: RunningService, log: PresenceLog) -> None:
    office, (online, empty, weak, silent, new) = log.add_gateway(1, 5)
    before = log.now
    for mac, values in (
        (empty, {"battery": 2, "battery_at": before, "rssi": -95, "radio_at": before}),
        (weak, {"battery": 80, "battery_at": before, "rssi": -91, "radio_at": before}),
        (silent, {"battery": 80, "battery_at": before, "rssi": -61, "radio_at": before}),
    ):
        set_state(log, mac, reported_at=before, **values)
    log.run(MINUTE)
    for mac in (empty, weak, silent, new):
        log.set_device(mac, office, connected=False)
    set_state(log, new, reported_at=None)
    expected = {
        online: ("online", "certain", "Device 0000 is online.", None),
        empty: (
            "battery-empty",
            "likely",
            "Device 0001 has been offline for 119 min. The battery was at 2 % in its last report.",
            "replace-battery",
        ),
        weak: (
            "weak-signal",
            "likely",
            "Device 0002 has been offline for 119 min. Its signal was very weak: -91 dBm.",
            "improve-signal",
        ),
        silent: (
            "no-warning",
            "unknown",
            f"Device 0003 has been offline for 119 min. {STOPPED} hears 1 other device.",
            "check-device",
        ),
        new: ("never-reported", "certain", "Device 0004 has never reported.", "check-gateway"),
    }
    for mac, (code, certainty, sentence, action) in expected.items():
        found = diagnose(service, mac)
        assert (found["code"], found["certainty"], found["sentence"]) == (code, certainty, sentence)
        assert (found["action"] and found["action"]["code"]) == action
        name = sentence.partition(" has been offline")[0]
        assert found["explanation"] == sentence.removeprefix(f"{name} has been offline for 119 min. ")
    evidence = [each["text"] for each in diagnose(service, empty)["evidence"]]
    assert evidence == [
        "disconnected",
        "signal -95 dBm",
        "last report",
        "gateway Gateway 1 connected",
        "battery 2 %",
    ]

    log.set_gateway(office, connected=False)
    cut_off = diagnose(service, empty)
    assert (cut_off["code"], cut_off["action"]["href"]) == ("gateway-offline", f"/gateways/{office}")
    assert cut_off["explanation"] == "Gateway Gateway 1 is offline."
    assert diagnose(service, office)["code"] == "no-connection"
    log.change(online, connected=False, cause=log.WITH_GATEWAY, gateway=office)
    log.now += MINUTE * 1000
    log.set_gateway(office, connected=True)
    assert (diagnose(service, online)["code"], diagnose(service, silent)["code"]) == (
        "not-back",
        "no-warning",
    )
    assert service.viewer.get("/api/v1/devices/bmac-00000000dead/diagnosis").status_code == 404


@pytest.mark.rule("rest-275")
def test_a_device_that_is_being_updated_is_expected_to_be_silent(
    service: RunningService, log: PresenceLog
) -> None:
    environment = JobEnvironment(service)
    job = environment.any_job()
    (execution,) = service.viewer.get(f"/api/v1/jobs/{job}/executions").json()["items"][:1]
    device = execution["deviceId"].removeprefix("bmac-")
    statement = update(execution_table).values(state="APPLYING", updated_at=service.clock() - MINUTE * 1000)
    service.database.write_now(lambda connection: connection.execute(statement))
    office, _ = log.add_gateway(1, 1)
    set_gateway = update(device_table).where(device_table.c.id == mac_to_number(device))
    service.database.write_now(
        lambda connection: connection.execute(set_gateway.values(gateway=mac_to_number(office)))
    )
    log.change(device, connected=True, cause=log.WITH_GATEWAY, gateway=office)
    log.set_device(device, office, connected=False)
    log.run(30 * MINUTE)
    assert diagnose(service, device)["code"] == "updating"
    assert log.alarms() == []
