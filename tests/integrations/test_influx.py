"""Samples in a real InfluxDB: all of them, once, whatever is killed."""

from __future__ import annotations

import asyncio
import json
import signal
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish
from meshfleet.protocol.times import format_time
from tests.databases import create_database
from tests.eventually import eventually
from tests.integrations.influx_server import InfluxServer
from tests.scenarios.report_load import ReportLoad
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.service.embedded_broker.running_broker import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.anyio, pytest.mark.part("integrations"), pytest.mark.both_databases]

SAMPLES = 100_000
KILLS = 10
PATIENCE = 180.0
"""Seconds until all samples must have arrived; reached only by a defect."""


_numbers = count()


@pytest.fixture
def influx(tmp_path: Path) -> Iterator[InfluxServer]:
    with InfluxServer(tmp_path / "influx") as server:
        yield server


@pytest.fixture
def service(
    request: pytest.FixtureRequest, database_kind: str, tmp_path: Path, influx: InfluxServer
) -> Iterator[ServiceProcess]:
    options = [*loopback_options("--mqtt"), "--influx-url", influx.url]
    if database_kind == "postgresql":
        server: str = request.getfixturevalue("postgresql_server")
        options += ["--database", create_database(server, f"influx_{next(_numbers)}")]
    with ServiceProcess(tmp_path, *options) as running:
        yield running


async def test_every_sample_arrives_once_although_both_are_killed_repeatedly(
    service: ServiceProcess, influx: InfluxServer
) -> None:
    gateways = [service.claim(f"02005e00000{number}") for number in range(1, 3)]
    load = ReportLoad(service.mqtt["mqtt"], gateways)
    async with load:
        for number in range(1, KILLS + 1):
            while load.acknowledged < SAMPLES * 1.15 * number / KILLS:  # every tenth is published twice
                await load.wait_for_acks()
            await asyncio.to_thread(influx.stop, signal.SIGKILL)
            await load.wait_for_acks()
            await asyncio.to_thread(service.kill)
            await asyncio.to_thread(service.start)
            await load.wait_for_acks()
            await asyncio.to_thread(influx.start)
        await load.wait_for_acks()
    expected = sum(len(samples) for source in load.sources for samples in source.expected.values())
    assert expected >= SAMPLES
    eventually(lambda: influx.count_values() >= expected, "all samples", patience=PATIENCE)
    assert influx.count_values() == expected


HOSTILE_NAMES = {
    "Cold room, 3=x": "Cold room, 3=x",
    "a\\,b": "a\\,b",
    "ends with \\": "ends with ",
    '"quoted" №': '"quoted" №',
    "x=1i 5": "x=1i 5",
}
"""Names of devices, and what InfluxDB shows."""


def build_report(device: str, identifier: str, value: object, packet_id: int) -> Publish:
    topic = f"mt/gateway/02005e000001/device/{device}/property-decoded/{identifier}"
    payload = {"time": format_time(datetime.now(UTC)), "value": value}
    return Publish(topic, json.dumps(payload).encode(), 1, packet_id=packet_id)


async def test_hostile_names_and_texts_arrive_as_they_are(
    service: ServiceProcess, influx: InfluxServer
) -> None:
    client = await service.connect(service.claim("02005e000001"))
    devices = {f"02005e0001{number:02x}": name for number, name in enumerate(HOSTILE_NAMES)}
    for device in devices:
        client.send(build_report(device, "temperature", 4.25, 1))
        assert await client.expect(Puback) == Puback(1)
    await until(lambda: len(service.call("GET", "/api/v1/devices")["items"]) > len(devices))
    for device, name in devices.items():
        service.call("PUT", f"/api/v1/devices/bmac-{device}/friendly-name", {"name": name})
        client.send(build_report(device, "note", f'{name}: "hi"\\', 2))
        assert await client.expect(Puback) == Puback(2)
    await service.disconnect_all()

    def read_notes() -> dict[str, str]:
        return {point["name"]: point["note_text"] for point in influx.read_points() if "note_text" in point}

    await until(lambda: len(read_notes()) == len(HOSTILE_NAMES))
    assert read_notes() == {shown: f'{name}: "hi"\\' for name, shown in HOSTILE_NAMES.items()}
