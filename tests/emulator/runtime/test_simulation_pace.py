"""Pace of simulated time."""

from __future__ import annotations

from math import inf

import pytest

from meshfleet.emulator.runtime.simulation_pace import RealTimePace, ReportRatePace, read_wall_clock_ms
from meshfleet.emulator.simulation.clock import SimulatedClock
from tests.row_tables import each_row


def test_real_time_pace_is_at_0_before_the_start() -> None:
    pace = RealTimePace(SimulatedClock(0, 1e9))  # so fast that a difference would show
    assert [pace.now() for _ in range(3)] == [0.0, 0.0, 0.0]


def test_report_rate_pace_is_at_0_before_the_start() -> None:
    assert ReportRatePace(SimulatedClock(0, 10.0), 100.0).now() == 0.0


@pytest.mark.rule("gateway-42")
@each_row("speed", [0.5, 1.0, 1000.0])
def test_real_time_pace_runs_at_its_speed_from_the_start(speed: float) -> None:
    clock = SimulatedClock(0, speed)
    pace = RealTimePace(clock)
    before = read_wall_clock_ms()
    pace.start()
    started = read_wall_clock_ms()
    moment = pace.now()
    after = read_wall_clock_ms()
    assert 0.0 <= moment <= (after - before) * speed / 1000.0
    assert before - 1 <= clock.wall_millis(0.0) <= started
    assert clock.wall_millis(60.0 * speed) - clock.wall_millis(0.0) == pytest.approx(60_000, abs=1)


def test_real_time_pace_never_goes_back_even_if_the_clock_does() -> None:
    clock = SimulatedClock(0, 1.0)
    pace = RealTimePace(clock)
    pace.start()
    first = pace.now()
    # As if the clock had been set back by an hour.
    clock.rebase(0.0, read_wall_clock_ms() + 3_600_000, 1.0)
    assert pace.now() >= first
    assert pace.limit_next_step(0.0, 0).until >= first


def test_real_time_pace_continues_from_the_reached_time_if_it_is_too_fast() -> None:
    clock = SimulatedClock(0, 1000.0)
    pace = RealTimePace(clock)
    pace.start()
    clock.rebase(0.0, read_wall_clock_ms() - 5000, 1000.0)  # five seconds behind the wall clock
    assert pace.now() >= 5000.0
    pace.fall_behind(700.0)
    before = read_wall_clock_ms()
    assert 700.0 <= pace.now() <= 700.0 + (read_wall_clock_ms() - before + 1000.0)
    assert clock.wall_millis(700.0) == pytest.approx(before, abs=1000)


def test_real_time_pace_ignores_a_short_lag() -> None:
    pace = RealTimePace(SimulatedClock(0, 1000.0))
    pace.start()
    moment = pace.now()
    pace.fall_behind(moment - 50.0)  # simulated seconds: 0.05 s of wall-clock time
    assert pace.now() >= moment


def test_real_time_pace_does_not_limit_the_reports() -> None:
    pace = RealTimePace(SimulatedClock(0, 1.0))
    pace.start()
    assert pace.limit_next_step(5.0, 1_000_000).reports == inf


def _measure_budget(pace: ReportRatePace, rate: float, report_count: int) -> tuple[float, float, float]:
    """Return the reports that a step allows, and the expected minimum and maximum."""
    before = read_wall_clock_ms()
    pace.start()
    started = read_wall_clock_ms()
    minimum = read_wall_clock_ms()
    allowed = pace.limit_next_step(1.0, report_count).reports
    maximum = read_wall_clock_ms()
    return (
        allowed,
        (minimum - started) * rate / 1000 - report_count,
        (maximum - before) * rate / 1000 - report_count,
    )


@each_row("rate", [0.01, 50.0, 1_000_000.0])
def test_report_rate_pace_allows_the_reports_due_since_the_start(rate: float) -> None:
    for report_count in (0, 7):
        allowed, minimum, maximum = _measure_budget(
            ReportRatePace(SimulatedClock(0), rate), rate, report_count
        )
        assert minimum <= allowed <= maximum


def test_report_rate_pace_allows_no_reports_when_ahead() -> None:
    pace = ReportRatePace(SimulatedClock(0), 10.0)
    pace.start()
    assert pace.limit_next_step(1.0, 1_000_000).reports < 0


def test_report_rate_pace_is_at_the_last_reached_time() -> None:
    pace = ReportRatePace(SimulatedClock(0), 10.0)
    pace.start()
    assert pace.limit_next_step(3.0, 0).until == inf
    pace.advance_to(3.0)
    assert pace.now() == 3.0


@pytest.mark.rule("gateway-42")
def test_report_rate_pace_maps_the_next_event_to_the_current_wall_clock_time() -> None:
    clock = SimulatedClock(0, 1.0)
    pace = ReportRatePace(clock, 10.0)
    pace.start()
    before = read_wall_clock_ms()
    pace.limit_next_step(123_456.0, 0)
    assert before - 1 <= clock.wall_millis(123_456.0) <= read_wall_clock_ms()


def test_report_rate_pace_stands_still_if_nothing_is_due() -> None:
    clock = SimulatedClock(0, 1.0)
    pace = ReportRatePace(clock, 10.0)
    pace.start()
    pace.advance_to(9.0)
    before = read_wall_clock_ms()
    pace.limit_next_step(inf, 0)
    assert before - 1 <= clock.wall_millis(9.0) <= read_wall_clock_ms()
