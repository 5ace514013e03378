"""Kills of the service: readings that it acknowledged count for positions after a restart."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish
from tests.eventually import eventually_async

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
    time = f"{datetime.now(UTC) - timedelta(seconds=1):%Y-%m-%dT%H:%M:%S.%fZ}"
    payload = msgspec.json.encode({"time": time, **fields})
    client.send(Publish(f"mt/gateway/{G}/device/{device}/{kind}", payload, 1, packet_id=1))
    assert await client.expect(Puback) == Puback(1)


async def publish_readings(client: RawClient) -> None:
    for anchor in ANCHORS:
        await publish(client, D, "rssi", parent=anchor, rssi=-70)


async def wait_until_known(service: ServiceProcess, *devices: str) -> None:
    """Wait until the registry has devices, a moment after their first reports."""
    ids = {f"bmac-{each}" for each in devices}

    def is_known() -> bool:
        return ids <= {each["id"] for each in service.call("GET", "/api/v1/devices")["items"]}

    await eventually_async(is_known)


def count_readings(service: ServiceProcess) -> dict[str, int]:
    """Return the number of readings of the device by anchor."""
    position = service.call("GET", f"/api/v1/devices/bmac-{D}/position?Window=600")["position"]
    return {} if position is None else {each["anchor"]: each["count"] for each in position["readings"]}


async def test_acknowledged_readings_count_after_two_kills(service: ServiceProcess) -> None:
    gateway = await service.connect(service.claim(G))
    for anchor in ANCHORS:
        await publish(gateway, anchor, "heartbeat", seq=1, status=0, lastCount=1)
    area = {"floor": 0, "minX": 0, "minY": 0, "maxX": 20, "maxY": 14}
    site = service.call("POST", "/api/v1/sites", {"name": "Hall", "floors": [area]})["id"]
    places = [{"device": f"bmac-{each}", "floor": 0, "x": x, "y": y} for each, (x, y) in ANCHORS.items()]
    await wait_until_known(service, *ANCHORS)
    service.call("POST", f"/api/v1/sites/{site}/places", {"places": places})
    await publish_readings(gateway)
    await wait_until_known(service, D)
    await publish_readings(gateway)
    for _ in range(2):
        service.kill()
        service.start()
        await eventually_async(lambda: count_readings(service) == dict.fromkeys(ANCHORS, 2))
