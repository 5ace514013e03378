"""How many readings of a link were expected, from `seq` or from the other parents."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final

import pytest

from meshfleet.db.samples import SampleKind
from meshfleet.service.ingest.minute_rollup import decode_minute
from meshfleet.service.ingest.readings import CHANNEL_BASE, CHANNEL_SHIFT, SEQ_SHIFT, ReadingKind
from meshfleet.service.ingest.rollups import Rollups
from meshfleet.service.telemetry.link_loss import LinkLoss, LossEstimator
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

START: Final = 1_700_000_040_000
MINUTE: Final = 60_000
P, Q, R = 2, 3, 4

Reading = tuple[int, int, int | None]
"""Parent, channel (0 for none) and `seq`; all readings of a minute are evenly spread."""


def estimate(minutes: Iterable[list[Reading]]) -> dict[int, LinkLoss]:
    """Return the loss of each link after readings went through roll-ups, minute by minute."""
    rollups, parents = Rollups(), set[int]()
    for number, readings in enumerate(minutes):
        start = START + number * MINUTE
        rows = []
        for index, (parent, channel, seq) in enumerate(readings):
            flags = (channel - CHANNEL_BASE) << CHANNEL_SHIFT if channel else 0
            flags |= 0 if seq is None else (seq % 256 + 1) << SEQ_SHIFT
            rows.append((ReadingKind.LINK, 1, 5, start + index * 100, -50, parent, flags))
            parents.add(parent)
        rollups.add(1, rows, start)
    estimator = LossEstimator()
    by_time: dict[int, dict[int, object]] = {}
    for sample in rollups.list_unwritten_minutes(1, {SampleKind.LINK}):
        by_time.setdefault(sample.time, {})[sample.identifier] = decode_minute(sample)
    for time, links in by_time.items():
        estimator.add_minute(time, 0, links)  # type: ignore[arg-type] # all of them are summaries
    return {parent: estimator.estimate(parent) for parent in sorted(parents)}


def count_per_device(minutes: int, *, lost: Callable[[int], bool]) -> list[list[Reading]]:
    """Build readings of two parents that share one counter; some numbers never arrive."""
    numbers = iter(range(1000))
    return [[(parent, 0, seq) for parent in (P, Q) if not lost(seq := next(numbers))] for _ in range(minutes)]


def count_per_link(minutes: int, *, lost: Callable[[int, int], bool]) -> list[list[Reading]]:
    """Build readings of two parents with a counter of each link."""
    starts = {P: 7, Q: 200}
    return [
        [(parent, 37, starts[parent] + number) for parent in (P, Q) if not lost(parent, number)]
        for number in range(minutes)
    ]


def count_per_advertisement(minutes: int, *, lost: Callable[[int, int], bool]) -> list[list[Reading]]:
    """Build readings of two parents that hear the same advertisements, each on all channels."""
    return [
        [
            (parent, channel, number)
            for parent in (P, Q)
            for channel in (37, 38, 39)
            if not lost(parent, number)
        ]
        for number in range(minutes)
    ]


@pytest.mark.rule("rest-245")
@each_row(
    ("minutes", "expected"),
    [
        # One counter of the device: a missing number cannot be told from which link it is missing.
        (count_per_device(20, lost=lambda _: False), {P: (20, 0.0), Q: (20, 0.0)}),
        (count_per_device(20, lost=lambda seq: seq in {5, 6, 20, 29}), {P: (20, 0.1), Q: (20, 0.1)}),
        # A counter of each link.
        (count_per_link(20, lost=lambda _, __: False), {P: (20, 0.0), Q: (20, 0.0)}),
        (
            count_per_link(21, lost=lambda parent, number: parent == Q and number % 4 == 1),
            {P: (21, 0.0), Q: (21, 0.2381)},
        ),
        # A counter of advertisements that all nodes hear.
        (count_per_advertisement(20, lost=lambda _, __: False), {P: (60, 0.0), Q: (60, 0.0)}),
        (
            count_per_advertisement(21, lost=lambda parent, number: parent == Q and number % 2 == 1),
            {P: (63, 0.0), Q: (63, 0.4762)},
        ),
        # One link alone: both ways of counting are the same.
        ([[(P, 0, 3 * number)] for number in range(10)], {P: (28, 0.6429)}),
        # A counter that goes round while the link is silent is not followed.
        (
            [[(P, 0, 1)], *[[] for _ in range(200)], [(P, 0, 2)], *[[(P, 0, 3 + n)] for n in range(8)]],
            {P: (10, 0.0)},
        ),
        # Too few readings, readings with and without a number, random numbers: unknown.
        ([[(P, 0, 1)], [(P, 0, 2)]], {P: (None, None)}),
        ([[(P, 0, number)] for number in range(9)] + [[(P, 0, None)]], {P: (None, None)}),
        # Without numbers, a parent is compared with the best one, and only with readings of its own kind.
        (
            [[(P, 37, None), (P, 38, None), (Q, 37, None), (R, 0, None)] for _ in range(10)],
            {P: (20, 0.0), Q: (20, 0.5), R: (10, 0.0)},
        ),
        # A minute in which the parent heard nothing counts, but only between its first and its last minute.
        (
            [
                [(P, 37, None)],
                [(P, 37, None), (Q, 37, None)],
                [(P, 37, None)],
                [(P, 37, None), (Q, 37, None)],
                [(P, 37, None)],
            ],
            {P: (5, 0.0), Q: (3, 0.3333)},
        ),
    ],
)
def test_the_loss_is_what_the_numbers_or_the_other_parents_tell(
    minutes: list[list[Reading]], expected: dict[int, tuple[int | None, float | None]]
) -> None:
    assert {parent: tuple(each) for parent, each in estimate(minutes).items()} == expected


@pytest.mark.rule("rest-245")
def test_nothing_is_claimed_if_both_ways_of_counting_are_possible() -> None:
    numbers = Random(3)  # noqa: S311 # not a secret
    minutes: list[list[Reading]] = [
        [(P, 0, numbers.randrange(256)), (Q, 0, numbers.randrange(256))] for _ in range(30)
    ]
    assert set(estimate(minutes).values()) == {LinkLoss()}
