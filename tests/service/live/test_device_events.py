"""Events of devices and gateways: merged, not lost, and sent to matching subscribers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import text

from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.service.actor import COMMAND_LINE
from meshfleet.service.gateways import store
from meshfleet.service.gateways.traffic import GatewayTraffic
from meshfleet.service.live.device_events import DeviceEvents, GatewayChange
from meshfleet.service.live.filters import EventFilter
from meshfleet.service.live.hub import EventHub
from tests.row_tables import each_row
from tests.service.ingest.messages import A, B, D, E, heartbeat
from tests.service.live.hub_subscriber import read_events, subscribe

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.live.subscriber import LiveSubscriber
    from tests.service.live.live_service import LiveService

pytestmark = pytest.mark.anyio


def _number(mac: str) -> int:
    return mac_to_int(Mac(mac))


@pytest.mark.rule("rest-146")
def test_a_device_that_disconnects_with_its_gateway_is_published_only_if_a_filter_names_it(
    service: LiveService,
) -> None:
    service.admin.post("/api/v1/gateways", json={"mac": A})
    service.ingest_and_flush(heartbeat(service.clock()), heartbeat(service.clock(), device=E))
    service.clock.move(seconds=10)  # the claim is older than the subscriptions
    with (
        service.stream(Types="device,gateway", Ids=f"bmac-{D}") as by_device,
        service.stream(Types="device,gateway", Gateway=A) as by_gateway,
    ):
        devices = [_number(D), _number(E)]
        service.call_in_loop(lambda: service.api.live.devices.on_gateway_changed(_number(A), devices=devices))
        assert by_device.next()["data"]["id"] == f"bmac-{D}"
        event = by_gateway.next()
        assert (event["type"], event["data"]["devices"]) == ("gateway", 2)
        service.call_in_loop(lambda: service.api.live.devices.mark_changed([_number(E)]))
        assert [by_gateway.next()["data"]["id"] for _ in range(2)] == [f"bmac-{D}", f"bmac-{E}"]


@pytest.mark.rule("rest-147")
def test_a_device_that_changes_its_gateway_is_published_to_subscribers_of_both(service: LiveService) -> None:
    with service.stream(Types="device", Gateway=A) as old, service.stream(Types="device", Gateway=B) as new:
        service.ingest_and_flush(heartbeat(service.clock(), gateway=A))
        assert old.next()["data"]["live"]["gateway"] == A
        service.clock.move(seconds=3600)
        service.ingest_and_flush(heartbeat(service.clock(), gateway=B))
        assert [each.next()["data"]["live"]["gateway"] for each in (old, new)] == [B, B]
        service.clock.move(seconds=3600)
        service.ingest_and_flush(heartbeat(service.clock(), gateway=B))
        service.ingest_and_flush(heartbeat(service.clock(), gateway=A, device=E))
        assert old.next()["data"]["id"] == f"bmac-{E}", "the change is published only once"


@each_row(
    ("changes", "merged"),
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
def test_changes_of_a_gateway_are_merged_into_the_most_important_one(
    changes: list[GatewayChange], merged: GatewayChange
) -> None:
    result = changes[0]
    for later in changes[1:]:
        result = result.merge(later)
    assert result == merged


async def test_a_gateway_that_disconnects_and_is_renamed_is_published_with_its_devices(
    sqlite_database: Database,
) -> None:
    _claim(sqlite_database, A)
    hub = EventHub(lambda: 0)
    devices = DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0)
    subscriber = subscribe(hub, EventFilter(types=frozenset({"gateway"})))
    devices.on_gateway_changed(_number(A), devices=range(50))
    devices.mark_gateways_changed({_number(A): GatewayChange("renamed")})
    (event,) = await _run_andread_events(devices, subscriber)
    assert (event["data"]["cause"], event["data"]["devices"]) == ("disconnected", 50)


async def test_gateway_changes_are_kept_while_the_database_fails(sqlite_database: Database) -> None:
    _claim(sqlite_database, A)
    hub = EventHub(lambda: 0)
    devices = DeviceEvents(hub, sqlite_database, GatewayTraffic(lambda: 0), lambda: 0)
    subscriber = subscribe(hub, EventFilter(types=frozenset({"gateway"})))
    sqlite_database.write_now(lambda connection: connection.execute(_rename_table("gateway", "gateway_away")))
    run_task = asyncio.create_task(devices.run())
    device_subscriber = subscribe(hub, EventFilter(types=frozenset({"device"})))
    devices.on_gateway_changed(_number(A), devices=range(50))
    assert (await read_events(device_subscriber))[0]["type"] == "resync", "the database has not failed yet"
    sqlite_database.write_now(lambda connection: connection.execute(_rename_table("gateway_away", "gateway")))
    (event,) = await read_events(subscriber)
    run_task.cancel()
    assert (event["type"], event["data"]["devices"]) == ("gateway", 50)


async def test_a_failing_source_causes_a_resync_and_does_not_affect_others(
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
    subscriber = subscribe(hub, EventFilter(types=frozenset({"report"})))
    hub.publish("report", {"n": 1})
    values: list[Any] = []
    for _ in range(100):
        values += [event["data"].get("n", event["type"]) for event in await read_events(subscriber)]
        if values[:3] == [1, "resync", 2]:
            break
    assert values[:3] == [1, "resync", 2]
    assert "boom" in caplog.text


@pytest.mark.rule("rest-156")
async def test_a_filter_on_resyncs_matches_every_loss_and_nothing_else() -> None:
    hub = EventHub(lambda: 0)
    subscriber = subscribe(hub, EventFilter(types=frozenset({"resync"})))
    subscribe(hub, EventFilter())
    hub.publish("report", {})
    hub.publish_loss("device", "one")
    hub.publish_loss("report", "two")
    assert [event["data"]["reason"] for event in await read_events(subscriber)] == ["one", "two"]


async def _run_andread_events(devices: DeviceEvents, subscriber: LiveSubscriber) -> list[Any]:
    run_task = asyncio.create_task(devices.run())
    events = await read_events(subscriber)
    run_task.cancel()
    return events


def _claim(database: Database, mac: str) -> None:
    database.write_now(store.claim_gateway, Mac(mac), name=None, by=COMMAND_LINE, now=0)


def _rename_table(old: str, new: str) -> Any:
    return text(f"ALTER TABLE {old} RENAME TO {new}")


@pytest.mark.rule("rest-41")
def test_a_deleted_device_is_not_added_again_by_reports_that_came_before(service: LiveService) -> None:
    mac = "c0ffee00de1e"
    path = f"/api/v1/devices/bmac-{mac}"
    service.ingest_and_flush(heartbeat(service.clock(), device=mac))
    service.ingest(heartbeat(service.clock() + 1, device=mac))
    assert service.admin.delete(path).status_code == 204
    service.ingest_and_flush()
    assert service.admin.get(path).status_code == 404
    service.ingest_and_flush(heartbeat(service.clock() + 2, device=mac))
    assert service.admin.get(path).status_code == 200
