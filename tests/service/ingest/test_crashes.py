"""Nothing is lost or counted twice, wherever the process or the database fails."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshfleet.db.samples import SampleKind
from meshfleet.errors import DatabaseUnavailable
from tests.examples import examples
from tests.service.ingest.ingest_harness import MINUTE, NOON, SECOND, IngestHarness
from tests.service.ingest.messages import A, heartbeat, link, temperature

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish

pytestmark = [pytest.mark.anyio, pytest.mark.both_databases]


async def count_heartbeats(harness: IngestHarness) -> list[tuple[int, int, int]]:
    """Return minute, count and last status of all heartbeats, after all minutes are closed."""
    harness.now += 15 * MINUTE
    await harness.ingest.flush()
    minutes = await harness.minutes(SampleKind.HEARTBEAT)
    return [(time, summary["count"], summary["last"]) for time, _, _, summary in minutes]


STEPS = ["commit", "flush", "commit again", "the minute ends", "flush", "flush again"]


@pytest.mark.parametrize("crash", range(len(STEPS)), ids=lambda index: f"after {STEPS[index]} ({index})")
async def test_a_crash_at_any_step_changes_no_count(harness: IngestHarness, crash: int) -> None:
    for index, step in enumerate(STEPS):
        if step.startswith("commit"):
            harness.now += SECOND
            await harness.commit(heartbeat(harness.now, index), link(harness.now, -50 - index))
        elif step.startswith("flush"):
            await harness.ingest.flush()
        else:
            harness.now = NOON + MINUTE + 10 * SECOND
        if index == crash:
            await harness.restart()
    assert await count_heartbeats(harness) == [(NOON, 2, 2)]
    ((_, _, mean, summary),) = await harness.minutes(SampleKind.LINK)
    assert (mean, summary["count"]) == (-51.0, 2)
    assert harness.state().status == 2
    assert harness.count_journal() == 0


async def test_a_committed_minute_is_not_counted_again_from_the_journal(
    harness: IngestHarness,
) -> None:
    """Commit readings of two minutes in one batch: the journal keeps it for the second minute."""
    harness.now = NOON + MINUTE + SECOND
    await harness.commit(heartbeat(NOON, 1), heartbeat(NOON + MINUTE, 2))
    harness.now = NOON + MINUTE + 10 * SECOND
    await harness.ingest.flush()
    assert harness.count_journal() == 1
    await harness.restart()
    assert await count_heartbeats(harness) == [(NOON, 1, 1), (NOON + MINUTE, 1, 2)]


async def test_a_failed_flush_is_repeated(harness: IngestHarness) -> None:
    await harness.commit(heartbeat(NOON, 1))
    harness.now = NOON + 2 * MINUTE
    for _ in range(3):
        harness.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await harness.ingest.flush()
    assert (harness.device(), harness.count_journal()) == (None, 1)
    await harness.commit(heartbeat(NOON + 2 * MINUTE, 2))
    await harness.ingest.flush()
    assert (harness.state().status, harness.state().reported_at) == (2, NOON + 2 * MINUTE)
    assert await count_heartbeats(harness) == [(NOON, 1, 1), (NOON + 2 * MINUTE, 1, 2)]


async def test_a_crash_after_a_failed_flush_loses_nothing(harness: IngestHarness) -> None:
    await harness.commit(heartbeat(NOON, 1))
    harness.now = NOON + 2 * MINUTE
    harness.store.failures = 1
    with pytest.raises(DatabaseUnavailable):
        await harness.ingest.flush()
    await harness.restart()
    assert await count_heartbeats(harness) == [(NOON, 1, 1)]
    assert harness.state().status == 1


async def test_a_failed_batch_changes_nothing_and_counts_once_when_it_is_repeated(
    harness: IngestHarness,
) -> None:
    messages = [heartbeat(NOON, 4), link(NOON, -50), temperature(NOON), temperature(NOON, "x", seq=9)]
    for _ in range(3):
        harness.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await harness.commit(*messages)
        assert (harness.count_journal(), await harness.samples()) == (0, [])
        assert (harness.ingest.counters.batches, harness.ingest.counters.reports) == (0, {})
        await harness.ingest.flush()
        assert harness.device() is None
    await harness.commit_flushed(*messages)
    assert len(await harness.samples()) == 2
    assert harness.ingest.counters.reports.total() == 4
    assert await count_heartbeats(harness) == [(NOON, 1, 4)]


# --- Any sequence of steps ---

steps = st.lists(
    st.one_of(
        st.sampled_from(["flush", "failing flush", "crash"]),
        st.integers(1, 70),
        st.tuples(st.booleans(), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    ),
    max_size=14,
)
"""Steps: an action, seconds that pass, or heartbeats and whether their first commit fails."""


async def run_step(harness: IngestHarness, step: Any) -> list[Publish]:
    """Run a step. Return the committed heartbeats."""
    if isinstance(step, int):
        harness.now += step * SECOND
    elif step == "flush":
        await harness.ingest.flush()
    elif step == "crash":
        await harness.restart()
    elif step == "failing flush":
        harness.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await harness.ingest.flush()
    else:
        return await commit_heartbeats(harness, *step)
    return []


async def commit_heartbeats(harness: IngestHarness, has_failure: bool, statuses: list[int]) -> list[Publish]:  # noqa: FBT001 # drawn by Hypothesis
    messages = [heartbeat(harness.now + index, status) for index, status in enumerate(statuses)]
    harness.now += len(messages)
    if has_failure:
        harness.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await harness.commit(*messages)
    await harness.commit(*messages)
    return messages


_runs = iter(range(10**6))


@given(steps)
@settings(max_examples=examples(40))
async def test_every_heartbeat_counts_once_in_any_sequence_of_steps(
    sqlite_harness: IngestHarness, drawn_steps: list[Any]
) -> None:
    # Each run has its own time range: they share a database.
    sqlite_harness.now = start = NOON + next(_runs) * 60 * MINUTE
    expected: defaultdict[int, int] = defaultdict(int)
    for step in drawn_steps:
        committed = await run_step(sqlite_harness, step)
        expected[sqlite_harness.now - sqlite_harness.now % MINUTE] += len(committed)
    counted = [(time, count) for time, count, _ in await count_heartbeats(sqlite_harness) if time >= start]
    assert counted == [(time, count) for time, count in sorted(expected.items()) if count]


# --- Restart ---


async def test_samples_survive_a_crash(harness: IngestHarness) -> None:
    await harness.commit(temperature(NOON), temperature(NOON + 1, "warm"))
    before = await harness.samples()
    await harness.restart()
    assert await harness.samples() == before
    assert len(before) == 2


async def test_a_device_that_sent_only_samples_is_known_after_a_crash(harness: IngestHarness) -> None:
    await harness.commit(temperature(NOON))
    await harness.commit(temperature(NOON + 1))
    await harness.restart()
    await harness.ingest.flush()
    assert (harness.gateway(), harness.state().reported_at) == (A, NOON)
    assert harness.count_journal() == 0


async def test_a_device_whose_first_batch_failed_is_known_after_a_crash_too(harness: IngestHarness) -> None:
    harness.store.failures = 1
    with pytest.raises(DatabaseUnavailable):
        await harness.commit(temperature(NOON))
    await harness.commit(temperature(NOON))
    await harness.restart()
    await harness.ingest.flush()
    assert harness.device() is not None


async def test_another_process_continues_where_the_first_stopped(database: Database, tmp_path: Path) -> None:
    first = IngestHarness(database, tmp_path)
    await first.commit(heartbeat(NOON, 3), link(NOON, -42))
    first.close()
    second = IngestHarness(database, tmp_path)
    await second.ingest.restore()
    await second.ingest.flush()
    assert (second.state().status, second.state().rssi) == (3, -42)
    assert await count_heartbeats(second) == [(NOON, 1, 3)]
    second.close()
