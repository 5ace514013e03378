"""Concurrent writers, and a running pipeline."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from meshfleet.db.tables import device, device_state
from meshfleet.protocol.ids import Mac
from meshfleet.service.devices import registry
from meshfleet.service.ingest.pipeline import IngestTimings
from tests.eventually import eventually_async
from tests.service.ingest.ingest_harness import MINUTE, NOON, IngestHarness
from tests.service.ingest.messages import A, B, P, Q, heartbeat, link, mac_to_number, prop, temperature

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db import Database

pytestmark = pytest.mark.anyio


@pytest.fixture
def timings() -> IngestTimings:
    return IngestTimings(poll_seconds=0.01)


T = NOON - MINUTE
DEVICES = [f"{0xC0FFEE100000 + 4 * index:012x}" for index in range(200)]


@pytest.fixture
def pair(postgresql_database: Database, tmp_path: Path) -> Iterator[tuple[IngestHarness, IngestHarness]]:
    """Create two pipelines on one server."""
    harnesses = IngestHarness(postgresql_database, tmp_path), IngestHarness(postgresql_database, tmp_path)
    yield harnesses
    for harness in harnesses:
        harness.close()


async def test_two_pipelines_can_write_the_same_devices_concurrently(
    pair: tuple[IngestHarness, IngestHarness],
) -> None:
    first, second = pair
    for turn in range(4):
        at = T + 10 * turn
        await first.commit(
            *(heartbeat(at, turn, device=mac) for mac in DEVICES),
            *(link(at, -50, P, device=mac) for mac in DEVICES),
        )
        await second.commit(
            *(heartbeat(at + 5, turn + 10, device=mac, gateway=B) for mac in reversed(DEVICES)),
            *(prop("8000", at, "2011", device=mac, gateway=B) for mac in reversed(DEVICES)),
            *(temperature(at, device=mac) for mac in DEVICES),
        )
        await asyncio.gather(first.ingest.flush(), second.ingest.flush())
    rows = first.select_rows(select(device_state))
    assert len(rows) == len(DEVICES)
    assert {(row.status, row.reported_at, row.rssi) for row in rows} == {(13, T + 35, -50)}
    assert {row.model for row in first.select_rows(select(device))} == {0x2011}
    assert {row.gateway for row in first.select_rows(select(device))} <= {mac_to_number(A), mac_to_number(B)}


async def test_the_same_sample_through_two_pipelines_is_stored_once(
    pair: tuple[IngestHarness, IngestHarness],
) -> None:
    first, second = pair
    messages = [temperature(NOON + index) for index in range(50)]
    await asyncio.gather(first.commit(*messages), second.commit(*reversed(messages)))
    assert len(await first.samples()) == 50


async def test_the_newest_status_and_strongest_parent_of_two_pipelines_win(
    pair: tuple[IngestHarness, IngestHarness],
) -> None:
    first, second = pair
    await first.commit(heartbeat(T + 2, 2), link(T + 1, -40, P))
    await second.commit(heartbeat(T + 1, 1), link(T + 2, -60, Q))
    await first.ingest.flush()
    await second.ingest.flush()
    state = first.state()
    assert (state.status, state.parent, state.rssi, state.reported_at) == (2, mac_to_number(P), -40, T + 2)


async def test_devices_may_be_deleted_while_they_are_written(harness: IngestHarness) -> None:
    async def delete_devices() -> None:
        for mac in DEVICES[::10]:
            await harness.database.write(registry.delete_device, Mac(mac))

    for turn in range(3):
        await harness.commit(*(heartbeat(T + turn, turn, device=mac) for mac in DEVICES))
        await asyncio.gather(harness.ingest.flush(), delete_devices())
    await harness.commit_flushed(*(heartbeat(T + 9, 9, device=mac) for mac in DEVICES))
    states = harness.select_rows(select(device_state))
    assert {(row.status, row.reported_at) for row in states} == {(9, T + 9)}
    assert len(states) == len(DEVICES)


async def test_a_running_pipeline_writes_states_and_survives_a_database_failure(
    sqlite_harness: IngestHarness,
) -> None:
    await sqlite_harness.commit(heartbeat(T, 3))
    sqlite_harness.store.failures = 1
    running = asyncio.create_task(sqlite_harness.ingest.run())
    await eventually_async(lambda: sqlite_harness.state() is not None, "the state to be written")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (sqlite_harness.store.failures, sqlite_harness.state().status) == (0, 3)


async def test_concurrent_commits_and_flushes_lose_nothing(harness: IngestHarness) -> None:
    async def commit_batches() -> None:
        for index in range(20):
            await harness.commit(heartbeat(T + index, index), temperature(T + index))

    async def flush_repeatedly() -> None:
        for _ in range(10):
            await harness.ingest.flush()

    await asyncio.gather(commit_batches(), flush_repeatedly())
    await harness.ingest.flush()
    assert (harness.state().status, len(await harness.samples())) == (19, 20)
    (count,) = harness.select_rows(select(func.count()).select_from(device))[0]
    assert count == 1
