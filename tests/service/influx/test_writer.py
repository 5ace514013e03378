"""Samples of a store on their way to a server: with a filter, and through an outage of the server."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from meshfleet.protocol.ids import mac_from_int
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from meshfleet.service.influx.writer import InfluxWriter
from meshfleet.settings.model import InfluxSettings
from tests.db.samples.store_harness import DEVICE, NOON, OTHER, StoreHarness, build_row, build_stray_row
from tests.eventually import eventually_async
from tests.integrations.line_server import line_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio


@pytest.fixture
def harness(sqlite_database: Database, tmp_path: Path) -> Iterator[StoreHarness]:
    """Create a store, and a registry with two devices, of which one has a label."""
    sqlite_database.write_now(
        registry.record_observations,
        [DeviceObservation(device=mac_from_int(each), at=NOON) for each in (DEVICE, OTHER)],
    )
    sqlite_database.write_now(registry.attach_labels, [("Cold", mac_from_int(OTHER))], at=NOON)
    with StoreHarness(sqlite_database, tmp_path) as harness:
        yield harness


@asynccontextmanager
async def running_writer(harness: StoreHarness, settings: InfluxSettings) -> AsyncIterator[InfluxWriter]:
    writer = InfluxWriter(harness.database, harness.store, settings)
    task = asyncio.create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.mark.rule("rest-236")
async def test_samples_arrive_after_an_outage_and_only_those_of_the_filter(
    harness: StoreHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await harness.store.open_reader("influx")
    harness.commit({DEVICE: [build_row(NOON, 1)], OTHER: [build_row(NOON, 2), build_stray_row(NOON, 3)]})
    is_down = True
    with line_server(lambda _: (503, "starting") if is_down else (204, "")) as server:
        settings = InfluxSettings(url=server.url, filter=(("label", "Cold"),))
        async with running_writer(harness, settings) as writer:
            await eventually_async(lambda: writer.failures)
            assert writer.queue_length == 3
            harness.commit({OTHER: [build_row(NOON + 1, 4)]})
            is_down = False
            await eventually_async(lambda: len(server.accepted) == 2)
            await eventually_async(lambda: writer.queue_length == 0)
    assert sorted(line.split()[-2] for line in server.accepted) == [b"temperature=2.0", b"temperature=4.0"]
    assert "samples cannot be sent" in caplog.text
    assert "accepts samples again" in caplog.text


@pytest.mark.rule("rest-237")
async def test_a_line_that_is_refused_for_ever_does_not_stop_the_others(
    harness: StoreHarness, caplog: pytest.LogCaptureFixture
) -> None:
    await harness.store.open_reader("influx")
    harness.commit({DEVICE: [build_row(NOON, 1), build_row(NOON + 1, 2), build_row(NOON + 2, 3)]})
    with line_server(
        lambda lines: (400, "wrong type") if any(b"=2.0" in line for line in lines) else (204, "")
    ) as server:
        async with running_writer(harness, InfluxSettings(url=server.url)) as writer:
            await eventually_async(lambda: len(server.accepted) == 2)
            harness.commit({DEVICE: [build_row(NOON + 3, 4)]})
            await eventually_async(lambda: len(server.accepted) == 3)
            assert writer.failures == 1
    assert "refuses 1 samples for ever" in caplog.text
    assert "wrong type" in caplog.text
