"""Read pauses under load, and only then. The times are plain numbers."""

from __future__ import annotations

import pytest

from meshfleet.mqtt.client.connection import READ_PAUSE_SECONDS, ReadCoalescer

BUSY = 32
LARGE = 0x1_0000
START = 1000.0


def test_an_idle_connection_never_pauses() -> None:
    coalescer = ReadCoalescer()
    assert not any(
        coalescer.should_pause(1, 100, START + step_number * 2 * READ_PAUSE_SECONDS)
        for step_number in range(1000)
    )


def test_a_slow_stream_never_pauses() -> None:
    coalescer = ReadCoalescer()
    step = READ_PAUSE_SECONDS / (BUSY - 2)  # one packet too few for a pause
    assert not any(coalescer.should_pause(1, 100, START + step_number * step) for step_number in range(1000))


def test_many_packets_in_one_read_cause_a_pause() -> None:
    assert ReadCoalescer().should_pause(BUSY, 100, START)
    assert not ReadCoalescer().should_pause(BUSY - 1, 100, START)


def test_many_reads_in_a_short_time_cause_a_pause() -> None:
    coalescer = ReadCoalescer()
    due = [
        coalescer.should_pause(1, 100, START + step_number * READ_PAUSE_SECONDS / 100)
        for step_number in range(BUSY)
    ]
    assert due == [*[False] * (BUSY - 1), True]


@pytest.mark.parametrize("size", [LARGE, 4 * LARGE])
def test_a_large_read_causes_no_pause_however_many_packets_it_has(size: int) -> None:
    coalescer = ReadCoalescer()
    assert not any(
        coalescer.should_pause(10 * BUSY, size, START + step_number * READ_PAUSE_SECONDS / 100)
        for step_number in range(100)
    )


def test_the_packets_of_a_large_read_count_for_the_small_one_after_it() -> None:
    coalescer = ReadCoalescer()
    assert not coalescer.should_pause(BUSY, LARGE, START)
    assert coalescer.should_pause(1, LARGE - 1, START + READ_PAUSE_SECONDS / 2)


def test_a_busy_connection_pauses_after_every_read_until_it_is_idle() -> None:
    coalescer = ReadCoalescer()
    assert coalescer.should_pause(BUSY, 100, START)
    assert coalescer.should_pause(1, 100, START + READ_PAUSE_SECONDS / 2)
    assert not coalescer.should_pause(1, 100, START + 2 * READ_PAUSE_SECONDS)


def test_a_connection_is_idle_again_after_a_quiet_period() -> None:
    coalescer = ReadCoalescer()
    for burst in range(10):
        at = START + burst * 10 * READ_PAUSE_SECONDS
        assert coalescer.should_pause(BUSY, 100, at)
        assert not coalescer.should_pause(BUSY - 1, 100, at + 5 * READ_PAUSE_SECONDS)
