"""How the time of the simulated world passes."""

from __future__ import annotations

from math import inf

import pytest

from meshfleet.emulator.runtime.simulation_pace import RealTimePace, ReportRatePace, read_wall_clock_ms
from meshfleet.emulator.simulation.clock import SimulatedClock
from tests.row_tables import each_row


def test_before_the_world_begins_no_time_has_passed_by_the_clock() -> None:
    pace = RealTimePace(SimulatedClock(0, 1e9))  # so fast that it shows between two looks
    assert [pace.now() for _ in range(3)] == [0.0, 0.0, 0.0]


def test_before_the_world_begins_no_time_has_passed_by_the_rate() -> None:
    assert ReportRatePace(SimulatedClock(0, 10.0), 100.0).now() == 0.0


@pytest.mark.rule("gateway-42")
@each_row("speed", [0.5, 1.0, 1000.0])
def test_by_the_clock_the_world_runs_at_its_speed_from_when_it_begins(speed: float) -> None:
    clock = SimulatedClock(0, speed)
    pace = RealTimePace(clock)
    before = read_wall_clock_ms()
    pace.start()
    began = read_wall_clock_ms()
    moment = pace.now()
    after = read_wall_clock_ms()
    assert 0.0 <= moment <= (after - before) * speed / 1000.0
    assert before - 1 <= clock.wall_millis(0.0) <= began
    assert clock.wall_millis(60.0 * speed) - clock.wall_millis(0.0) == pytest.approx(60_000, abs=1)


def test_by_the_clock_moments_never_go_back_even_if_the_clock_does() -> None:
    clock = SimulatedClock(0, 1.0)
    pace = RealTimePace(clock)
    pace.start()
    first = pace.now()
    clock.rebase(
        0.0, read_wall_clock_ms() + 3_600_000, 1.0
    )  # as if somebody had set the clock back by an hour
    assert pace.now() >= first
    assert pace.next_step(0.0, 0).until >= first


def test_by_the_clock_a_world_that_is_too_fast_goes_on_where_it_has_got() -> None:
    clock = SimulatedClock(0, 1000.0)
    pace = RealTimePace(clock)
    pace.start()
    clock.rebase(0.0, read_wall_clock_ms() - 5000, 1000.0)  # five seconds on the wall, and so much to do
    assert pace.now() >= 5000.0
    pace.fall_behind(700.0)
    before = read_wall_clock_ms()
    assert 700.0 <= pace.now() <= 700.0 + (read_wall_clock_ms() - before + 1000.0)
    assert clock.wall_millis(700.0) == pytest.approx(before, abs=1000)


def test_by_the_clock_a_little_late_is_not_late() -> None:
    pace = RealTimePace(SimulatedClock(0, 1000.0))
    pace.start()
    moment = pace.now()
    pace.fall_behind(moment - 50.0)  # as simulated seconds: a twentieth of one on the wall
    assert pace.now() >= moment


def test_by_the_clock_everything_that_is_due_may_happen() -> None:
    pace = RealTimePace(SimulatedClock(0, 1.0))
    pace.start()
    assert pace.next_step(5.0, 1_000_000).reports == inf


def _owed(pace: ReportRatePace, rate: float, made: int) -> tuple[float, float, float]:
    """What a turn allows, and the least and most that it may."""
    before = read_wall_clock_ms()
    pace.start()
    began = read_wall_clock_ms()
    least = read_wall_clock_ms()
    allowed = pace.next_step(1.0, made).reports
    most = read_wall_clock_ms()
    return allowed, (least - began) * rate / 1000 - made, (most - before) * rate / 1000 - made


@each_row("rate", [0.01, 50.0, 1_000_000.0])
def test_by_the_rate_as_many_reports_are_due_as_the_time_since_the_beginning_asks_for(rate: float) -> None:
    for made in (0, 7):
        allowed, least, most = _owed(ReportRatePace(SimulatedClock(0), rate), rate, made)
        assert least <= allowed <= most


def test_by_the_rate_who_is_ahead_may_make_none() -> None:
    pace = ReportRatePace(SimulatedClock(0), 10.0)
    pace.start()
    assert pace.next_step(1.0, 1_000_000).reports < 0


def test_by_the_rate_it_is_the_moment_that_was_lived_last() -> None:
    pace = ReportRatePace(SimulatedClock(0), 10.0)
    pace.start()
    assert pace.next_step(3.0, 0).until == inf
    pace.advance_to(3.0)
    assert pace.now() == 3.0


@pytest.mark.rule("gateway-42")
def test_by_the_rate_what_happens_next_happens_now_on_the_wall() -> None:
    clock = SimulatedClock(0, 1.0)
    pace = ReportRatePace(clock, 10.0)
    pace.start()
    before = read_wall_clock_ms()
    pace.next_step(123_456.0, 0)
    assert before - 1 <= clock.wall_millis(123_456.0) <= read_wall_clock_ms()


def test_by_the_rate_a_world_with_nothing_due_stands_still() -> None:
    clock = SimulatedClock(0, 1.0)
    pace = ReportRatePace(clock, 10.0)
    pace.start()
    pace.advance_to(9.0)
    before = read_wall_clock_ms()
    pace.next_step(inf, 0)
    assert before - 1 <= clock.wall_millis(9.0) <= read_wall_clock_ms()
