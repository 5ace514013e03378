"""Silences of alarms over REST."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.service.alarms.alarm_harness import HOUR, MINUTE
from tests.service.alarms.presence_log import PresenceLog
from tests.service.http.running_service import run_service

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


def list_ids(service: RunningService, *states: str) -> list[str]:
    return [each["id"] for each in get(service, "/alarms", State=states)["items"]]


@pytest.mark.both_databases
@pytest.mark.rule("rest-281")
def test_a_silenced_alarm_is_hidden_for_a_while(service: RunningService) -> None:
    log = PresenceLog(service.database, service.clock())
    for number in (1, 2):
        office, devices = log.add_gateway(number, 2)
        log.set_device(devices[0], office, connected=False)
    log.run(11 * MINUTE)
    service.clock.move(seconds=11 * MINUTE)
    silenced, other = [each["id"] for each in get(service, "/attention")["items"]]
    path = f"/api/v1/alarms/{silenced}"
    before = service.viewer.get(path).json()
    assert (before["silencedUntil"], before["silencedBy"]) == (None, None)

    assert service.viewer.post(f"{path}/silence", json={"seconds": 60}).status_code == 403
    answer = service.operator.post(f"{path}/silence", json={"seconds": HOUR, "note": "Works on the roof"})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert body["silencedBy"].startswith("api-key: ")
    assert (body["state"], body["version"]) == ("open", before["version"] + 1)
    assert body["silencedUntil"] > before["openedAt"]

    attention = get(service, "/attention")
    assert [each["id"] for each in attention["items"]] == [other]
    assert (attention["hidden"], attention["more"]) == ({"silenced": 1, "silences": 1}, 0)
    assert attention["verdict"]["sentence"] == "4 of 6 devices are online. 1 thing needs you."
    assert list_ids(service, "silenced") == [silenced]
    assert list_ids(service, "open") == [silenced, other], "a silence is not a state"
    service.operator.post(f"/api/v1/alarms/{other}/acknowledge")
    assert list_ids(service, "silenced", "acknowledged") == [silenced, other]

    service.clock.move(seconds=HOUR)
    assert list_ids(service, "silenced") == []
    assert service.viewer.get(path).json()["silencedUntil"] is None
    assert get(service, "/attention")["hidden"] == {"silenced": 0, "silences": 0}
    kinds = [each["kind"] for each in get(service, f"/alarms/{silenced}/events")["items"]]
    assert kinds == ["note", "silenced", "opened"]


@pytest.mark.rule("rest-281")
def test_a_silence_is_ended_and_an_alarm_that_is_over_has_none(service: RunningService) -> None:
    log = PresenceLog(service.database, service.clock())
    office, devices = log.add_gateway(1, 2)
    log.set_device(devices[0], office, connected=False)
    log.run(11 * MINUTE)
    (alarm,) = list_ids(service, "open")
    path = f"/api/v1/alarms/{alarm}"
    for seconds in (59, 90 * 24 * HOUR + 1, 60.5, None):
        assert service.operator.post(f"{path}/silence", json={"seconds": seconds}).status_code == 400
    version = service.operator.post(f"{path}/unsilence").json()["version"]
    service.operator.post(f"{path}/silence", json={"seconds": 90 * 24 * HOUR})
    for _ in range(2):
        ended = service.operator.post(f"{path}/unsilence").json()
        assert (ended["silencedUntil"], ended["version"]) == (None, version + 2)
    log.set_device(devices[0], office, connected=True)
    log.run(5 * MINUTE)
    for action, body in (("silence", {"seconds": 60}), ("unsilence", None)):
        refused = service.operator.post(f"{path}/{action}", json=body)
        assert (refused.status_code, refused.json()["code"]) == (409, "alarm-cleared")
    actions = [each["action"] for each in service.admin.get("/api/v1/audit").json()["items"]]
    assert actions[:2] == ["alarm.unsilence", "alarm.silence"]
    assert service.operator.post("/api/v1/alarms/alarm-99/silence", json={"seconds": 60}).status_code == 404
