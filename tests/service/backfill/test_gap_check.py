"""The ledger of holes beside the samples: what is stored decides, and the tables follow."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.backfill import store
from meshfleet.service.backfill.gap_check import check_due_gaps
from meshfleet.service.backfill.series import Gap
from tests.service.backfill.ack_harness import TEMPERATURE, assert_flushed, sample_index, sample_time, to_rows
from tests.service.ingest.ingest_harness import DAY, MINUTE, NOON, SECOND
from tests.service.ingest.messages import B, D, E, build_report, mac_to_number

if TYPE_CHECKING:
    from meshfleet.db.samples import SampleQuery
    from meshfleet.db.samples.sample import SampleConsumer
    from tests.service.backfill.ack_harness import AckHarness

pytestmark = [pytest.mark.anyio, pytest.mark.rule("ack-15"), pytest.mark.both_databases]

HOUR = 60 * MINUTE
SEEDS = range(4)


# --- What is stored decides ---


@pytest.mark.rule("ack-25")
async def test_a_hole_is_there_until_all_of_it_is_stored(ground: AckHarness) -> None:
    await ground.commit_samples(0, 1, 6)
    await ground.check_gaps()
    assert (ground.gaps, ground.complete_up_to) == ([(1, 6)], 1)
    await ground.commit_samples(5, 3)
    await ground.check_gaps()
    assert (ground.gaps, ground.complete_up_to) == ([(1, 3), (3, 5)], 1)
    await ground.commit_samples(2)
    await ground.check_gaps()
    assert (ground.gaps, ground.complete_up_to) == ([(3, 5)], 3)
    await ground.commit_samples(4)
    await ground.check_gaps()
    assert (ground.gaps, ground.complete_up_to) == ([], 6)
    await assert_flushed(ground)


async def test_samples_of_other_series_fill_nothing(ground: AckHarness) -> None:
    await ground.commit_samples(0, 2)
    others = [
        build_report("event/8800", sample_time(1), seq=1, value="01"),
        build_report("property/8800", sample_time(1), seq=1, value="01"),
        build_report("measurement/8801", sample_time(1), seq=1, value="01"),
        build_report("measurement/8800", sample_time(1), seq=1, value="0866", device=E),
    ]
    await ground.commit(*others)
    await ground.check_gaps()
    assert ground.gaps == [(0, 2)]


async def test_what_comes_through_a_gateway_without_acks_fills_a_hole_too(ground: AckHarness) -> None:
    """Nobody acknowledges it; but it is stored, and now and then the holes are looked at."""
    await ground.commit_samples(0, 2)
    await ground.check_gaps()
    ground.ingest_harness.ingest.acking_gateways.discard(mac_to_number(B))
    assert await ground.commit_samples(1, gateway=B) == []
    ground.ingest_harness.now += MINUTE
    await ground.check_gaps()
    assert ground.gaps == []


async def test_a_hole_is_not_looked_at_while_samples_keep_coming_and_not_much_later_either(
    in_file: AckHarness,
) -> None:
    await in_file.commit_samples(0, 100)
    found = in_file.ingest_harness.now
    for each in range(99, 0, -1):
        in_file.ingest_harness.now += 500
        await in_file.commit_samples(each)
        before = in_file.gaps
        await check_due_gaps(
            in_file.acknowledger, in_file.ingest_harness.store, lambda: in_file.ingest_harness.now
        )
        if in_file.gaps != before:
            break
    assert 9 * SECOND <= in_file.ingest_harness.now - found <= 11 * SECOND


async def test_of_many_holes_those_that_waited_longest_are_looked_at_first(in_file: AckHarness) -> None:
    """However many never fill, each has its turn."""
    devices = [f"c0ffee{each:06x}" for each in range(250)]
    for device in devices:
        await in_file.commit(
            *(build_report("event/8810", sample_time(each), seq=each, device=device) for each in (0, 2))
        )
    holes = [each for series in in_file.acknowledger.series.values() for each in series.gaps or ()]
    assert len(holes) == 250
    for _ in range(3):
        in_file.ingest_harness.now += 2 * MINUTE
        await check_due_gaps(
            in_file.acknowledger, in_file.ingest_harness.store, lambda: in_file.ingest_harness.now
        )
    found = [each for series in in_file.acknowledger.series.values() for each in series.gaps or ()]
    assert len(found) == 250
    assert all(each.checked_at for each in found)


@pytest.mark.rule("ack-25")
@pytest.mark.parametrize(
    ("hole", "left"),
    [
        ((50, 60), [(50, 60)]),
        ((-9, 2), [(-9, 0)]),
        ((1, 9), [(3, 9)]),
        ((0, 3), []),
    ],
    ids=["nothing", "no beginning", "no end", "all"],
)
async def test_a_hole_is_not_filled_while_its_ends_are_not_stored(
    ground: AckHarness, hole: tuple[int, int], left: list[tuple[int, int]]
) -> None:
    await ground.commit_samples(0, 1, 2, 3)
    ground.series.gaps = [Gap(sample_time(hole[0]), sample_time(hole[1]), NOON)]
    ground.acknowledger.check_schedule.schedule(TEMPERATURE, 0, ground.series.due_at)
    await ground.check_gaps()
    assert ground.gaps == left


class OvertakenStore:
    """Samples of which one comes while they are read, and too late to be among what is read."""

    def __init__(self, ground: AckHarness, *late: int) -> None:
        self._ground = ground
        self._late = late

    async def read(self, query: SampleQuery, consume: SampleConsumer[Any]) -> Any:
        """See `SampleStore`."""
        found = await self._ground.ingest_harness.store.read(query, consume)
        await self._ground.commit_samples(*self._late)
        return found


@pytest.mark.rule("ack-25")
async def test_what_comes_while_a_lost_hole_is_looked_up_is_seen_all_the_same(in_file: AckHarness) -> None:
    """Even if its batch began before that."""
    await in_file.commit_samples(0, 4)
    in_file.ingest_harness.now += HOUR
    await in_file.check_gaps()
    await in_file.commit_samples(3)
    later = in_file.ingest_harness.now + 5 * SECOND
    await check_due_gaps(in_file.acknowledger, OvertakenStore(in_file, 1, 2), lambda: later)  # type: ignore[arg-type]
    await in_file.check_gaps()
    assert in_file.gaps == []


async def test_a_hole_that_could_not_be_looked_up_is_looked_up_later(in_file: AckHarness) -> None:
    class Failing:
        async def read(self, *_: object) -> None:
            raise DatabaseUnavailable

    await in_file.commit_samples(0, 2)
    in_file.ingest_harness.now += HOUR
    await in_file.check_gaps()
    await in_file.commit_samples(1)
    in_file.ingest_harness.now += MINUTE
    with pytest.raises(DatabaseUnavailable):
        await check_due_gaps(in_file.acknowledger, Failing(), lambda: in_file.ingest_harness.now)  # type: ignore[arg-type]
    await in_file.check_gaps()
    assert in_file.gaps == []


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_comes_and_whenever_it_crashes_the_ledger_ends_up_right(
    ground: AckHarness, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 # no secret
    await ground.commit_samples(0)
    await assert_flushed(ground)
    taken = {0}
    for _ in range(12):
        places = chance.sample(range(1, 60), chance.randrange(1, 9))
        await ground.commit_samples(*places)
        taken.update(places)
        if chance.random() < 0.4:
            await ground.ingest_harness.ingest.flush()
        if chance.random() < 0.4:
            await ground.check_gaps()
        if chance.random() < 0.4:
            await ground.restart()
    await ground.commit_samples(60)
    await ground.check_gaps()
    there = sorted(taken | {60})
    missing = [(a, b) for a, b in pairwise(there) if b != a + 1]
    assert ground.gaps == missing
    assert ground.complete_up_to == (missing[0][0] if missing else 60)
    await assert_flushed(ground)
    assert ground.stored_complete_up_to() == ground.complete_up_to
    await ground.commit_samples(*range(1, 60))
    await ground.check_gaps()
    await assert_flushed(ground)
    assert (ground.gaps, ground.complete_up_to, ground.stored_complete_up_to()) == ([], 60, 60)


async def test_what_was_read_of_a_hole_that_is_part_of_a_larger_one_by_now_is_passed_over(
    in_file: AckHarness,
) -> None:
    await in_file.commit_samples(*range(0, 66, 2))
    first = (in_file.series.gaps or [])[0]
    await in_file.commit_samples(66)
    before = in_file.gaps
    assert sample_index(first.until) < before[0][1]
    in_file.acknowledger.update_gap(
        TEMPERATURE, first, [(first.since, first.until)], in_file.ingest_harness.now
    )
    assert (in_file.gaps, in_file.complete_up_to) == (before, 0)


# --- Starts ---


async def test_samples_that_the_ledger_did_not_know_before_a_kill_are_no_holes_for_long(
    ground: AckHarness,
) -> None:
    await ground.commit_samples(0, 1)
    await assert_flushed(ground)
    await ground.commit_samples(*range(2, 20))
    await ground.restart()
    assert ground.complete_up_to == 1
    await ground.commit_samples(20)
    assert ground.gaps == [(1, 20)]
    await ground.check_gaps()
    assert (ground.gaps, ground.complete_up_to) == ([], 20)
    await assert_flushed(ground)


async def test_a_hole_that_nobody_had_written_down_before_a_kill_is_found_again(ground: AckHarness) -> None:
    await ground.commit_samples(0, 1)
    await assert_flushed(ground)
    await ground.commit_samples(*range(2, 9), *range(11, 20))
    await ground.restart()
    await ground.commit_samples(20)
    await ground.check_gaps()
    assert ground.gaps == [(8, 11)]


async def test_a_lost_hole_that_was_filled_just_before_a_kill_is_no_hole_after_it(ground: AckHarness) -> None:
    await ground.commit_samples(0, 2)
    ground.ingest_harness.now += HOUR
    await ground.check_gaps()
    await assert_flushed(ground)
    assert ground.series.unfilled == 1
    await ground.commit_samples(1)
    await ground.restart()
    await ground.check_gaps()
    assert (ground.gaps, ground.series.unfilled) == ([], 0)
    await assert_flushed(ground)


@pytest.mark.rule("ack-15", "ack-16")
async def test_a_hole_is_not_lost_for_the_time_that_we_were_away(ground: AckHarness) -> None:
    await ground.commit_samples(0, 2, 4, 6)
    await assert_flushed(ground)
    await ground.restart(after=2 * DAY)
    await ground.check_gaps()
    assert ground.series.expects_samples
    assert (ground.series.unfilled, ground.complete_up_to) == (0, 0)
    ground.ingest_harness.now += HOUR
    await ground.check_gaps()
    assert not ground.series.expects_samples


async def test_two_lost_holes_that_fill_one_after_the_other_are_both_seen_to_be_filled(
    in_file: AckHarness,
) -> None:
    await in_file.commit_samples(0, 2, 4)
    in_file.ingest_harness.now += HOUR
    await in_file.check_gaps()
    assert (in_file.series.unfilled, len(in_file.acknowledger.check_schedule)) == (2, 0)
    await in_file.commit_samples(3)
    in_file.ingest_harness.now += 1500
    await in_file.commit_samples(1)
    for _ in range(5):
        in_file.ingest_harness.now += SECOND
        await check_due_gaps(
            in_file.acknowledger, in_file.ingest_harness.store, lambda: in_file.ingest_harness.now
        )
    assert (in_file.gaps, in_file.complete_up_to) == ([], 4)


# --- The tables ---


async def test_the_tables_have_all_series_and_holes_after_each_flush(ground: AckHarness) -> None:
    await ground.commit_samples(0, 2, 4)
    await ground.commit_samples(7, device=E)
    await ground.commit(build_report("event-decoded/something-odd", sample_time(0), seq=255, value=1))
    await assert_flushed(ground)
    assert len(ground.load_series()) == 3
    await ground.commit_samples(1, 5)
    await ground.commit_samples(9, device=E)
    await ground.check_gaps()
    await assert_flushed(ground)
    ground.ingest_harness.now += HOUR
    await ground.check_gaps()
    await assert_flushed(ground)
    assert ground.load_series()[TEMPERATURE].unfilled == 1
    await ground.commit_samples(3)
    await ground.check_gaps()
    await assert_flushed(ground)
    assert ground.stored_complete_up_to() == 5


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_flush_that_fails_is_tried_again_and_loses_nothing(ground: AckHarness, failures: int) -> None:
    await ground.commit_samples(0, 3)
    await assert_flushed(ground)
    await ground.commit_samples(5)
    for turn in range(failures):
        ground.ingest_harness.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await ground.ingest_harness.ingest.flush()
        await ground.commit_samples(4 - turn, 6 + turn)
        await ground.check_gaps()
    assert to_rows(ground.load_series()) != to_rows(ground.acknowledger.series)
    await assert_flushed(ground)


async def test_a_flush_without_news_writes_nothing(in_file: AckHarness) -> None:
    await in_file.commit_samples(0, 3)
    await assert_flushed(in_file)

    def spoil(connection: object) -> None:
        connection.exec_driver_sql("DELETE FROM hole")  # type: ignore[attr-defined]

    in_file.ingest_harness.database.write_now(spoil)
    await in_file.ingest_harness.ingest.flush()
    assert in_file.load_series()[TEMPERATURE].gaps is None


@pytest.mark.rule("ack-15", "ack-16")
async def test_complete_up_to_is_unknown_where_there_is_no_series_or_nobody_believes_it(
    ground: AckHarness,
) -> None:
    assert ground.stored_complete_up_to() is None
    await ground.commit_samples(0)
    await assert_flushed(ground)
    assert ground.stored_complete_up_to() == 0
    for turn in range(1, 4):
        await ground.commit_samples(100 * turn)
        ground.ingest_harness.now += HOUR
        await ground.check_gaps()
    await assert_flushed(ground)
    assert (ground.complete_up_to, ground.stored_complete_up_to()) == (None, None)
    assert ground.acknowledger.gap_index.unchecked == 1
    assert (await ground.commit_samples(400), len(ground.gaps)) == ([0], 3)


async def test_an_identifier_that_is_measured_and_happens_too_is_complete_as_far_as_both_are(
    ground: AckHarness,
) -> None:
    def event(place: int) -> object:
        return build_report("event/8800", sample_time(place), seq=place, value="01")

    await ground.commit_samples(0, 1, 2, 3, 9)
    await ground.commit(event(0), event(1))  # type: ignore[arg-type]
    await assert_flushed(ground)
    assert ground.stored_complete_up_to() == 3
    await ground.commit_samples(*range(4, 9))
    await ground.check_gaps()
    await assert_flushed(ground)
    assert ground.stored_complete_up_to() == 9  # that it happens rarely holds nobody up
    await ground.commit(event(5))  # type: ignore[arg-type]
    await assert_flushed(ground)
    assert ground.stored_complete_up_to() == 1


async def test_a_hole_without_a_series_is_passed_over(ground: AckHarness) -> None:
    """No program of ours writes one; a table that somebody cut short must not keep us from starting."""

    def spoil(connection: object) -> None:
        store.upsert_series(connection, [], {TEMPERATURE: [(1, 2, 3, None)]})  # type: ignore[arg-type]

    ground.ingest_harness.database.write_now(spoil)
    assert ground.load_series() == {}


def test_the_series_of_most_tests_is_the_one_they_mean() -> None:
    assert (int(D, 16), SampleKind.MEASUREMENT, 0x8800) == TEMPERATURE
