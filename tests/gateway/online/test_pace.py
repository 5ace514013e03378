"""How the time of the simulated world passes."""

from __future__ import annotations

from math import inf

import pytest

from meshfleet.gateway.online.pace import ByClock, ByRate, wall_millis
from meshfleet.gateway.world.clock import Clock
from tests.tables import each_row


def test_before_the_world_begins_no_time_has_passed_by_the_clock() -> None:
    pace = ByClock(Clock(0, 1e9))  # so fast that it shows between two looks
    assert [pace.moment() for _ in range(3)] == [0.0, 0.0, 0.0]


def test_before_the_world_begins_no_time_has_passed_by_the_rate() -> None:
    assert ByRate(Clock(0, 10.0), 100.0).moment() == 0.0


@pytest.mark.rule("gateway-42")
@each_row("speed", [0.5, 1.0, 1000.0])
def test_by_the_clock_the_world_runs_at_its_speed_from_when_it_begins(speed: float) -> None:
    clock = Clock(0, speed)
    pace = ByClock(clock)
    before = wall_millis()
    pace.begin()
    began = wall_millis()
    moment = pace.moment()
    after = wall_millis()
    assert 0.0 <= moment <= (after - before) * speed / 1000.0
    assert before - 1 <= clock.millis(0.0) <= began
    assert clock.millis(60.0 * speed) - clock.millis(0.0) == pytest.approx(60_000, abs=1)


def test_by_the_clock_moments_never_go_back_even_if_the_clock_does() -> None:
    clock = Clock(0, 1.0)
    pace = ByClock(clock)
    pace.begin()
    first = pace.moment()
    clock.bend(0.0, wall_millis() + 3_600_000, 1.0)  # as if somebody had set the clock back by an hour
    assert pace.moment() >= first
    assert pace.turn(0.0, 0).until >= first


def test_by_the_clock_a_world_that_is_too_fast_goes_on_where_it_has_got() -> None:
    clock = Clock(0, 1000.0)
    pace = ByClock(clock)
    pace.begin()
    clock.bend(0.0, wall_millis() - 5000, 1000.0)  # five seconds on the wall, and so much to do
    assert pace.moment() >= 5000.0
    pace.fall_behind(700.0)
    before = wall_millis()
    assert 700.0 <= pace.moment() <= 700.0 + (wall_millis() - before + 1000.0)
    assert clock.millis(700.0) == pytest.approx(before, abs=1000)


def test_by_the_clock_a_little_late_is_not_late() -> None:
    pace = ByClock(Clock(0, 1000.0))
    pace.begin()
    moment = pace.moment()
    pace.fall_behind(moment - 50.0)  # as simulated seconds: a twentieth of one on the wall
    assert pace.moment() >= moment


def test_by_the_clock_everything_that_is_due_may_happen() -> None:
    pace = ByClock(Clock(0, 1.0))
    pace.begin()
    assert pace.turn(5.0, 1_000_000).reports == inf


def _owed(pace: ByRate, rate: float, made: int) -> tuple[float, float, float]:
    """What a turn allows, and the least and most that it may."""
    before = wall_millis()
    pace.begin()
    began = wall_millis()
    least = wall_millis()
    allowed = pace.turn(1.0, made).reports
    most = wall_millis()
    return allowed, (least - began) * rate / 1000 - made, (most - before) * rate / 1000 - made


@each_row("rate", [0.01, 50.0, 1_000_000.0])
def test_by_the_rate_as_many_reports_are_due_as_the_time_since_the_beginning_asks_for(rate: float) -> None:
    for made in (0, 7):
        allowed, least, most = _owed(ByRate(Clock(0), rate), rate, made)
        assert least <= allowed <= most


def test_by_the_rate_who_is_ahead_may_make_none() -> None:
    pace = ByRate(Clock(0), 10.0)
    pace.begin()
    assert pace.turn(1.0, 1_000_000).reports < 0


def test_by_the_rate_it_is_the_moment_that_was_lived_last() -> None:
    pace = ByRate(Clock(0), 10.0)
    pace.begin()
    assert pace.turn(3.0, 0).until == inf
    pace.lived(3.0)
    assert pace.moment() == 3.0


@pytest.mark.rule("gateway-42")
def test_by_the_rate_what_happens_next_happens_now_on_the_wall() -> None:
    clock = Clock(0, 1.0)
    pace = ByRate(clock, 10.0)
    pace.begin()
    before = wall_millis()
    pace.turn(123_456.0, 0)
    assert before - 1 <= clock.millis(123_456.0) <= wall_millis()


def test_by_the_rate_a_world_with_nothing_due_stands_still() -> None:
    clock = Clock(0, 1.0)
    pace = ByRate(clock, 10.0)
    pace.begin()
    pace.lived(9.0)
    before = wall_millis()
    pace.turn(inf, 0)
    assert before - 1 <= clock.millis(9.0) <= wall_millis()
