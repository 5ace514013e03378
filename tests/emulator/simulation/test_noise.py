"""Chance that can be repeated."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from statistics import fmean, pstdev
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.simulation.noise import (
    derive_noise_key,
    drift_noise,
    exponential_delay,
    fast_noise,
    noise_bits,
    triangular_noise,
    uniform_noise,
)
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable

keys = st.integers(0, 2**32 - 1)
counts = st.integers(0, 2**40)
MANY = range(4000)
DICE: list[tuple[Callable[[int, int], float], float]] = [
    (uniform_noise, 0.0),
    (triangular_noise, -1.0),
    (fast_noise, -1.0),
]


@given(keys, counts)
def test_bits_are_32_and_depend_on_nothing_but_key_and_count(key: int, n: int) -> None:
    assert noise_bits(key, n) == noise_bits(key, n)
    assert 0 <= noise_bits(key, n) < 2**32


@given(keys, counts)
def test_dice_stay_in_their_range(key: int, n: int) -> None:
    assert 0.0 <= uniform_noise(key, n) < 1.0
    assert -1.0 <= triangular_noise(key, n) <= 1.0
    # One part in 32,767 above is what the cheap die costs.
    assert -1.0 <= fast_noise(key, n) <= 1.0 + 1e-4


@each_row(("die", "least"), DICE)
@each_row("key", [0, 1, 0xFFFFFFFF, derive_noise_key("a device")])
def test_dice_fall_to_both_sides_equally_often(
    die: Callable[[int, int], float], least: float, key: int
) -> None:
    middle = (least + 1.0) / 2.0
    assert fmean(die(key, n) for n in MANY) == pytest.approx(middle, abs=0.04)


@each_row("key", [0, 7, derive_noise_key("a device")])
def test_noise_is_even_and_wobble_prefers_the_middle(key: int) -> None:
    tenths = [0] * 10
    for n in MANY:
        tenths[int(uniform_noise(key, n) * 10)] += 1
    assert min(tenths) > 320
    assert max(tenths) < 480
    assert (
        pstdev(triangular_noise(key, n) for n in MANY)
        < pstdev(2 * uniform_noise(key, n) - 1 for n in MANY) - 0.1
    )


def test_one_throw_says_nothing_about_the_next_nor_about_that_of_a_neighbour() -> None:
    key = derive_noise_key("a device")
    alone = [uniform_noise(key, n) - 0.5 for n in MANY]
    for others in (
        alone[1:],
        [uniform_noise(key + 1, n) - 0.5 for n in MANY],
        [uniform_noise(key ^ 1, n) - 0.5 for n in MANY],
    ):
        likeness = fmean(a * b for a, b in zip(alone, others, strict=False)) * 12
        assert abs(likeness) < 0.06


def test_a_key_is_made_of_all_that_names_a_thing() -> None:
    named = [
        derive_noise_key(*parts) for parts in ((1, "a"), (1, "b"), (2, "a"), ("a", 1), ("1a",), (1, "a", ""))
    ]
    assert len(set(named)) == len(named)
    assert derive_noise_key(1, "a") == derive_noise_key("1", "a") == named[0]


@given(keys, st.floats(0, 1e8), st.floats(60, 1e5))
def test_a_drift_stays_in_its_range_and_changes_slowly(key: int, t: float, period: float) -> None:
    assert -1.0 <= drift_noise(key, t, period) <= 1.0
    # Two sines, of which the faster turns less than twice in a period.
    assert abs(drift_noise(key, t + period / 1000, period) - drift_noise(key, t, period)) < 0.0127


@each_row("key", [0, 0xFF, derive_noise_key("a device")])
def test_a_drift_swings_all_over_its_range_again_and_again(key: int) -> None:
    values = [drift_noise(key, t, 1000.0) for t in range(10_000)]
    turns = sum(a < 0 <= b for a, b in pairwise(values))
    assert 4 <= turns <= 20
    assert min(values) < -0.9
    assert max(values) > 0.9


def test_waits_are_as_long_as_they_should_be_on_average_and_never_negative() -> None:
    waits = [exponential_delay(42, n, 600.0) for n in MANY]
    assert min(waits) >= 0.0
    assert fmean(waits) == pytest.approx(600.0, rel=0.08)
    assert sum(each > 600.0 for each in waits) / len(waits) == pytest.approx(0.368, abs=0.03)


def test_what_never_happens_is_waited_for_without_end() -> None:
    assert exponential_delay(42, 1, inf) == inf
