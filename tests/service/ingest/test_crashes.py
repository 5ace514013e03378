"""Nothing is lost or counted twice, wherever the program or the database fails."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
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


async def counts(intake: IngestHarness) -> list[tuple[int, int, int]]:
    """Minute, count and last of all heartbeats, after all minutes were told."""
    intake.now += 15 * MINUTE
    await intake.ingest.flush()
    found = await intake.minutes(SampleKind.HEARTBEAT)
    return [(time, shown["count"], shown["last"]) for time, _, _, shown in found]


STEPS = ["take", "flush", "take again", "the minute ends", "flush", "flush again"]


@pytest.mark.parametrize("crash", range(len(STEPS)), ids=lambda place: f"after {STEPS[place]} ({place})")
async def test_a_crash_anywhere_changes_no_count(intake: IngestHarness, crash: int) -> None:
    for place, step in enumerate(STEPS):
        if step.startswith("take"):
            intake.now += SECOND
            await intake.commit(heartbeat(intake.now, place), link(intake.now, -50 - place))
        elif step.startswith("flush"):
            await intake.ingest.flush()
        else:
            intake.now = NOON + MINUTE + 10 * SECOND
        if place == crash:
            await intake.restart()
    assert await counts(intake) == [(NOON, 2, 2)]
    ((_, _, mean, shown),) = await intake.minutes(SampleKind.LINK)
    assert (mean, shown["count"]) == (-51.0, 2)
    assert intake.state().status == 2
    assert intake.count_journal() == 0


async def test_a_minute_that_was_told_is_not_told_again_for_a_journal_that_stays(
    intake: IngestHarness,
) -> None:
    """One batch has readings of two minutes: it is needed for the second when the first is over."""
    intake.now = NOON + MINUTE + SECOND
    await intake.commit(heartbeat(NOON, 1), heartbeat(NOON + MINUTE, 2))
    intake.now = NOON + MINUTE + 10 * SECOND
    await intake.ingest.flush()
    assert intake.count_journal() == 1
    await intake.restart()
    assert await counts(intake) == [(NOON, 1, 1), (NOON + MINUTE, 1, 2)]


async def test_a_flush_that_fails_is_made_up_for(intake: IngestHarness) -> None:
    await intake.commit(heartbeat(NOON, 1))
    intake.now = NOON + 2 * MINUTE
    for _ in range(3):
        intake.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await intake.ingest.flush()
    assert (intake.device(), intake.count_journal()) == (None, 1)
    await intake.commit(heartbeat(NOON + 2 * MINUTE, 2))
    await intake.ingest.flush()
    assert (intake.state().status, intake.state().reported_at) == (2, NOON + 2 * MINUTE)
    assert await counts(intake) == [(NOON, 1, 1), (NOON + 2 * MINUTE, 1, 2)]


async def test_a_crash_after_a_flush_that_failed_loses_nothing(intake: IngestHarness) -> None:
    await intake.commit(heartbeat(NOON, 1))
    intake.now = NOON + 2 * MINUTE
    intake.store.failures = 1
    with pytest.raises(DatabaseUnavailable):
        await intake.ingest.flush()
    await intake.restart()
    assert await counts(intake) == [(NOON, 1, 1)]
    assert intake.state().status == 1


async def test_a_batch_that_fails_changes_nothing_and_counts_once_when_it_comes_again(
    intake: IngestHarness,
) -> None:
    messages = [heartbeat(NOON, 4), link(NOON, -50), temperature(NOON), temperature(NOON, "x", seq=9)]
    for _ in range(3):
        intake.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await intake.commit(*messages)
        assert (intake.count_journal(), await intake.samples()) == (0, [])
        assert (intake.ingest.counters.batches, intake.ingest.counters.reports) == (0, {})
        await intake.ingest.flush()
        assert intake.device() is None
    await intake.commit_flushed(*messages)
    assert len(await intake.samples()) == 2
    assert intake.ingest.counters.reports.total() == 4
    assert await counts(intake) == [(NOON, 1, 4)]


# --- Whatever happens ---

steps = st.lists(
    st.one_of(
        st.sampled_from(["flush", "failing flush", "crash"]),
        st.integers(1, 70),
        st.tuples(st.booleans(), st.lists(st.integers(0, 9), min_size=1, max_size=3)),
    ),
    max_size=14,
)
"""What happens; seconds that pass; heartbeats that come, at the first try or at the second."""


async def live(intake: IngestHarness, step: Any) -> list[Publish]:
    """Let something happen, and tell which heartbeats were taken."""
    if isinstance(step, int):
        intake.now += step * SECOND
    elif step == "flush":
        await intake.ingest.flush()
    elif step == "crash":
        await intake.restart()
    elif step == "failing flush":
        intake.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await intake.ingest.flush()
    else:
        return await beat(intake, *step)
    return []


async def beat(intake: IngestHarness, fails: bool, statuses: list[int]) -> list[Publish]:  # noqa: FBT001 # drawn
    messages = [heartbeat(intake.now + place, status) for place, status in enumerate(statuses)]
    intake.now += len(messages)
    if fails:
        intake.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await intake.commit(*messages)
    await intake.commit(*messages)
    return messages


_runs = iter(range(10**6))


@given(steps)
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_every_heartbeat_counts_once_whatever_happens(
    in_file: IngestHarness, happening: list[Any]
) -> None:
    # A time of its own for each run: they share a database.
    in_file.now = begin = NOON + next(_runs) * 60 * MINUTE
    expected: defaultdict[int, int] = defaultdict(int)
    for step in happening:
        taken = await live(in_file, step)
        expected[in_file.now - in_file.now % MINUTE] += len(taken)
    found = [(time, count) for time, count, _ in await counts(in_file) if time >= begin]
    assert found == [(time, count) for time, count in sorted(expected.items()) if count]


# --- A restart alone ---


async def test_samples_are_there_after_a_crash(intake: IngestHarness) -> None:
    await intake.commit(temperature(NOON), temperature(NOON + 1, "warm"))
    before = await intake.samples()
    await intake.restart()
    assert await intake.samples() == before
    assert len(before) == 2


async def test_a_device_of_which_only_samples_came_is_known_after_a_crash(intake: IngestHarness) -> None:
    await intake.commit(temperature(NOON))
    await intake.commit(temperature(NOON + 1))
    await intake.restart()
    await intake.ingest.flush()
    assert (intake.gateway(), intake.state().reported_at) == (A, NOON)
    assert intake.count_journal() == 0


async def test_a_device_whose_first_batch_failed_is_known_after_a_crash_too(intake: IngestHarness) -> None:
    intake.store.failures = 1
    with pytest.raises(DatabaseUnavailable):
        await intake.commit(temperature(NOON))
    await intake.commit(temperature(NOON))
    await intake.restart()
    await intake.ingest.flush()
    assert intake.device() is not None


async def test_another_program_goes_on_where_one_stopped(database: Database, tmp_path: Path) -> None:
    first = IngestHarness(database, tmp_path)
    await first.commit(heartbeat(NOON, 3), link(NOON, -42))
    first.close()
    second = IngestHarness(database, tmp_path)
    await second.ingest.restore()
    await second.ingest.flush()
    assert (second.state().status, second.state().rssi) == (3, -42)
    assert await counts(second) == [(NOON, 1, 3)]
    second.close()
