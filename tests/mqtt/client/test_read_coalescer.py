"""Rests come under load, and only then. The times are plain numbers."""

from __future__ import annotations

import pytest

from meshfleet.mqtt.client.connection import READ_PAUSE_SECONDS, ReadCoalescer

BUSY = 32
LARGE = 0x1_0000
START = 1000.0


def test_an_idle_connection_never_rests() -> None:
    pace = ReadCoalescer()
    assert not any(pace.should_pause(1, 100, START + turn * 2 * READ_PAUSE_SECONDS) for turn in range(1000))


def test_a_slow_trickle_never_rests() -> None:
    pace = ReadCoalescer()
    step = READ_PAUSE_SECONDS / (BUSY - 2)  # one packet too few for every rest
    assert not any(pace.should_pause(1, 100, START + turn * step) for turn in range(1000))


def test_many_packets_in_one_read_are_a_reason_to_rest() -> None:
    assert ReadCoalescer().should_pause(BUSY, 100, START)
    assert not ReadCoalescer().should_pause(BUSY - 1, 100, START)


def test_many_reads_in_a_short_time_are_a_reason_to_rest() -> None:
    pace = ReadCoalescer()
    due = [pace.should_pause(1, 100, START + turn * READ_PAUSE_SECONDS / 100) for turn in range(BUSY)]
    assert due == [*[False] * (BUSY - 1), True]


@pytest.mark.parametrize("size", [LARGE, 4 * LARGE])
def test_a_large_read_is_no_reason_to_rest_however_many_packets_it_brings(size: int) -> None:
    pace = ReadCoalescer()
    assert not any(
        pace.should_pause(10 * BUSY, size, START + turn * READ_PAUSE_SECONDS / 100) for turn in range(100)
    )


def test_the_packets_of_a_large_read_count_for_the_small_one_after_it() -> None:
    pace = ReadCoalescer()
    assert not pace.should_pause(BUSY, LARGE, START)
    assert pace.should_pause(1, LARGE - 1, START + READ_PAUSE_SECONDS / 2)


def test_a_busy_connection_rests_after_every_read_until_it_is_quiet() -> None:
    pace = ReadCoalescer()
    assert pace.should_pause(BUSY, 100, START)
    assert pace.should_pause(1, 100, START + READ_PAUSE_SECONDS / 2)
    assert not pace.should_pause(1, 100, START + 2 * READ_PAUSE_SECONDS)


def test_a_quiet_time_makes_it_idle_again() -> None:
    pace = ReadCoalescer()
    for burst in range(10):
        at = START + burst * 10 * READ_PAUSE_SECONDS
        assert pace.should_pause(BUSY, 100, at)
        assert not pace.should_pause(BUSY - 1, 100, at + 5 * READ_PAUSE_SECONDS)
