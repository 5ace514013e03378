"""Alarms as live events, and the task that evaluates the rules while the service runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.alarms.rules import DEFAULT_TIMES
from meshfleet.service.alarms.runner import AlarmRunner
from tests.service.alarms.presence_log import PresenceLog
from tests.service.live.conftest import service

if TYPE_CHECKING:
    from tests.service.live.live_service import LiveService

__all__ = ["service"]

DAY_MS = 86_400_000


@pytest.mark.rule("rest-274")
def test_an_alarm_is_published_when_it_opens_is_acknowledged_and_ends(service: LiveService) -> None:
    log = PresenceLog(service.database, service.clock())
    office, devices = log.add_gateway(1, 2)
    quick = DEFAULT_TIMES._replace(settling=0, device_offline=0, device_back=0)
    runner = AlarmRunner(
        service.database,
        service.api.live.alarms.mark_changed,
        is_receiving=lambda: True,
        owner=None,
        retention_ms=DAY_MS,
        times=quick,
        now=service.clock,
    )

    def evaluate() -> None:
        service.clock.move(seconds=5)
        service.run_in_loop(runner.evaluate())
        log.now = service.clock()

    service.clock.move(seconds=120)  # until nothing has to settle any more
    evaluate()
    with service.stream(Types="alarm") as stream:
        log.set_device(devices[0], office, connected=False)
        evaluate()
        opened = stream.next()
        assert (opened["type"], opened["data"]["state"]) == ("alarm", "open")
        service.operator.post(f"/api/v1/alarms/{opened['data']['id']}/acknowledge")
        assert stream.next()["data"]["state"] == "acknowledged"
        log.set_device(devices[0], office, connected=True)
        for _ in range(2):
            evaluate()
        ended = stream.next()
        while ended["data"]["state"] != "cleared":
            ended = stream.next()
        assert ended["data"]["id"] == opened["data"]["id"]
        elsewhere = service.viewer.get("/api/v1/alarms", params={"State": "cleared"}).json()
        assert [each["id"] for each in elsewhere["items"]] == [opened["data"]["id"]]


def test_alarms_are_deleted_when_their_retention_has_ended(service: LiveService) -> None:
    log = PresenceLog(service.database, service.clock())
    office, devices = log.add_gateway(2, 1)
    runner = AlarmRunner(
        service.database,
        lambda _changed: None,
        is_receiving=lambda: True,
        owner=None,
        retention_ms=DAY_MS,
        now=lambda: log.now,
    )
    log.set_device(devices[0], office, connected=False)
    log.run(660)
    log.set_device(devices[0], office, connected=True)
    log.run(180)
    number = log.alarms()[-1].id
    service.run_in_loop(runner.delete_old())
    assert number in [each.id for each in log.alarms()]
    log.now += 2 * DAY_MS
    service.run_in_loop(runner.delete_old())
    assert number not in [each.id for each in log.alarms()]


def test_nothing_opens_while_reports_cannot_be_received_and_shortly_after(service: LiveService) -> None:
    log = PresenceLog(service.database, service.clock())
    office, _ = log.add_gateway(3)
    log.add_gateway(4)
    broker = {"works": False}
    runner = AlarmRunner(
        service.database,
        lambda _changed: None,
        is_receiving=lambda: broker["works"],
        owner=None,
        retention_ms=DAY_MS,
        now=lambda: log.now,
    )

    def run(minutes: int) -> None:
        for _ in range(2 * minutes):
            log.now += 30_000
            service.run_in_loop(runner.evaluate())

    told = len(log.told())
    log.set_gateway(office, connected=False)
    run(15)
    broker["works"] = True
    run(1)
    assert len(log.told()) == told
    run(2)
    assert len(log.told()) == told + 1
