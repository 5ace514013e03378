"""Samples wait in order, go when they are named, and give way when there are too many."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.simulation.sample_buffer import SAMPLE_CAPACITY, DeviceSample, SampleBuffer
from tests.row_tables import each_row

MOMENT = 1_790_000_000_000


def kept(*millis: int) -> SampleBuffer:
    samples = SampleBuffer()
    for number, each in enumerate(millis):
        samples.add(DeviceSample(MOMENT + each, number % 256, bytes((number % 256,))))
    return samples


def times(samples: SampleBuffer) -> list[int]:
    return [sample.millis - MOMENT for sample in samples]


def backfill(samples: SampleBuffer, before: int) -> list[DeviceSample]:
    """All that a backfill would bring, one after the other."""
    brought: list[DeviceSample] = []
    while (sample := samples.newest_before(before)) is not None:
        brought.append(sample)
        before = sample.millis
    return brought


def test_a_sample_is_kept_as_it_was() -> None:
    samples = SampleBuffer()
    for sample in (
        DeviceSample(MOMENT, 255, b""),
        DeviceSample(MOMENT + 1, 0, None),
        DeviceSample(MOMENT + 2, 1, b"\xff" * 9),
    ):
        samples.add(sample)
        assert list(samples)[-1] == sample


@pytest.mark.rule("ack-19")
def test_only_the_named_sample_goes() -> None:
    samples = kept(0, 60_000, 120_000)
    assert samples.remove(MOMENT + 60_000)
    assert times(samples) == [0, 120_000]


@each_row("millis", [-1, 1, 59_999, 60_001, 999_999_999, -MOMENT, -MOMENT - 62_000_000_000_000])
def test_a_time_without_a_sample_changes_nothing(millis: int) -> None:
    samples = kept(0, 60_000)
    assert not samples.remove(MOMENT + millis)
    assert times(samples) == [0, 60_000]


def test_a_sample_goes_once() -> None:
    samples = kept(0)
    assert samples.remove(MOMENT)
    assert not samples.remove(MOMENT)


@pytest.mark.rule("ack-23")
def test_all_go_at_once() -> None:
    samples = kept(0, 1, 2)
    samples.clear()
    assert (len(samples), list(samples), samples.newest_before(MOMENT + 9)) == (0, [], None)
    samples.add(DeviceSample(MOMENT + 3, 3, None))
    assert times(samples) == [3]


def test_the_oldest_give_way() -> None:
    samples = kept(*range(SAMPLE_CAPACITY + 3))
    assert times(samples) == list(range(3, SAMPLE_CAPACITY + 3))
    assert not samples.remove(MOMENT + 2)
    assert samples.remove(MOMENT + 3)


@pytest.mark.rule("ack-20")
def test_a_backfill_goes_from_the_newest_to_the_oldest() -> None:
    samples = kept(0, 60, 120, 180)
    assert [each.millis - MOMENT for each in backfill(samples, MOMENT + 180)] == [120, 60, 0]
    assert backfill(samples, MOMENT) == []
    assert samples.newest_before(MOMENT + 61) == DeviceSample(MOMENT + 60, 1, b"\1")


def test_of_samples_of_one_millisecond_each_ack_removes_one() -> None:
    """A fast world has several in a millisecond; each is acknowledged by itself, with the same words."""
    samples = kept(0, 5, 5, 5, 9)
    assert [samples.remove(MOMENT + 5) for _ in range(4)] == [True, True, True, False]
    assert times(samples) == [0, 9]


@given(st.lists(st.integers(0, 40), unique=True).map(sorted), st.lists(st.integers(-2, 42)))
def test_what_is_left_is_what_was_not_named(made: list[int], named: list[int]) -> None:
    samples = kept(*made)
    for each in named:
        samples.remove(MOMENT + each)
    left = [each for each in made if each not in named]
    assert times(samples) == left
    assert [each.millis - MOMENT for each in backfill(samples, MOMENT + 99)] == left[::-1]


@given(st.lists(st.integers(0, 1000), max_size=50, unique=True))
def test_samples_are_in_order_even_if_somebody_sets_the_clock_back(millis: list[int]) -> None:
    samples = kept(*millis)
    assert times(samples) == sorted(millis)
    for each in millis:
        assert samples.remove(MOMENT + each)
    assert not len(samples)
