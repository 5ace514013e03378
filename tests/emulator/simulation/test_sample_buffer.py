"""Buffer of samples: order, removal and overflow."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.simulation.sample_buffer import SAMPLE_CAPACITY, DeviceSample, SampleBuffer
from tests.row_tables import each_row

START_MS = 1_790_000_000_000


def build_buffer(*millis: int) -> SampleBuffer:
    samples = SampleBuffer()
    for number, each in enumerate(millis):
        samples.add(DeviceSample(START_MS + each, number % 256, bytes((number % 256,))))
    return samples


def list_times(samples: SampleBuffer) -> list[int]:
    return [sample.millis - START_MS for sample in samples]


def backfill(samples: SampleBuffer, before: int) -> list[DeviceSample]:
    """Return the samples of a backfill, in its order."""
    backfilled: list[DeviceSample] = []
    while (sample := samples.find_newest_before(before)) is not None:
        backfilled.append(sample)
        before = sample.millis
    return backfilled


def test_a_sample_is_stored_unchanged() -> None:
    samples = SampleBuffer()
    for sample in (
        DeviceSample(START_MS, 255, b""),
        DeviceSample(START_MS + 1, 0, None),
        DeviceSample(START_MS + 2, 1, b"\xff" * 9),
    ):
        samples.add(sample)
        assert list(samples)[-1] == sample


@pytest.mark.rule("ack-19")
def test_only_the_given_sample_is_removed() -> None:
    samples = build_buffer(0, 60_000, 120_000)
    assert samples.remove(START_MS + 60_000)
    assert list_times(samples) == [0, 120_000]


@each_row("millis", [-1, 1, 59_999, 60_001, 999_999_999, -START_MS, -START_MS - 62_000_000_000_000])
def test_a_time_without_a_sample_changes_nothing(millis: int) -> None:
    samples = build_buffer(0, 60_000)
    assert not samples.remove(START_MS + millis)
    assert list_times(samples) == [0, 60_000]


def test_a_sample_is_removed_once() -> None:
    samples = build_buffer(0)
    assert samples.remove(START_MS)
    assert not samples.remove(START_MS)


@pytest.mark.rule("ack-23")
def test_clear_removes_all_samples() -> None:
    samples = build_buffer(0, 1, 2)
    samples.clear()
    assert (len(samples), list(samples), samples.find_newest_before(START_MS + 9)) == (0, [], None)
    samples.add(DeviceSample(START_MS + 3, 3, None))
    assert list_times(samples) == [3]


def test_a_full_buffer_drops_the_oldest_samples() -> None:
    samples = build_buffer(*range(SAMPLE_CAPACITY + 3))
    assert list_times(samples) == list(range(3, SAMPLE_CAPACITY + 3))
    assert not samples.remove(START_MS + 2)
    assert samples.remove(START_MS + 3)


@pytest.mark.rule("ack-20")
def test_a_backfill_goes_from_the_newest_to_the_oldest() -> None:
    samples = build_buffer(0, 60, 120, 180)
    assert [each.millis - START_MS for each in backfill(samples, START_MS + 180)] == [120, 60, 0]
    assert backfill(samples, START_MS) == []
    assert samples.find_newest_before(START_MS + 61) == DeviceSample(START_MS + 60, 1, b"\1")


def test_each_ack_removes_one_of_several_samples_of_the_same_millisecond() -> None:
    """Remove one sample per ack, as a fast simulation has several samples in the same millisecond."""
    samples = build_buffer(0, 5, 5, 5, 9)
    assert [samples.remove(START_MS + 5) for _ in range(4)] == [True, True, True, False]
    assert list_times(samples) == [0, 9]


@given(st.lists(st.integers(0, 40), unique=True).map(sorted), st.lists(st.integers(-2, 42)))
def test_the_remaining_samples_are_those_not_removed(added: list[int], removed: list[int]) -> None:
    samples = build_buffer(*added)
    for each in removed:
        samples.remove(START_MS + each)
    remaining = [each for each in added if each not in removed]
    assert list_times(samples) == remaining
    assert [each.millis - START_MS for each in backfill(samples, START_MS + 99)] == remaining[::-1]


@given(st.lists(st.integers(0, 1000), max_size=50, unique=True))
def test_samples_are_in_order_even_if_the_clock_is_set_back(millis: list[int]) -> None:
    samples = build_buffer(*millis)
    assert list_times(samples) == sorted(millis)
    for each in millis:
        assert samples.remove(START_MS + each)
    assert not len(samples)
