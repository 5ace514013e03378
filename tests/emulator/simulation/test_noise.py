"""Repeatable noise."""

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
COUNTS = range(4000)
DISTRIBUTIONS: list[tuple[Callable[[int, int], float], float]] = [
    (uniform_noise, 0.0),
    (triangular_noise, -1.0),
    (fast_noise, -1.0),
]


@given(keys, counts)
def test_bits_are_32_and_depend_on_nothing_but_key_and_count(key: int, n: int) -> None:
    assert noise_bits(key, n) == noise_bits(key, n)
    assert 0 <= noise_bits(key, n) < 2**32


@given(keys, counts)
def test_noise_stays_in_its_range(key: int, n: int) -> None:
    assert 0.0 <= uniform_noise(key, n) < 1.0
    assert -1.0 <= triangular_noise(key, n) <= 1.0
    # The cheap function may exceed the range by one part in 32,767.
    assert -1.0 <= fast_noise(key, n) <= 1.0 + 1e-4


@each_row(("distribution", "minimum"), DISTRIBUTIONS)
@each_row("key", [0, 1, 0xFFFFFFFF, derive_noise_key("a device")])
def test_noise_has_the_mean_of_its_range(
    distribution: Callable[[int, int], float], minimum: float, key: int
) -> None:
    middle = (minimum + 1.0) / 2.0
    assert fmean(distribution(key, n) for n in COUNTS) == pytest.approx(middle, abs=0.04)


@each_row("key", [0, 7, derive_noise_key("a device")])
def test_uniform_noise_is_uniform_and_triangular_noise_prefers_the_middle(key: int) -> None:
    histogram = [0] * 10
    for n in COUNTS:
        histogram[int(uniform_noise(key, n) * 10)] += 1
    assert min(histogram) > 320
    assert max(histogram) < 480
    assert (
        pstdev(triangular_noise(key, n) for n in COUNTS)
        < pstdev(2 * uniform_noise(key, n) - 1 for n in COUNTS) - 0.1
    )


def test_values_of_consecutive_counts_and_of_similar_keys_are_uncorrelated() -> None:
    key = derive_noise_key("a device")
    values = [uniform_noise(key, n) - 0.5 for n in COUNTS]
    for others in (
        values[1:],
        [uniform_noise(key + 1, n) - 0.5 for n in COUNTS],
        [uniform_noise(key ^ 1, n) - 0.5 for n in COUNTS],
    ):
        correlation = fmean(a * b for a, b in zip(values, others, strict=False)) * 12
        assert abs(correlation) < 0.06


def test_a_key_depends_on_all_its_parts() -> None:
    derived_keys = [
        derive_noise_key(*parts) for parts in ((1, "a"), (1, "b"), (2, "a"), ("a", 1), ("1a",), (1, "a", ""))
    ]
    assert len(set(derived_keys)) == len(derived_keys)
    assert derive_noise_key(1, "a") == derive_noise_key("1", "a") == derived_keys[0]


@given(keys, st.floats(0, 1e8), st.floats(60, 1e5))
def test_drift_noise_stays_in_its_range_and_changes_slowly(key: int, t: float, period: float) -> None:
    assert -1.0 <= drift_noise(key, t, period) <= 1.0
    # The faster of the two sine waves has less than two periods.
    assert abs(drift_noise(key, t + period / 1000, period) - drift_noise(key, t, period)) < 0.0127


@each_row("key", [0, 0xFF, derive_noise_key("a device")])
def test_drift_noise_covers_its_range_repeatedly(key: int) -> None:
    values = [drift_noise(key, t, 1000.0) for t in range(10_000)]
    zero_crossings = sum(a < 0 <= b for a, b in pairwise(values))
    assert 4 <= zero_crossings <= 20
    assert min(values) < -0.9
    assert max(values) > 0.9


def test_delays_are_exponentially_distributed() -> None:
    delays = [exponential_delay(42, n, 600.0) for n in COUNTS]
    assert min(delays) >= 0.0
    assert fmean(delays) == pytest.approx(600.0, rel=0.08)
    assert sum(delay > 600.0 for delay in delays) / len(delays) == pytest.approx(0.368, abs=0.03)


def test_the_delay_of_an_event_that_never_happens_is_infinite() -> None:
    assert exponential_delay(42, 1, inf) == inf
