"""Rests come under load, and only then. The times are plain numbers."""

from __future__ import annotations

import pytest

from meshfleet.link.pace import REST, Pace

BUSY = 32
LARGE = 0x1_0000
START = 1000.0


def test_an_idle_connection_never_rests() -> None:
    pace = Pace()
    assert not any(pace.rest_is_due(1, 100, START + turn * 2 * REST) for turn in range(1000))


def test_a_slow_trickle_never_rests() -> None:
    pace = Pace()
    step = REST / (BUSY - 2)  # one packet too few for every rest
    assert not any(pace.rest_is_due(1, 100, START + turn * step) for turn in range(1000))


def test_many_packets_in_one_read_are_a_reason_to_rest() -> None:
    assert Pace().rest_is_due(BUSY, 100, START)
    assert not Pace().rest_is_due(BUSY - 1, 100, START)


def test_many_reads_in_a_short_time_are_a_reason_to_rest() -> None:
    pace = Pace()
    due = [pace.rest_is_due(1, 100, START + turn * REST / 100) for turn in range(BUSY)]
    assert due == [*[False] * (BUSY - 1), True]


@pytest.mark.parametrize("size", [LARGE, 4 * LARGE])
def test_a_large_read_is_no_reason_to_rest_however_many_packets_it_brings(size: int) -> None:
    pace = Pace()
    assert not any(pace.rest_is_due(10 * BUSY, size, START + turn * REST / 100) for turn in range(100))


def test_the_packets_of_a_large_read_count_for_the_small_one_after_it() -> None:
    pace = Pace()
    assert not pace.rest_is_due(BUSY, LARGE, START)
    assert pace.rest_is_due(1, LARGE - 1, START + REST / 2)


def test_a_busy_connection_rests_after_every_read_until_it_is_quiet() -> None:
    pace = Pace()
    assert pace.rest_is_due(BUSY, 100, START)
    assert pace.rest_is_due(1, 100, START + REST / 2)
    assert not pace.rest_is_due(1, 100, START + 2 * REST)


def test_a_quiet_time_makes_it_idle_again() -> None:
    pace = Pace()
    for burst in range(10):
        at = START + burst * 10 * REST
        assert pace.rest_is_due(BUSY, 100, at)
        assert not pace.rest_is_due(BUSY - 1, 100, at + 5 * REST)
