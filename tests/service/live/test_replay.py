"""Resumed subscriptions: missed events are replayed, or a resync is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.protocol.ids import Mac, mac_to_int
from tests.row_tables import each_row
from tests.service.ingest.messages import D, E, temperature
from tests.service.live.live_service import LiveService, run_live_service

if TYPE_CHECKING:
    from meshfleet.db import Database


def _resume_and_read_values(service: LiveService, after: str, count: int, **filters: Any) -> list[Any]:
    with service.stream(after=after, **filters) as stream:
        return [stream.next()["data"].get("value", "none") for _ in range(count)]


@pytest.mark.rule("rest-149")
def test_a_stream_resumes_after_the_last_event_id(service: LiveService) -> None:
    now = service.clock()
    with service.stream(Types="report") as stream:
        service.ingest(temperature(now, 1))
        last_id = stream.next()["id"]
    for value in range(2, 5):
        service.ingest(temperature(now + value, value))
    with service.stream(after=last_id, Types="report") as stream:
        service.ingest(temperature(now + 5, 5))
        events = [stream.next() for _ in range(4)]
    assert [event["data"]["value"] for event in events] == [2, 3, 4, 5]
    assert len({event["id"] for event in events} | {last_id}) == 5


@pytest.mark.rule("rest-149")
def test_a_websocket_resumes_after_the_last_event_id(service: LiveService) -> None:
    now = service.clock()
    with service.open_authenticated() as websocket:
        websocket.subscribe(Types=["report"])
        service.ingest(temperature(now, 1))
        last_id = websocket.next()["id"]
    service.ingest(temperature(now + 2, 2))
    with service.open_authenticated() as websocket:
        websocket.send(subscribe={"types": ["report"]}, lastEventId=last_id)
        assert websocket.next()["data"]["value"] == 2


@pytest.mark.rule("rest-149")
def test_resuming_with_narrower_filters_replays_their_events(service: LiveService) -> None:
    now = service.clock()
    with service.stream(Types="report") as stream:
        service.ingest(temperature(now, 1))
        last_id = stream.next()["id"]
    service.ingest(temperature(now + 1, 2), temperature(now + 1, 3, device=E))
    service.ingest(temperature(now + 2, 4, device=E))
    assert _resume_and_read_values(service, last_id, 2, Types="report", Ids=f"bmac-{E}") == [3, 4]


@pytest.mark.rule("rest-156")
def test_resuming_with_wider_filters_causes_a_resync(
    service: LiveService,
) -> None:
    now = service.clock()
    with service.stream(Types="report", Ids=f"bmac-{D}") as stream:
        service.ingest(temperature(now, 1))
        last_id = stream.next()["id"]
    service.ingest(temperature(now + 1, 2, device=E))
    with service.stream(after=last_id, Types="report") as stream:
        service.ingest(temperature(now + 2, 3))
        assert [stream.next()["type"] for _ in range(2)] == ["resync", "report"]


@pytest.mark.rule("rest-156")
def test_events_that_matched_no_filter_cannot_be_replayed_later(
    service: LiveService,
) -> None:
    now = service.clock()
    with service.stream(Types="report", Ids=f"bmac-{D}") as stream:
        service.ingest(temperature(now, 1))
        last_id = stream.next()["id"]
    service.ingest(temperature(now + 1, 2, device=E))
    with service.stream(Types="report"), service.stream(after=last_id, Types="report") as stream:
        assert stream.next()["type"] == "resync"


@pytest.mark.rule("rest-156")
@each_row("after", ["", "nonsense", "0-1", "9" * 5000, "-"])
def test_resuming_with_an_unknown_id_causes_a_resync(service: LiveService, after: str) -> None:
    with service.stream(after=after, Types="report") as stream:
        service.ingest(temperature(service.clock(), 1))
        first, second = stream.next(), stream.next()
    assert (first["type"], second["type"]) == ("resync", "report")
    assert first["data"]["reason"]


@pytest.mark.rule("rest-156")
def test_an_id_from_the_future_is_unknown(service: LiveService) -> None:
    with service.stream(Types="report") as stream:
        service.ingest(temperature(service.clock(), 1))
        run_id, _, number = stream.next()["id"].partition("-")
    with service.stream(after=f"{run_id}-{int(number) + 9}", Types="report") as stream:
        assert stream.next()["type"] == "resync"


@pytest.mark.rule("rest-156")
def test_resuming_after_a_restart_causes_a_resync(sqlite_database: Database) -> None:
    with run_live_service(sqlite_database) as first_run, first_run.stream(Types="report") as stream:
        first_run.ingest(temperature(first_run.clock(), 1))
        last_id = stream.next()["id"]
    with (
        run_live_service(sqlite_database) as second_run,
        second_run.stream(after=last_id, Types="report") as stream,
    ):
        assert stream.next()["type"] == "resync"


@pytest.mark.rule("rest-149")
def test_a_stream_can_resume_after_a_resync(service: LiveService) -> None:
    with service.stream(after="unknown", Types="report") as stream:
        last_id = stream.next()["id"]
    service.ingest(temperature(service.clock(), 1))
    assert _resume_and_read_values(service, last_id, 1, Types="report") == [1]


@pytest.mark.rule("rest-149")
def test_only_the_last_state_of_a_device_is_replayed(service: LiveService) -> None:
    device, other = service.new_device(), service.new_device()
    rename_path = f"/api/v1/devices/{device}/friendly-name"
    with service.stream(Types="device") as stream:
        service.call_in_loop(
            lambda: service.api.live.devices.mark_changed([mac_to_int(Mac(other.removeprefix("bmac-")))])
        )
        first_id = stream.next()["id"]
        for name in ("one", "two", "three"):
            service.operator.put(rename_path, json={"name": name})
            assert stream.next()["data"]["friendlyName"] == name
    with service.stream(after=first_id, Types="device") as stream:
        service.call_in_loop(
            lambda: service.api.live.devices.mark_changed([mac_to_int(Mac(other.removeprefix("bmac-")))])
        )
        assert stream.next()["data"]["friendlyName"] == "three"
        assert stream.next()["data"]["id"] == other
