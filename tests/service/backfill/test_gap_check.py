"""Gap checks: the stored samples decide, and the tables follow."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples import SampleKind, SampleQuery
from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.backfill import store
from meshfleet.service.backfill.gap_check import check_due_gaps
from meshfleet.service.backfill.series import Gap, TimeRange
from tests.service.backfill.ack_harness import TEMPERATURE, assert_flushed, sample_index, sample_time, to_rows
from tests.service.ingest.ingest_harness import DAY, MINUTE, NOON, SECOND
from tests.service.ingest.messages import B, D, E, build_report, mac_to_number

if TYPE_CHECKING:
    from meshfleet.db.samples.sample import SampleConsumer
    from tests.service.backfill.ack_harness import AckHarness

pytestmark = [pytest.mark.anyio, pytest.mark.rule("ack-15"), pytest.mark.both_databases]

HOUR = 60 * MINUTE
SEEDS = range(4)


# --- Stored samples ---


@pytest.mark.rule("ack-25")
async def test_a_gap_is_open_until_all_its_samples_are_stored(harness: AckHarness) -> None:
    await harness.commit_samples(0, 1, 6)
    await harness.check_gaps()
    assert (harness.gaps, harness.complete_up_to) == ([(1, 6)], 1)
    await harness.commit_samples(5, 3)
    await harness.check_gaps()
    assert (harness.gaps, harness.complete_up_to) == ([(1, 3), (3, 5)], 1)
    await harness.commit_samples(2)
    await harness.check_gaps()
    assert (harness.gaps, harness.complete_up_to) == ([(3, 5)], 3)
    await harness.commit_samples(4)
    await harness.check_gaps()
    assert (harness.gaps, harness.complete_up_to) == ([], 6)
    await assert_flushed(harness)


async def test_samples_of_other_series_fill_nothing(harness: AckHarness) -> None:
    await harness.commit_samples(0, 2)
    others = [
        build_report("event/8800", sample_time(1), seq=1, value="01"),
        build_report("property/8800", sample_time(1), seq=1, value="01"),
        build_report("measurement/8801", sample_time(1), seq=1, value="01"),
        build_report("measurement/8800", sample_time(1), seq=1, value="0866", device=E),
    ]
    await harness.commit(*others)
    await harness.check_gaps()
    assert harness.gaps == [(0, 2)]


async def test_a_sample_through_a_gateway_without_acks_fills_a_gap(harness: AckHarness) -> None:
    """Store a sample without an ack: it is found by the periodic check."""
    await harness.commit_samples(0, 2)
    await harness.check_gaps()
    harness.ingest_harness.acking_gateways.discard(mac_to_number(B))
    assert await harness.commit_samples(1, gateway=B) == []
    harness.ingest_harness.now += MINUTE
    await harness.check_gaps()
    assert harness.gaps == []


async def test_a_gap_is_checked_within_seconds_while_samples_keep_arriving(
    sqlite_harness: AckHarness,
) -> None:
    await sqlite_harness.commit_samples(0, 100)
    found_at = sqlite_harness.ingest_harness.now
    for index in range(99, 0, -1):
        sqlite_harness.ingest_harness.now += 500
        await sqlite_harness.commit_samples(index)
        before = sqlite_harness.gaps
        await check_due_gaps(
            sqlite_harness.acknowledger,
            sqlite_harness.ingest_harness.store,
            lambda: sqlite_harness.ingest_harness.now,
        )
        if sqlite_harness.gaps != before:
            break
    assert 9 * SECOND <= sqlite_harness.ingest_harness.now - found_at <= 11 * SECOND


async def test_gaps_that_waited_longest_are_checked_first(sqlite_harness: AckHarness) -> None:
    """Check that each of many unfilled gaps gets its turn."""
    devices = [f"c0ffee{index:06x}" for index in range(250)]
    for device in devices:
        await sqlite_harness.commit(
            *(build_report("event/8810", sample_time(index), seq=index, device=device) for index in (0, 2))
        )
    gaps = [gap for series in sqlite_harness.acknowledger.series.values() for gap in series.gaps or ()]
    assert len(gaps) == 250
    for _ in range(3):
        sqlite_harness.ingest_harness.now += 2 * MINUTE
        await check_due_gaps(
            sqlite_harness.acknowledger,
            sqlite_harness.ingest_harness.store,
            lambda: sqlite_harness.ingest_harness.now,
        )
    gaps = [gap for series in sqlite_harness.acknowledger.series.values() for gap in series.gaps or ()]
    assert len(gaps) == 250
    assert all(gap.checked_at for gap in gaps)


@pytest.mark.rule("ack-25")
@pytest.mark.parametrize(
    ("gap", "remaining"),
    [
        ((50, 60), [(50, 60)]),
        ((-9, 2), [(-9, 0)]),
        ((1, 9), [(3, 9)]),
        ((0, 3), []),
    ],
    ids=["nothing", "no beginning", "no end", "all"],
)
async def test_a_gap_is_not_filled_while_its_ends_are_not_stored(
    harness: AckHarness, gap: tuple[int, int], remaining: list[tuple[int, int]]
) -> None:
    await harness.commit_samples(0, 1, 2, 3)
    harness.series.gaps = [Gap(sample_time(gap[0]), sample_time(gap[1]), NOON)]
    harness.acknowledger.check_schedule.schedule(TEMPERATURE, 0, harness.series.next_check_at)
    await harness.check_gaps()
    assert harness.gaps == remaining


class OvertakenStore:
    """Store that commits samples after it was read, too late for that read."""

    def __init__(self, harness: AckHarness, *late_indexes: int) -> None:
        self._harness = harness
        self._late_indexes = late_indexes

    async def read(self, query: SampleQuery, consume: SampleConsumer[Any]) -> Any:
        """Read, then commit the late samples; see `SampleStore`."""
        result = await self._harness.ingest_harness.store.read(query, consume)
        await self._harness.commit_samples(*self._late_indexes)
        return result


@pytest.mark.rule("ack-25")
async def test_a_sample_that_arrives_during_a_check_is_found_by_the_next_one(
    sqlite_harness: AckHarness,
) -> None:
    """Commit it after the read, although its batch started before."""
    await sqlite_harness.commit_samples(0, 4)
    sqlite_harness.ingest_harness.now += HOUR
    await sqlite_harness.check_gaps()
    await sqlite_harness.commit_samples(3)
    later = sqlite_harness.ingest_harness.now + 5 * SECOND
    await check_due_gaps(sqlite_harness.acknowledger, OvertakenStore(sqlite_harness, 1, 2), lambda: later)  # type: ignore[arg-type]
    await sqlite_harness.check_gaps()
    assert sqlite_harness.gaps == []


async def test_a_failed_check_is_repeated(sqlite_harness: AckHarness) -> None:
    class FailingStore:
        async def read(self, *_: object) -> None:
            raise DatabaseUnavailable

    await sqlite_harness.commit_samples(0, 2)
    sqlite_harness.ingest_harness.now += HOUR
    await sqlite_harness.check_gaps()
    await sqlite_harness.commit_samples(1)
    sqlite_harness.ingest_harness.now += MINUTE
    with pytest.raises(DatabaseUnavailable):
        await check_due_gaps(
            sqlite_harness.acknowledger,
            FailingStore(),  # type: ignore[arg-type] # only `read` is called
            lambda: sqlite_harness.ingest_harness.now,
        )
    await sqlite_harness.check_gaps()
    assert sqlite_harness.gaps == []


@pytest.mark.parametrize("seed", SEEDS)
async def test_gaps_are_correct_after_any_sequence_of_samples_and_crashes(
    harness: AckHarness, seed: int
) -> None:
    rng = random.Random(seed)  # noqa: S311 # not a secret
    await harness.commit_samples(0)
    await assert_flushed(harness)
    committed = {0}
    for _ in range(12):
        indexes = rng.sample(range(1, 60), rng.randrange(1, 9))
        await harness.commit_samples(*indexes)
        committed.update(indexes)
        if rng.random() < 0.4:
            await harness.ingest_harness.ingest.flush()
        if rng.random() < 0.4:
            await harness.check_gaps()
        if rng.random() < 0.4:
            await harness.restart()
    await harness.commit_samples(60)
    await harness.check_gaps()
    stored = sorted(committed | {60})
    missing = [(first, second) for first, second in pairwise(stored) if second != first + 1]
    assert harness.gaps == missing
    assert harness.complete_up_to == (missing[0][0] if missing else 60)
    await assert_flushed(harness)
    assert harness.stored_complete_up_to() == harness.complete_up_to
    await harness.commit_samples(*range(1, 60))
    await harness.check_gaps()
    await assert_flushed(harness)
    assert (harness.gaps, harness.complete_up_to, harness.stored_complete_up_to()) == ([], 60, 60)


async def test_the_check_of_a_gap_that_was_merged_meanwhile_is_ignored(
    sqlite_harness: AckHarness,
) -> None:
    await sqlite_harness.commit_samples(*range(0, 66, 2))
    first = (sqlite_harness.series.gaps or [])[0]
    await sqlite_harness.commit_samples(66)
    before = sqlite_harness.gaps
    assert sample_index(first.until) < before[0][1]
    sqlite_harness.acknowledger.update_gap(
        TEMPERATURE, first, [TimeRange(first.since, first.until)], sqlite_harness.ingest_harness.now
    )
    assert (sqlite_harness.gaps, sqlite_harness.complete_up_to) == (before, 0)


# --- Starts ---


async def test_samples_not_recorded_before_a_crash_make_no_lasting_gaps(
    harness: AckHarness,
) -> None:
    await harness.commit_samples(0, 1)
    await assert_flushed(harness)
    await harness.commit_samples(*range(2, 20))
    await harness.restart()
    assert harness.complete_up_to == 1
    await harness.commit_samples(20)
    assert harness.gaps == [(1, 20)]
    await harness.check_gaps()
    assert (harness.gaps, harness.complete_up_to) == ([], 20)
    await assert_flushed(harness)


async def test_a_gap_not_recorded_before_a_crash_is_found_again(harness: AckHarness) -> None:
    await harness.commit_samples(0, 1)
    await assert_flushed(harness)
    await harness.commit_samples(*range(2, 9), *range(11, 20))
    await harness.restart()
    await harness.commit_samples(20)
    await harness.check_gaps()
    assert harness.gaps == [(8, 11)]


async def test_a_lost_gap_that_was_filled_before_a_crash_is_closed_after_it(harness: AckHarness) -> None:
    await harness.commit_samples(0, 2)
    harness.ingest_harness.now += HOUR
    await harness.check_gaps()
    await assert_flushed(harness)
    assert harness.series.unfilled == 1
    await harness.commit_samples(1)
    await harness.restart()
    await harness.check_gaps()
    assert (harness.gaps, harness.series.unfilled) == ([], 0)
    await assert_flushed(harness)


@pytest.mark.rule("ack-15", "ack-16")
async def test_downtime_of_the_service_does_not_expire_a_gap(harness: AckHarness) -> None:
    await harness.commit_samples(0, 2, 4, 6)
    await assert_flushed(harness)
    await harness.restart(after=2 * DAY)
    await harness.check_gaps()
    assert harness.series.expects_samples
    assert (harness.series.unfilled, harness.complete_up_to) == (0, 0)
    harness.ingest_harness.now += HOUR
    await harness.check_gaps()
    assert not harness.series.expects_samples


async def test_two_lost_gaps_that_are_filled_in_turn_are_both_closed(
    sqlite_harness: AckHarness,
) -> None:
    await sqlite_harness.commit_samples(0, 2, 4)
    sqlite_harness.ingest_harness.now += HOUR
    await sqlite_harness.check_gaps()
    assert (sqlite_harness.series.unfilled, len(sqlite_harness.acknowledger.check_schedule)) == (2, 0)
    await sqlite_harness.commit_samples(3)
    sqlite_harness.ingest_harness.now += 1500
    await sqlite_harness.commit_samples(1)
    for _ in range(5):
        sqlite_harness.ingest_harness.now += SECOND
        await check_due_gaps(
            sqlite_harness.acknowledger,
            sqlite_harness.ingest_harness.store,
            lambda: sqlite_harness.ingest_harness.now,
        )
    assert (sqlite_harness.gaps, sqlite_harness.complete_up_to) == ([], 4)


# --- Tables ---


async def test_the_tables_have_all_series_and_gaps_after_each_flush(harness: AckHarness) -> None:
    await harness.commit_samples(0, 2, 4)
    await harness.commit_samples(7, device=E)
    await harness.commit(build_report("event-decoded/something-odd", sample_time(0), seq=255, value=1))
    await assert_flushed(harness)
    assert len(harness.load_series()) == 3
    await harness.commit_samples(1, 5)
    await harness.commit_samples(9, device=E)
    await harness.check_gaps()
    await assert_flushed(harness)
    harness.ingest_harness.now += HOUR
    await harness.check_gaps()
    await assert_flushed(harness)
    assert harness.load_series()[TEMPERATURE].unfilled == 1
    await harness.commit_samples(3)
    await harness.check_gaps()
    await assert_flushed(harness)
    assert harness.stored_complete_up_to() == 5


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_failed_flush_is_repeated_and_loses_nothing(harness: AckHarness, failures: int) -> None:
    await harness.commit_samples(0, 3)
    await assert_flushed(harness)
    await harness.commit_samples(5)
    for turn in range(failures):
        harness.ingest_harness.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await harness.ingest_harness.ingest.flush()
        await harness.commit_samples(4 - turn, 6 + turn)
        await harness.check_gaps()
    assert to_rows(harness.load_series()) != to_rows(harness.acknowledger.series)
    await assert_flushed(harness)


async def test_a_flush_without_changes_writes_nothing(sqlite_harness: AckHarness) -> None:
    await sqlite_harness.commit_samples(0, 3)
    await assert_flushed(sqlite_harness)

    def delete_gaps(connection: object) -> None:
        connection.exec_driver_sql("DELETE FROM hole")  # type: ignore[attr-defined]

    sqlite_harness.ingest_harness.database.write_now(delete_gaps)
    await sqlite_harness.ingest_harness.ingest.flush()
    assert sqlite_harness.load_series()[TEMPERATURE].gaps is None


@pytest.mark.rule("ack-15", "ack-16")
async def test_complete_up_to_is_unknown_without_a_series_or_without_gap_checks(
    harness: AckHarness,
) -> None:
    assert harness.stored_complete_up_to() is None
    await harness.commit_samples(0)
    await assert_flushed(harness)
    assert harness.stored_complete_up_to() == 0
    for turn in range(1, 4):
        await harness.commit_samples(100 * turn)
        harness.ingest_harness.now += HOUR
        await harness.check_gaps()
    await assert_flushed(harness)
    assert (harness.complete_up_to, harness.stored_complete_up_to()) == (None, None)
    assert harness.acknowledger.gap_index.unchecked == 1
    assert (await harness.commit_samples(400), len(harness.gaps)) == ([0], 3)


async def test_complete_up_to_covers_the_measurements_and_the_events_of_an_identifier(
    harness: AckHarness,
) -> None:
    def build_event(index: int) -> object:
        return build_report("event/8800", sample_time(index), seq=index, value="01")

    await harness.commit_samples(0, 1, 2, 3, 9)
    await harness.commit(build_event(0), build_event(1))  # type: ignore[arg-type]
    await assert_flushed(harness)
    assert harness.stored_complete_up_to() == 3
    await harness.commit_samples(*range(4, 9))
    await harness.check_gaps()
    await assert_flushed(harness)
    assert harness.stored_complete_up_to() == 9  # a rare event does not limit it
    await harness.commit(build_event(5))  # type: ignore[arg-type]
    await assert_flushed(harness)
    assert harness.stored_complete_up_to() == 1


async def test_a_gap_without_a_series_is_ignored(harness: AckHarness) -> None:
    """Insert a row that the service never writes: an incomplete table must not prevent a start."""

    def insert_gap(connection: object) -> None:
        store.upsert_series(connection, [], {TEMPERATURE: [store.GapRow(1, 2, 3, None)]})  # type: ignore[arg-type]

    harness.ingest_harness.database.write_now(insert_gap)
    assert harness.load_series() == {}


def test_the_default_series_has_the_expected_key() -> None:
    assert (int(D, 16), SampleKind.MEASUREMENT, 0x8800) == TEMPERATURE
