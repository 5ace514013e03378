"""Silences over REST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.times import format_millis
from tests.service.alarms.presence_log import PresenceLog
from tests.service.http.running_service import run_service
from tests.service.notifications.notifier_harness import NotifierHarness

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db import Database
    from tests.service.http.running_service import RunningService

PATH = "/api/v1/silences"
HOUR = 3600
GATEWAY = "02005e000001"


@pytest.fixture
def service(database: Database) -> Iterator[RunningService]:
    with run_service(database) as running:
        yield running


def build(service: RunningService, start: int = 0, end: int = HOUR, **fields: Any) -> dict[str, Any]:
    """Build the body of a silence between two times, in seconds from now."""
    now = service.clock()
    times = {"from": format_millis(now + start * 1000), "until": format_millis(now + end * 1000)}
    return {"scope": {"gateways": [GATEWAY]}, **times, **fields}


@pytest.mark.rule("rest-296")
def test_a_silence_is_created_changed_and_deleted(service: RunningService) -> None:
    body = build(service, note=" Works ")
    assert service.viewer.post(PATH, json=body).status_code == 403
    created = service.operator.post(PATH, json=body)
    assert created.status_code == 201, created.text
    shown = created.json()
    assert shown == service.viewer.get(f"{PATH}/{shown['id']}").json()
    assert [shown] == service.viewer.get(PATH).json()["items"]
    expected = ("active", body["until"], "Works", 0, 1, "UTC", None)
    keys = ("state", "activeUntil", "note", "alarms", "version", "timeZone", "nextFrom")
    assert tuple(shown[name] for name in keys) == expected
    assert shown["scope"] == {"devices": [], "gateways": [GATEWAY], "labels": [], "rules": []}
    later = build(
        service,
        HOUR,
        3 * HOUR,
        repeat="daily",
        repeatUntil=format_millis(service.clock() + 90 * 24 * HOUR * 1000),
        timeZone="Europe/Zurich",
    )
    changed = service.operator.put(f"{PATH}/{shown['id']}", json=later).json()
    assert (changed["state"], changed["nextFrom"], changed["version"]) == ("pending", later["from"], 2)
    assert service.operator.delete(f"{PATH}/{shown['id']}").status_code == 204
    assert service.viewer.get(f"{PATH}/{shown['id']}").status_code == 404
    assert service.viewer.get(f"{PATH}/silence-x").status_code == 404
    actions = [each["action"] for each in service.admin.get("/api/v1/audit").json()["items"]]
    assert actions[:3] == ["silence.delete", "silence.change", "silence.create"]


@pytest.mark.rule("rest-296")
def test_wrong_times_and_scopes_are_named(service: RunningService) -> None:
    day, in_a_day = 24 * HOUR, format_millis(service.clock() + 24 * HOUR * 1000)
    rows: tuple[tuple[dict[str, Any], list[str]], ...] = (
        (build(service, scope={}), ["scope"]),
        (build(service, scope={"rules": ["disk", "fire"]}), ["scope.rules[1]"]),
        (build(service, scope={"labels": ["a", " "]}), ["scope.labels[1]"]),
        (build(service, timeZone="Mars/Base"), ["timeZone"]),
        (build(service, 0, 59), ["until"]),
        (build(service, 0, 91 * day), ["until"]),
        (build(service, -2 * HOUR, -HOUR), ["until"]),
        (build(service) | {"from": "noon"}, ["from"]),
        (build(service, repeat="daily"), ["repeatUntil"]),
        (build(service, repeatUntil=in_a_day), ["repeatUntil"]),
        (build(service, 0, 2 * day, repeat="daily", repeatUntil=in_a_day), ["until", "repeatUntil"]),
        (build(service, repeat="weekly", repeatUntil=format_millis(2**42)), ["repeatUntil"]),
    )
    wrong = {}
    for body, expected in rows:
        response = service.operator.post(PATH, json=body)
        fields = [each["field"] for each in response.json().get("errors", [])]
        if response.status_code != 400 or fields != expected:
            wrong[str(body)] = response.text
    assert wrong == {}
    endless = {name: value for name, value in build(service).items() if name != "until"}
    assert service.operator.post(PATH, json=endless).status_code == 400


@pytest.mark.anyio
@pytest.mark.rule("rest-297")
async def test_an_alarm_that_a_window_silences_is_not_told_by_its_own_button(
    service: RunningService,
) -> None:
    log = PresenceLog(service.database, service.clock())
    office, devices = log.add_gateway(1, 2)
    log.set_device(devices[0], office, connected=False)
    log.run(11 * 60)
    service.clock.move(seconds=11 * 60)
    silence = service.operator.post(PATH, json=build(service)).json()["id"]
    await NotifierHarness(service.database, service.clock).notifier.run_once()
    assert service.viewer.get("/api/v1/attention").json()["hidden"] == {"silenced": 1, "silences": 1}
    alarm = service.viewer.get("/api/v1/alarms").json()["items"][0]
    assert alarm["silencedBy"] == silence
    assert service.viewer.get(f"{PATH}/{silence}").json()["alarms"] == 1
    refused = service.operator.post(f"/api/v1/alarms/{alarm['id']}/unsilence")
    assert (refused.status_code, silence in refused.json()["detail"]) == (409, True)
    assert service.operator.delete(f"{PATH}/{silence}").status_code == 204
    await NotifierHarness(service.database, service.clock).notifier.run_once()
    assert service.viewer.get("/api/v1/attention").json()["hidden"]["silenced"] == 0
