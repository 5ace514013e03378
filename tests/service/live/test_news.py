"""News of devices and gateways: put together, not lost, and told to whoever they concern."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.service.accounts.model import COMMAND_LINE, Actor
from meshfleet.service.gateways import store
from meshfleet.service.gateways.traffic import Traffic
from meshfleet.service.live.devices import Devices, GatewayNews
from meshfleet.service.live.hub import Hub
from meshfleet.service.live.listener import Listener
from meshfleet.service.live.want import Want
from meshfleet.wire.ids import Mac, mac_number
from meshfleet.wire.rest import Role
from tests.service.ingest.messages import A, B, D, E, heartbeat
from tests.tables import each_row

if TYPE_CHECKING:
    from meshfleet.db import Database
    from tests.service.live.stage import Stage

pytestmark = pytest.mark.anyio


def _number(mac: str) -> int:
    return mac_number(Mac(mac))


def _listener(hub: Hub, want: Want) -> Listener:
    actor = Actor(name="a", role=Role.VIEWER, kind="user")
    listener = Listener(lambda event: event.body + b"\n", actor, "token")
    hub.join(listener)
    hub.subscribe(listener, want)
    return listener


async def _take(listener: Listener) -> list[Any]:
    async with asyncio.timeout(30):
        taken = await listener.take()
    assert taken is not None
    return [json.loads(line) for line in taken.splitlines()]


@pytest.mark.rule("rest-146")
def test_who_named_a_device_is_told_when_it_goes_with_its_gateway_and_others_hear_of_the_gateway(
    stage: Stage,
) -> None:
    stage.admin.post("/api/v1/gateways", json={"mac": A})
    stage.settle(heartbeat(stage.clock()), heartbeat(stage.clock(), device=E))
    stage.clock.move(seconds=10)  # the claim is no news any more
    with (
        stage.stream(Types="device,gateway", Ids=f"bmac-{D}") as named,
        stage.stream(Types="device,gateway", Gateway=A) as other,
    ):
        devices = [_number(D), _number(E)]
        stage.call(lambda: stage.api.live.devices.gateway_changed(_number(A), devices=devices))
        assert named.next()["data"]["id"] == f"bmac-{D}"
        event = other.next()
        assert (event["type"], event["data"]["devices"]) == ("gateway", 2)
        stage.call(lambda: stage.api.live.devices.touch([_number(E)]))
        assert [other.next()["data"]["id"] for _ in range(2)] == [f"bmac-{D}", f"bmac-{E}"]


@pytest.mark.rule("rest-147")
def test_a_device_that_goes_to_another_gateway_is_told_to_listeners_of_both(stage: Stage) -> None:
    with stage.stream(Types="device", Gateway=A) as old, stage.stream(Types="device", Gateway=B) as new:
        stage.settle(heartbeat(stage.clock(), gateway=A))
        assert old.next()["data"]["live"]["gateway"] == A
        stage.clock.move(seconds=3600)
        stage.settle(heartbeat(stage.clock(), gateway=B))
        assert [each.next()["data"]["live"]["gateway"] for each in (old, new)] == [B, B]
        stage.clock.move(seconds=3600)
        stage.settle(heartbeat(stage.clock(), gateway=B))
        stage.settle(heartbeat(stage.clock(), gateway=A, device=E))
        assert old.next()["data"]["id"] == f"bmac-{E}", "it is told only once that it left"


@each_row(
    ("several", "one"),
    [
        ([GatewayNews(None, 50), GatewayNews("renamed")], GatewayNews(None, 50)),
        ([GatewayNews("renamed"), GatewayNews(None, 3)], GatewayNews(None, 3)),
        ([GatewayNews(None, 3), GatewayNews(None, 4)], GatewayNews(None, 7)),
        ([GatewayNews("released"), GatewayNews(None, 2), GatewayNews("renamed")], GatewayNews("released", 2)),
        ([GatewayNews("claimed"), GatewayNews("released")], GatewayNews("released")),
    ],
)
def test_several_news_of_a_gateway_become_one_that_tells_most(
    several: list[GatewayNews], one: GatewayNews
) -> None:
    joined = several[0]
    for later in several[1:]:
        joined = joined.joined(later)
    assert joined == one


async def test_a_gateway_that_went_and_was_renamed_at_once_is_told_with_its_devices(
    sqlite_database: Database,
) -> None:
    _know(sqlite_database, A)
    hub = Hub(lambda: 0)
    devices = Devices(hub, sqlite_database, Traffic(lambda: 0), lambda: 0)
    listener = _listener(hub, Want(types=frozenset({"gateway"})))
    devices.gateway_changed(_number(A), devices=range(50))
    devices.touch_gateways({_number(A): GatewayNews("renamed")})
    (event,) = await _told(devices, listener)
    assert (event["data"]["cause"], event["data"]["devices"]) == ("disconnected", 50)
    sqlite_database.close()


async def test_news_of_a_gateway_outlast_a_database_that_fails(sqlite_database: Database) -> None:
    _know(sqlite_database, A)
    hub = Hub(lambda: 0)
    devices = Devices(hub, sqlite_database, Traffic(lambda: 0), lambda: 0)
    listener = _listener(hub, Want(types=frozenset({"gateway"})))
    sqlite_database.write_now(lambda connection: connection.execute(_rename("gateway", "gateway_away")))
    running = asyncio.create_task(devices.run())
    witness = _listener(hub, Want(types=frozenset({"device"})))
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
    hub = Hub(lambda: 0)
    failures = [ValueError("boom")]

    def fail_once() -> bool:
        if failures:
            raise failures.pop()
        return False

    def publish() -> bool:
        hub.publish("report", {"n": 2})
        return False

    hub.feed(fail_once)
    hub.feed(publish)
    listener = _listener(hub, Want(types=frozenset({"report"})))
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
    hub = Hub(lambda: 0)
    listener = _listener(hub, Want(types=frozenset({"resync"})))
    _listener(hub, Want())
    hub.publish("report", {})
    hub.publish_loss("device", "one")
    hub.publish_loss("report", "two")
    assert [event["data"]["reason"] for event in await _take(listener)] == ["one", "two"]


async def _told(devices: Devices, listener: Listener) -> list[Any]:
    running = asyncio.create_task(devices.run())
    told = await _take(listener)
    running.cancel()
    return told


def _know(database: Database, mac: str) -> None:
    database.write_now(store.claim, Mac(mac), name=None, by=COMMAND_LINE, now=0)


def _rename(old: str, new: str) -> Any:
    return text(f"ALTER TABLE {old} RENAME TO {new}")
