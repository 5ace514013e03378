"""Sweeps: the same comes out as from all pieces at once, and none is loaded in vain."""

from __future__ import annotations

from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.db.samples import segments
from meshfleet.db.samples.chunk import MOST, unique, unpack
from meshfleet.db.samples.in_files import Limits
from meshfleet.db.samples.sweep import Piece, sweep
from tests.db.samples import made_up
from tests.db.samples.trial import DEVICE, NOON, SMALL, row, samples, wanted

if TYPE_CHECKING:
    from meshfleet.db.samples import Row, Sample
    from tests.db.samples.trial import Trial

loads = st.lists(st.lists(made_up.rows, max_size=8).map(samples), max_size=6)
slacks = st.lists(st.integers(0, 2**40), min_size=6, max_size=6)


def piece(load: list[Sample], slack: int = 0) -> Piece:
    """A piece whose times are told with that much to spare."""
    times = [each.time for each in load] or [0]
    return Piece(min(times) - slack, max(times) + slack, lambda: load)


@given(loads, slacks, st.booleans())
def test_a_sweep_gives_the_same_as_sorting_everything(
    loads: list[list[Sample]],
    slacks: list[int],
    newest_first: bool,  # noqa: FBT001 # drawn
) -> None:
    pieces = [piece(load, slack) for load, slack in zip(loads, slacks, strict=False)]
    expected = unique(chain.from_iterable(loads), newest_first=newest_first)
    assert list(sweep(pieces, newest_first=newest_first)) == expected


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_sweep_loads_a_piece_only_when_its_time_has_come(*, newest_first: bool) -> None:
    loaded: list[int] = []

    def load(number: int) -> list[Sample]:
        loaded.append(number)
        return samples([row(number * 10), row(number * 10 + 9)])

    pieces = [Piece(number * 10, number * 10 + 9, partial(load, number)) for number in range(100)]
    found = sweep(pieces, newest_first=newest_first)
    assert loaded == []
    order = list(range(99, -1, -1)) if newest_first else list(range(100))
    for count in range(1, 101):
        assert len(list(islice(found, 2))) == 2
        assert loaded == order[:count]


def test_of_two_pieces_that_begin_at_one_moment_both_are_loaded_and_the_earlier_counts() -> None:
    early, late = samples([row(5, 1.0)]), samples([row(5, 2.0)])
    for newest_first in (False, True):
        assert list(sweep([piece(early), piece(late)], newest_first=newest_first)) == early
        assert list(sweep([piece(late), piece(early)], newest_first=newest_first)) == late


# --- Days of many samples ---

MANY = 10 * MOST


def rows_of_a_large_day() -> list[Row]:
    """In no order, as they may come."""
    return [row(NOON + (step * 7919) % MANY) for step in range(MANY)]


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many samples each chunk of a file had that was unpacked."""
    counts: list[int] = []

    def count(data: bytes) -> list[Sample]:
        found = unpack(data)
        counts.append(len(found))
        return found

    monkeypatch.setattr(segments, "unpack", count)
    return counts


@pytest.mark.anyio
@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_page_of_a_large_day_needs_few_chunks(
    files: Trial, unpacked: list[int], *, newest_first: bool
) -> None:
    files.put({DEVICE: rows_of_a_large_day()})
    await files.tend()
    assert unpacked == []
    asked = wanted(newest_first=newest_first)
    first = await files.store.read(asked, next)
    assert (first.time, unpacked) == (NOON + MANY - 1 if newest_first else NOON, [MOST])
    unpacked.clear()
    middle = (NOON + MANY // 2 + 5, first.kind, first.identifier, first.seq)
    following = await files.store.read(wanted(newest_first=newest_first, after=middle), next)
    assert (following.time, len(unpacked)) == (middle[0] + (-1 if newest_first else 1), 1)
    unpacked.clear()
    assert await files.times(newest_first=newest_first) == sorted(
        range(NOON, NOON + MANY), reverse=newest_first
    )
    assert unpacked == [MOST] * 10


@pytest.mark.anyio
async def test_large_days_that_are_merged_are_the_same_as_before(files: Trial, unpacked: list[int]) -> None:
    rows = rows_of_a_large_day()
    for part in (rows[: MANY // 2], rows[MANY // 3 :], [row(NOON + step, 7.0) for step in range(-3, 3)]):
        files.put({DEVICE: part})
        await files.tend()
    before = await files.read()
    files.reopen(limits=Limits(full=1, fan=3))
    await files.tend()
    assert len(files.names) == 1
    files.reopen(limits=SMALL)
    assert await files.read() == before
    assert [each.number for each in before[:5]] == [7.0, 7.0, 7.0, 1.0, 1.0]
    assert [each.time for each in before] == list(range(NOON - 3, NOON + MANY))
    unpacked.clear()
    await files.store.read(wanted(since=NOON + MANY - 2), list)
    assert len(unpacked) == 1
