"""Kills of the service: readings that it acknowledged count for positions after a restart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.mqtt.broker.raw_client import RawClient
    from tests.scenarios.service_process import ServiceProcess

pytestmark = [pytest.mark.anyio, pytest.mark.part("long")]

G, D = "02005e000001", "c0ffee0000a1"
ANCHORS = {"c0ffee00f001": (1, 1), "c0ffee00f002": (19, 1), "c0ffee00f003": (10, 13)}


@pytest.fixture
async def service(service: ServiceProcess) -> AsyncIterator[ServiceProcess]:
    yield service
    await service.disconnect_all()


async def publish(client: RawClient, device: str, kind: str, **fields: Any) -> None:
    """Publish a report, and wait until it is acknowledged."""
    time = f"{datetime.now(UTC) - timedelta(seconds=1):%Y-%m-%dT%H:%M:%SZ}"
    payload = msgspec.json.encode({"time": time, **fields})
    client.send(Publish(f"mt/gateway/{G}/device/{device}/{kind}", payload, 1, packet_id=1))
    assert await client.expect(Puback) == Puback(1)


async def test_acknowledged_readings_count_after_two_kills(service: ServiceProcess) -> None:
    gateway = await service.connect(service.claim(G))
    for anchor in ANCHORS:
        await publish(gateway, anchor, "heartbeat", seq=1, status=0, lastCount=1)
    area = {"floor": 0, "minX": 0, "minY": 0, "maxX": 20, "maxY": 14}
    site = service.call("POST", "/api/v1/sites", {"name": "Hall", "floors": [area]})["id"]
    places = [{"device": f"bmac-{each}", "floor": 0, "x": x, "y": y} for each, (x, y) in ANCHORS.items()]
    while True:  # the registry knows the anchors a moment after their heartbeats
        listed = service.call("GET", "/api/v1/devices")["items"]
        if {each["id"] for each in listed} >= {each["device"] for each in places}:
            break
    service.call("POST", f"/api/v1/sites/{site}/places", {"places": places})
    for anchor in ANCHORS:
        await publish(gateway, D, "rssi", parent=anchor, rssi=-70)
    for _ in range(2):
        service.kill()
        service.start()
        position = service.call("GET", f"/api/v1/devices/bmac-{D}/position?Window=600")["position"]
        assert {each["anchor"]: each["count"] for each in position["readings"]} == dict.fromkeys(ANCHORS, 1)
