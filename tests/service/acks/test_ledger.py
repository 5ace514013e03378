"""The ledger of holes beside the samples: what is stored decides, and the tables follow."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.acks import store
from meshfleet.service.acks.checking import check
from meshfleet.service.acks.series import Hole
from tests.service.acks.ground import TEMPERATURE, at, flush, place, rows
from tests.service.ingest.intake import DAY, MINUTE, NOON, SECOND
from tests.service.ingest.messages import B, D, E, number, report

if TYPE_CHECKING:
    from meshfleet.db.samples import Wanted
    from meshfleet.db.samples.sample import Use
    from tests.service.acks.ground import Ground

pytestmark = [pytest.mark.anyio, pytest.mark.rule("ack-15"), pytest.mark.both_databases]

HOUR = 60 * MINUTE
SEEDS = range(4)


# --- What is stored decides ---


@pytest.mark.rule("ack-25")
async def test_a_hole_is_there_until_all_of_it_is_stored(ground: Ground) -> None:
    await ground.tell(0, 1, 6)
    await ground.look()
    assert (ground.holes, ground.complete) == ([(1, 6)], 1)
    await ground.tell(5, 3)
    await ground.look()
    assert (ground.holes, ground.complete) == ([(1, 3), (3, 5)], 1)
    await ground.tell(2)
    await ground.look()
    assert (ground.holes, ground.complete) == ([(3, 5)], 3)
    await ground.tell(4)
    await ground.look()
    assert (ground.holes, ground.complete) == ([], 6)
    await flush(ground)


async def test_samples_of_other_series_fill_nothing(ground: Ground) -> None:
    await ground.tell(0, 2)
    others = [
        report("event/8800", at(1), seq=1, value="01"),
        report("property/8800", at(1), seq=1, value="01"),
        report("measurement/8801", at(1), seq=1, value="01"),
        report("measurement/8800", at(1), seq=1, value="0866", device=E),
    ]
    await ground.take(*others)
    await ground.look()
    assert ground.holes == [(0, 2)]


async def test_what_comes_through_a_gateway_without_acks_fills_a_hole_too(ground: Ground) -> None:
    """Nobody acknowledges it; but it is stored, and now and then the holes are looked at."""
    await ground.tell(0, 2)
    await ground.look()
    ground.intake.ingest.acking.discard(number(B))
    assert await ground.tell(1, gateway=B) == []
    ground.intake.now += MINUTE
    await ground.look()
    assert ground.holes == []


async def test_a_hole_is_not_looked_at_while_samples_keep_coming_and_not_much_later_either(
    in_file: Ground,
) -> None:
    await in_file.tell(0, 100)
    found = in_file.intake.now
    for each in range(99, 0, -1):
        in_file.intake.now += 500
        await in_file.tell(each)
        before = in_file.holes
        await check(in_file.acks, in_file.intake.store, lambda: in_file.intake.now)
        if in_file.holes != before:
            break
    assert 9 * SECOND <= in_file.intake.now - found <= 11 * SECOND


async def test_of_many_holes_those_that_waited_longest_are_looked_at_first(in_file: Ground) -> None:
    """However many never fill, each has its turn."""
    devices = [f"c0ffee{each:06x}" for each in range(250)]
    for device in devices:
        await in_file.take(*(report("event/8810", at(each), seq=each, device=device) for each in (0, 2)))
    holes = [each for series in in_file.acks.series.values() for each in series.holes or ()]
    assert len(holes) == 250
    for _ in range(3):
        in_file.intake.now += 2 * MINUTE
        await check(in_file.acks, in_file.intake.store, lambda: in_file.intake.now)
    found = [each for series in in_file.acks.series.values() for each in series.holes or ()]
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
    ground: Ground, hole: tuple[int, int], left: list[tuple[int, int]]
) -> None:
    await ground.tell(0, 1, 2, 3)
    ground.series.holes = [Hole(at(hole[0]), at(hole[1]), NOON)]
    ground.acks.agenda.put(TEMPERATURE, 0, ground.series.due_at)
    await ground.look()
    assert ground.holes == left


class Overtaken:
    """Samples of which one comes while they are read, and too late to be among what is read."""

    def __init__(self, ground: Ground, *late: int) -> None:
        self._ground = ground
        self._late = late

    async def read(self, wanted: Wanted, use: Use[Any]) -> Any:
        """See `SampleStore`."""
        found = await self._ground.intake.store.read(wanted, use)
        await self._ground.tell(*self._late)
        return found


@pytest.mark.rule("ack-25")
async def test_what_comes_while_a_lost_hole_is_looked_up_is_seen_all_the_same(in_file: Ground) -> None:
    """Even if its batch began before that."""
    await in_file.tell(0, 4)
    in_file.intake.now += HOUR
    await in_file.look()
    await in_file.tell(3)
    later = in_file.intake.now + 5 * SECOND
    await check(in_file.acks, Overtaken(in_file, 1, 2), lambda: later)  # type: ignore[arg-type]
    await in_file.look()
    assert in_file.holes == []


async def test_a_hole_that_could_not_be_looked_up_is_looked_up_later(in_file: Ground) -> None:
    class Failing:
        async def read(self, *_: object) -> None:
            raise DatabaseUnavailable

    await in_file.tell(0, 2)
    in_file.intake.now += HOUR
    await in_file.look()
    await in_file.tell(1)
    in_file.intake.now += MINUTE
    with pytest.raises(DatabaseUnavailable):
        await check(in_file.acks, Failing(), lambda: in_file.intake.now)  # type: ignore[arg-type]
    await in_file.look()
    assert in_file.holes == []


@pytest.mark.parametrize("seed", SEEDS)
async def test_whatever_comes_and_whenever_it_crashes_the_ledger_ends_up_right(
    ground: Ground, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 # no secret
    await ground.tell(0)
    await flush(ground)
    taken = {0}
    for _ in range(12):
        places = chance.sample(range(1, 60), chance.randrange(1, 9))
        await ground.tell(*places)
        taken.update(places)
        if chance.random() < 0.4:
            await ground.intake.ingest.flush()
        if chance.random() < 0.4:
            await ground.look()
        if chance.random() < 0.4:
            await ground.restart()
    await ground.tell(60)
    await ground.look()
    there = sorted(taken | {60})
    missing = [(a, b) for a, b in pairwise(there) if b != a + 1]
    assert ground.holes == missing
    assert ground.complete == (missing[0][0] if missing else 60)
    await flush(ground)
    assert ground.complete_by_tables() == ground.complete
    await ground.tell(*range(1, 60))
    await ground.look()
    await flush(ground)
    assert (ground.holes, ground.complete, ground.complete_by_tables()) == ([], 60, 60)


async def test_what_was_read_of_a_hole_that_is_part_of_a_larger_one_by_now_is_passed_over(
    in_file: Ground,
) -> None:
    await in_file.tell(*range(0, 66, 2))
    first = (in_file.series.holes or [])[0]
    await in_file.tell(66)
    before = in_file.holes
    assert place(first.until) < before[0][1]
    in_file.acks.settle(TEMPERATURE, first, [(first.since, first.until)], in_file.intake.now)
    assert (in_file.holes, in_file.complete) == (before, 0)


# --- Starts ---


async def test_samples_that_the_ledger_did_not_know_before_a_kill_are_no_holes_for_long(
    ground: Ground,
) -> None:
    await ground.tell(0, 1)
    await flush(ground)
    await ground.tell(*range(2, 20))
    await ground.restart()
    assert ground.complete == 1
    await ground.tell(20)
    assert ground.holes == [(1, 20)]
    await ground.look()
    assert (ground.holes, ground.complete) == ([], 20)
    await flush(ground)


async def test_a_hole_that_nobody_had_written_down_before_a_kill_is_found_again(ground: Ground) -> None:
    await ground.tell(0, 1)
    await flush(ground)
    await ground.tell(*range(2, 9), *range(11, 20))
    await ground.restart()
    await ground.tell(20)
    await ground.look()
    assert ground.holes == [(8, 11)]


async def test_a_lost_hole_that_was_filled_just_before_a_kill_is_no_hole_after_it(ground: Ground) -> None:
    await ground.tell(0, 2)
    ground.intake.now += HOUR
    await ground.look()
    await flush(ground)
    assert ground.series.unfilled == 1
    await ground.tell(1)
    await ground.restart()
    await ground.look()
    assert (ground.holes, ground.series.unfilled) == ([], 0)
    await flush(ground)


@pytest.mark.rule("ack-15", "ack-16")
async def test_a_hole_is_not_lost_for_the_time_that_we_were_away(ground: Ground) -> None:
    await ground.tell(0, 2, 4, 6)
    await flush(ground)
    await ground.restart(after=2 * DAY)
    await ground.look()
    assert ground.series.is_waiting
    assert (ground.series.unfilled, ground.complete) == (0, 0)
    ground.intake.now += HOUR
    await ground.look()
    assert not ground.series.is_waiting


async def test_two_lost_holes_that_fill_one_after_the_other_are_both_seen_to_be_filled(
    in_file: Ground,
) -> None:
    await in_file.tell(0, 2, 4)
    in_file.intake.now += HOUR
    await in_file.look()
    assert (in_file.series.unfilled, len(in_file.acks.agenda)) == (2, 0)
    await in_file.tell(3)
    in_file.intake.now += 1500
    await in_file.tell(1)
    for _ in range(5):
        in_file.intake.now += SECOND
        await check(in_file.acks, in_file.intake.store, lambda: in_file.intake.now)
    assert (in_file.holes, in_file.complete) == ([], 4)


# --- The tables ---


async def test_the_tables_have_all_series_and_holes_after_each_flush(ground: Ground) -> None:
    await ground.tell(0, 2, 4)
    await ground.tell(7, device=E)
    await ground.take(report("event-decoded/something-odd", at(0), seq=255, value=1))
    await flush(ground)
    assert len(ground.tables()) == 3
    await ground.tell(1, 5)
    await ground.tell(9, device=E)
    await ground.look()
    await flush(ground)
    ground.intake.now += HOUR
    await ground.look()
    await flush(ground)
    assert ground.tables()[TEMPERATURE].unfilled == 1
    await ground.tell(3)
    await ground.look()
    await flush(ground)
    assert ground.complete_by_tables() == 5


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_flush_that_fails_is_tried_again_and_loses_nothing(ground: Ground, failures: int) -> None:
    await ground.tell(0, 3)
    await flush(ground)
    await ground.tell(5)
    for turn in range(failures):
        ground.intake.store.failures = 1
        with pytest.raises(DatabaseUnavailable):
            await ground.intake.ingest.flush()
        await ground.tell(4 - turn, 6 + turn)
        await ground.look()
    assert rows(ground.tables()) != rows(ground.acks.series)
    await flush(ground)


async def test_a_flush_without_news_writes_nothing(in_file: Ground) -> None:
    await in_file.tell(0, 3)
    await flush(in_file)

    def spoil(connection: object) -> None:
        connection.exec_driver_sql("DELETE FROM hole")  # type: ignore[attr-defined]

    in_file.intake.database.write_now(spoil)
    await in_file.intake.ingest.flush()
    assert in_file.tables()[TEMPERATURE].holes is None


@pytest.mark.rule("ack-15", "ack-16")
async def test_complete_up_to_is_unknown_where_there_is_no_series_or_nobody_believes_it(
    ground: Ground,
) -> None:
    assert ground.complete_by_tables() is None
    await ground.tell(0)
    await flush(ground)
    assert ground.complete_by_tables() == 0
    for turn in range(1, 4):
        await ground.tell(100 * turn)
        ground.intake.now += HOUR
        await ground.look()
    await flush(ground)
    assert (ground.complete, ground.complete_by_tables()) == (None, None)
    assert ground.acks.holed.unchecked == 1
    assert (await ground.tell(400), len(ground.holes)) == ([0], 3)


async def test_an_identifier_that_is_measured_and_happens_too_is_complete_as_far_as_both_are(
    ground: Ground,
) -> None:
    def event(place: int) -> object:
        return report("event/8800", at(place), seq=place, value="01")

    await ground.tell(0, 1, 2, 3, 9)
    await ground.take(event(0), event(1))  # type: ignore[arg-type]
    await flush(ground)
    assert ground.complete_by_tables() == 3
    await ground.tell(*range(4, 9))
    await ground.look()
    await flush(ground)
    assert ground.complete_by_tables() == 9  # that it happens rarely holds nobody up
    await ground.take(event(5))  # type: ignore[arg-type]
    await flush(ground)
    assert ground.complete_by_tables() == 1


async def test_a_hole_without_a_series_is_passed_over(ground: Ground) -> None:
    """No program of ours writes one; a table that somebody cut short must not keep us from starting."""

    def spoil(connection: object) -> None:
        store.write(connection, [], {TEMPERATURE: [(1, 2, 3, None)]})  # type: ignore[arg-type]

    ground.intake.database.write_now(spoil)
    assert ground.tables() == {}


def test_the_series_of_most_tests_is_the_one_they_mean() -> None:
    assert (int(D, 16), SampleKind.MEASUREMENT, 0x8800) == TEMPERATURE
