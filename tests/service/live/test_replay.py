"""Coming again: what was missed is told, or that it cannot be told any more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac, mac_to_int
from tests.row_tables import each_row
from tests.service.ingest.messages import D, E, temperature
from tests.service.live.live_service import run_live_service

if TYPE_CHECKING:
    from meshfleet.db import Database
    from tests.service.live.live_service import LiveService


def _values(stage: LiveService, after: str, count: int, **filters: Any) -> list[Any]:
    with stage.stream(after=after, **filters) as stream:
        return [stream.next()["data"].get("value", "none") for _ in range(count)]


@pytest.mark.rule("rest-149")
def test_a_stream_goes_on_behind_the_last_event_that_was_heard(stage: LiveService) -> None:
    now = stage.clock()
    with stage.stream(Types="report") as stream:
        stage.ingest(temperature(now, 1))
        last = stream.next()["id"]
    for value in range(2, 5):
        stage.ingest(temperature(now + value, value))
    with stage.stream(after=last, Types="report") as stream:
        stage.ingest(temperature(now + 5, 5))
        told = [stream.next() for _ in range(4)]
    assert [event["data"]["value"] for event in told] == [2, 3, 4, 5]
    assert len({event["id"] for event in told} | {last}) == 5


@pytest.mark.rule("rest-149")
def test_a_conversation_goes_on_behind_the_last_event_that_was_heard(stage: LiveService) -> None:
    now = stage.clock()
    with stage.open_authenticated() as talk:
        talk.subscribe(Types=["report"])
        stage.ingest(temperature(now, 1))
        last = talk.next()["id"]
    stage.ingest(temperature(now + 2, 2))
    with stage.open_authenticated() as talk:
        talk.send(subscribe={"types": ["report"]}, lastEventId=last)
        assert talk.next()["data"]["value"] == 2


@pytest.mark.rule("rest-149")
def test_who_resumes_with_narrower_filters_gets_what_these_choose(stage: LiveService) -> None:
    now = stage.clock()
    with stage.stream(Types="report") as stream:
        stage.ingest(temperature(now, 1))
        last = stream.next()["id"]
    stage.ingest(temperature(now + 1, 2), temperature(now + 1, 3, device=E))
    stage.ingest(temperature(now + 2, 4, device=E))
    assert _values(stage, last, 2, Types="report", Ids=f"bmac-{E}") == [3, 4]


@pytest.mark.rule("rest-156")
def test_who_resumes_with_wider_filters_is_told_to_resync_since_nobody_kept_the_rest(
    stage: LiveService,
) -> None:
    now = stage.clock()
    with stage.stream(Types="report", Ids=f"bmac-{D}") as stream:
        stage.ingest(temperature(now, 1))
        last = stream.next()["id"]
    stage.ingest(temperature(now + 1, 2, device=E))
    with stage.stream(after=last, Types="report") as stream:
        stage.ingest(temperature(now + 2, 3))
        assert [stream.next()["type"] for _ in range(2)] == ["resync", "report"]


@pytest.mark.rule("rest-156")
def test_that_somebody_else_wants_the_rest_by_now_does_not_bring_back_what_nobody_kept(
    stage: LiveService,
) -> None:
    now = stage.clock()
    with stage.stream(Types="report", Ids=f"bmac-{D}") as stream:
        stage.ingest(temperature(now, 1))
        last = stream.next()["id"]
    stage.ingest(temperature(now + 1, 2, device=E))
    with stage.stream(Types="report"), stage.stream(after=last, Types="report") as stream:
        assert stream.next()["type"] == "resync"


@pytest.mark.rule("rest-156")
@each_row("after", ["", "nonsense", "0-1", "9" * 5000, "-"])
def test_who_comes_with_an_id_that_nobody_knows_is_told_to_resync_first(
    stage: LiveService, after: str
) -> None:
    with stage.stream(after=after, Types="report") as stream:
        stage.ingest(temperature(stage.clock(), 1))
        first, second = stream.next(), stream.next()
    assert (first["type"], second["type"]) == ("resync", "report")
    assert first["data"]["reason"]


@pytest.mark.rule("rest-156")
def test_an_id_that_is_still_to_come_is_not_known(stage: LiveService) -> None:
    with stage.stream(Types="report") as stream:
        stage.ingest(temperature(stage.clock(), 1))
        run, _, number = stream.next()["id"].partition("-")
    with stage.stream(after=f"{run}-{int(number) + 9}", Types="report") as stream:
        assert stream.next()["type"] == "resync"


@pytest.mark.rule("rest-156")
def test_after_a_restart_of_the_service_listeners_are_told_to_resync(sqlite_database: Database) -> None:
    with run_live_service(sqlite_database) as before, before.stream(Types="report") as stream:
        before.ingest(temperature(before.clock(), 1))
        last = stream.next()["id"]
    with run_live_service(sqlite_database) as after, after.stream(after=last, Types="report") as stream:
        assert stream.next()["type"] == "resync"
    sqlite_database.close()


@pytest.mark.rule("rest-149")
def test_a_resync_can_be_resumed_behind_too(stage: LiveService) -> None:
    with stage.stream(after="unknown", Types="report") as stream:
        last = stream.next()["id"]
    stage.ingest(temperature(stage.clock(), 1))
    assert _values(stage, last, 1, Types="report") == [1]


@pytest.mark.rule("rest-149")
def test_of_a_device_that_changed_several_times_only_its_last_state_is_told_again(stage: LiveService) -> None:
    device, other = stage.new_device(), stage.new_device()
    rename = f"/api/v1/devices/{device}/friendly-name"
    with stage.stream(Types="device") as stream:
        stage.call_in_loop(
            lambda: stage.api.live.devices.mark_changed([mac_to_int(Mac(other.removeprefix("bmac-")))])
        )
        first = stream.next()["id"]
        for name in ("one", "two", "three"):
            stage.operator.put(rename, json={"name": name})
            assert stream.next()["data"]["friendlyName"] == name
    with stage.stream(after=first, Types="device") as stream:
        stage.call_in_loop(
            lambda: stage.api.live.devices.mark_changed([mac_to_int(Mac(other.removeprefix("bmac-")))])
        )
        assert stream.next()["data"]["friendlyName"] == "three"
        assert stream.next()["data"]["id"] == other
