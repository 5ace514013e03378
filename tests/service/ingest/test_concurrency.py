"""Several who write at once, and a pipeline that runs by itself."""

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
def pauses() -> IngestTimings:
    return IngestTimings(poll_seconds=0.01)


T = NOON - MINUTE
DEVICES = [f"{0xC0FFEE100000 + 4 * place:012x}" for place in range(200)]


@pytest.fixture
def pair(postgresql_database: Database, tmp_path: Path) -> Iterator[tuple[IngestHarness, IngestHarness]]:
    """Two pipelines on one server."""
    both = IngestHarness(postgresql_database, tmp_path), IngestHarness(postgresql_database, tmp_path)
    yield both
    for each in both:
        each.close()
    postgresql_database.close()


async def test_two_pipelines_can_write_the_same_devices_at_once(
    pair: tuple[IngestHarness, IngestHarness],
) -> None:
    first, second = pair
    for turn in range(4):
        at = T + 10 * turn
        await first.commit(
            *(heartbeat(at, turn, device=each) for each in DEVICES),
            *(link(at, -50, P, device=each) for each in DEVICES),
        )
        await second.commit(
            *(heartbeat(at + 5, turn + 10, device=each, gateway=B) for each in reversed(DEVICES)),
            *(prop("8000", at, "2011", device=each, gateway=B) for each in reversed(DEVICES)),
            *(temperature(at, device=each) for each in DEVICES),
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
    messages = [temperature(NOON + place) for place in range(50)]
    await asyncio.gather(first.commit(*messages), second.commit(*reversed(messages)))
    assert len(await first.samples()) == 50


async def test_of_two_pipelines_the_newest_and_loudest_counts(
    pair: tuple[IngestHarness, IngestHarness],
) -> None:
    first, second = pair
    await first.commit(heartbeat(T + 2, 2), link(T + 1, -40, P))
    await second.commit(heartbeat(T + 1, 1), link(T + 2, -60, Q))
    await first.ingest.flush()
    await second.ingest.flush()
    state = first.state()
    assert (state.status, state.parent, state.rssi, state.reported_at) == (2, mac_to_number(P), -40, T + 2)


async def test_devices_may_be_forgotten_while_they_are_written(intake: IngestHarness) -> None:
    async def forget() -> None:
        for each in DEVICES[::10]:
            await intake.database.write(registry.delete_device, Mac(each))

    for turn in range(3):
        await intake.commit(*(heartbeat(T + turn, turn, device=each) for each in DEVICES))
        await asyncio.gather(intake.ingest.flush(), forget())
    await intake.commit_flushed(*(heartbeat(T + 9, 9, device=each) for each in DEVICES))
    states = intake.select_rows(select(device_state))
    assert {(row.status, row.reported_at) for row in states} == {(9, T + 9)}
    assert len(states) == len(DEVICES)


async def test_a_running_pipeline_writes_what_it_learns_and_outlives_a_database_that_fails(
    in_file: IngestHarness,
) -> None:
    await in_file.commit(heartbeat(T, 3))
    in_file.store.failures = 1
    running = asyncio.create_task(in_file.ingest.run())
    await eventually_async(lambda: in_file.state() is not None, "its state is written")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (in_file.store.failures, in_file.state().status) == (0, 3)


async def test_takes_and_flushes_at_once_lose_nothing(intake: IngestHarness) -> None:
    async def take() -> None:
        for place in range(20):
            await intake.commit(heartbeat(T + place, place), temperature(T + place))

    async def flush() -> None:
        for _ in range(10):
            await intake.ingest.flush()

    await asyncio.gather(take(), flush())
    await intake.ingest.flush()
    assert (intake.state().status, len(await intake.samples())) == (19, 20)
    (count,) = intake.select_rows(select(func.count()).select_from(device))[0]
    assert count == 1
