"""News of devices and gateways: put together, not lost, and told to whoever they concern."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.rest import Role
from meshfleet.service.actor import COMMAND_LINE, Actor
from meshfleet.service.gateways import store
from meshfleet.service.gateways.traffic import GatewayTraffic
from meshfleet.service.live.device_events import DeviceEvents, GatewayChange
from meshfleet.service.live.filters import EventFilter
from meshfleet.service.live.hub import EventHub
from meshfleet.service.live.subscriber import LiveSubscriber
from tests.row_tables import each_row
from tests.service.ingest.messages import A, B, D, E, heartbeat

if TYPE_CHECKING:
    from meshfleet.db import Database
    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio


def _number(mac: str) -> int:
    return mac_to_int(Mac(mac))


def _listener(hub: EventHub, want: EventFilter) -> LiveSubscriber:
    actor = Actor(name="a", role=Role.VIEWER, kind="user")
    listener = LiveSubscriber(lambda event: event.body + b"\n", actor, "token")
    hub.add(listener)
    hub.subscribe(listener, want)
    return listener


async def _take(listener: LiveSubscriber) -> list[Any]:
    async with asyncio.timeout(30):
        taken = await listener.next_chunk()
    assert taken is not None
    return [json.loads(line) for line in taken.splitlines()]


@pytest.mark.rule("rest-146")
def test_who_named_a_device_is_told_when_it_goes_with_its_gateway_and_others_hear_of_the_gateway(
    stage: LiveService,
) -> None:
    stage.admin.post("/api/v1/gateways", json={"mac": A})
    stage.ingest_and_flush(heartbeat(stage.clock()), heartbeat(stage.clock(), device=E))
    stage.clock.move(seconds=10)  # the claim is no news any more
    with (
        stage.stream(Types="device,gateway", Ids=f"bmac-{D}") as named,
        stage.stream(Types="device,gateway", Gateway=A) as other,
    ):
        devices = [_number(D), _number(E)]
        stage.call_in_loop(lambda: stage.api.live.devices.gateway_changed(_number(A), devices=devices))
        assert named.next()["data"]["id"] == f"bmac-{D}"
        event = other.next()
        assert (event["type"], event["data"]["devices"]) == ("gateway", 2)
        stage.call_in_loop(lambda: stage.api.live.devices.mark_changed([_number(E)]))
        assert [other.next()["data"]["id"] for _ in range(2)] == [f"bmac-{D}", f"bmac-{E}"]


@pytest.mark.rule("rest-147")
def test_a_device_that_goes_to_another_gateway_is_told_to_listeners_of_both(stage: LiveService) -> None:
    with stage.stream(Types="device", Gateway=A) as old, stage.stream(Types="device", Gateway=B) as new:
        stage.ingest_and_flush(heartbeat(stage.clock(), gateway=A))
        assert old.next()["data"]["live"]["gateway"] == A
        stage.clock.move(seconds=3600)
        stage.ingest_and_flush(heartbeat(stage.clock(), gateway=B))
        assert [each.next()["data"]["live"]["gateway"] for each in (old, new)] == [B, B]
        stage.clock.move(seconds=3600)
        stage.ingest_and_flush(heartbeat(stage.clock(), gateway=B))
        stage.ingest_and_flush(heartbeat(stage.clock(), gateway=A, device=E))
        assert old.next()["data"]["id"] == f"bmac-{E}", "it is told only once that it left"


@each_row(
    ("several", "one"),
    [
        ([GatewayChange(None, 50), GatewayChange("renamed")], GatewayChange(None, 50)),
        ([GatewayChange("renamed"), GatewayChange(None, 3)], GatewayChange(None, 3)),
        ([GatewayChange(None, 3), GatewayChange(None, 4)], GatewayChange(None, 7)),
        (
            [GatewayChange("released"), GatewayChange(None, 2), GatewayChange("renamed")],
            GatewayChange("released", 2),
        ),
        ([GatewayChange("claimed"), GatewayChange("released")], GatewayChange("released")),
    ],
)
def test_several_news_of_a_gateway_become_one_that_tells_most(
    several: list[GatewayChange], one: GatewayChange
) -> None:
    joined = several[0]
    for later in several[1:]:
        joined = joined.merge(later)
    assert joined == one


async def test_a_gateway_that_went_and_was_renamed_at_once_is_told_with_its_devices(
    sqlite_database: Database,
) -> None:
    _know(sqlite_database, A)
    hub = EventHub(lambda: 0)
    devices = DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0)
    listener = _listener(hub, EventFilter(types=frozenset({"gateway"})))
    devices.gateway_changed(_number(A), devices=range(50))
    devices.mark_gateways_changed({_number(A): GatewayChange("renamed")})
    (event,) = await _told(devices, listener)
    assert (event["data"]["cause"], event["data"]["devices"]) == ("disconnected", 50)
    sqlite_database.close()


async def test_news_of_a_gateway_outlast_a_database_that_fails(sqlite_database: Database) -> None:
    _know(sqlite_database, A)
    hub = EventHub(lambda: 0)
    devices = DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0)
    listener = _listener(hub, EventFilter(types=frozenset({"gateway"})))
    sqlite_database.write_now(lambda connection: connection.execute(_rename("gateway", "gateway_away")))
    running = asyncio.create_task(devices.run())
    witness = _listener(hub, EventFilter(types=frozenset({"device"})))
    devices.gateway_changed(_number(A), devices=range(50))
    assert (await _take(witness))[0]["type"] == "resync", "it has failed once"
    sqlite_database.write_now(lambda connection: connection.execute(_rename("gateway_away", "gateway")))
    (event,) = await _take(listener)
    running.cancel()
    assert (event["type"], event["data"]["devices"]) == ("gateway", 50)
    sqlite_database.close()


async def test_a_feeder_that_fails_costs_a_resync_and_nobody_elses_events(
    caplog: pytest.LogCaptureFixture,
) -> None:
    hub = EventHub(lambda: 0)
    failures = [ValueError("boom")]

    def fail_once() -> bool:
        if failures:
            raise failures.pop()
        return False

    def publish() -> bool:
        hub.publish("report", {"n": 2})
        return False

    hub.add_source(fail_once)
    hub.add_source(publish)
    listener = _listener(hub, EventFilter(types=frozenset({"report"})))
    hub.publish("report", {"n": 1})
    told: list[Any] = []
    for _ in range(100):
        told += [event["data"].get("n", event["type"]) for event in await _take(listener)]
        if told[:3] == [1, "resync", 2]:
            break
    assert told[:3] == [1, "resync", 2]
    assert "boom" in caplog.text


@pytest.mark.rule("rest-156")
async def test_who_wants_resyncs_alone_hears_of_every_loss_and_of_nothing_else() -> None:
    hub = EventHub(lambda: 0)
    listener = _listener(hub, EventFilter(types=frozenset({"resync"})))
    _listener(hub, EventFilter())
    hub.publish("report", {})
    hub.publish_loss("device", "one")
    hub.publish_loss("report", "two")
    assert [event["data"]["reason"] for event in await _take(listener)] == ["one", "two"]


async def _told(devices: DeviceEvents, listener: LiveSubscriber) -> list[Any]:
    running = asyncio.create_task(devices.run())
    told = await _take(listener)
    running.cancel()
    return told


def _know(database: Database, mac: str) -> None:
    database.write_now(store.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=0)


def _rename(old: str, new: str) -> Any:
    return text(f"ALTER TABLE {old} RENAME TO {new}")
