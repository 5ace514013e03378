"""The throttle by itself, with numbers for the time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.accounts.throttle import LoginThrottle, ThrottleDecision

HERE, THERE = "192.0.2.1", "192.0.2.2"
FREE = ThrottleDecision(wait=0, wait_if_failed=0)


def fail(
    throttle: LoginThrottle, name: str, address: str | None = HERE, *, times: int, now: float = 0
) -> None:
    for _ in range(times):
        assert throttle.count_attempt(name, address, now).wait == 0


@pytest.mark.rule("auth-13")
def test_five_failures_are_free_and_the_sixth_attempt_waits() -> None:
    throttle = LoginThrottle()
    assert [throttle.count_attempt("ada", HERE, 0) for _ in range(7)] == [FREE] * 5 + [
        ThrottleDecision(1, 0)
    ] * 2


@pytest.mark.rule("auth-13")
def test_delays_grow_twofold_up_to_five_minutes() -> None:
    throttle, now, delays = LoginThrottle(), 1000.0, []
    fail(throttle, "ada", times=5, now=now)
    for _ in range(11):
        delays.append(throttle.count_attempt("ada", HERE, now).wait)
        now += delays[-1]
        fail(throttle, "ada", times=1, now=now)
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@pytest.mark.rule("auth-13")
def test_who_comes_too_early_waits_no_longer_for_it() -> None:
    throttle = LoginThrottle()
    now = fail_patiently(throttle, times=8)
    told = [throttle.count_attempt("ada", HERE, now + later).wait for later in (0, 0.1, 3, 7.5, 7.99, 8)]
    assert told == [8, 8, 5, 1, 1, 0]


@given(failures=st.integers(5, 40), early=st.floats(0.01, 1))
def test_the_wait_that_is_told_is_long_enough_and_less_is_not(failures: int, early: float) -> None:
    throttle = LoginThrottle()
    now = fail_patiently(throttle, times=failures)
    wait = throttle.count_attempt("ada", HERE, now).wait
    assert throttle.count_attempt("ada", HERE, now + wait - early).wait == 1
    assert throttle.count_attempt("ada", HERE, now + wait).wait == 0


def fail_patiently(throttle: LoginThrottle, *, times: int) -> float:
    """Fail so often, wait each time as long as one is told, and give back the time of the last failure."""
    now = 0.0
    for _ in range(times):
        while wait := throttle.count_attempt("ada", HERE, now).wait:
            now += wait
    return now


@pytest.mark.rule("auth-15")
def test_failures_elsewhere_do_not_matter() -> None:
    throttle = LoginThrottle()
    fail(throttle, "ada", times=5)
    assert throttle.count_attempt("ada", HERE, 0).wait == 1
    assert throttle.count_attempt("ada", THERE, 0) == FREE
    assert throttle.count_attempt("ada", None, 0) == FREE
    assert throttle.count_attempt("bob", HERE, 0) == FREE


@pytest.mark.rule("auth-14")
def test_name_after_name_at_one_address_is_noticed() -> None:
    throttle = LoginThrottle()
    waits = [throttle.count_attempt(f"name-{number}", HERE, 0).wait_if_failed for number in range(9)]
    assert waits == [0, 0, 0, 0, 0, 1, 2, 4, 8]
    assert throttle.count_attempt("another", THERE, 0) == FREE


def test_one_name_alone_does_not_crowd_an_address() -> None:
    throttle, now = LoginThrottle(), 0.0
    for _ in range(12):
        now += throttle.count_attempt("ada", HERE, now).wait
    assert throttle.count_attempt("bob", HERE, now) == FREE


def test_success_forgets_the_failures_of_that_name_at_that_address() -> None:
    throttle = LoginThrottle()
    fail(throttle, "ada", times=4)
    fail(throttle, "ada", THERE, times=5)
    fail(throttle, "bob", times=5)
    fail(throttle, "ada", times=1)
    throttle.clear_failures("ada", HERE)
    assert throttle.count_attempt("ada", HERE, 0) == FREE
    assert throttle.count_attempt("ada", THERE, 0).wait == 1
    assert throttle.count_attempt("bob", HERE, 0).wait == 1


def test_people_who_log_in_rightly_never_crowd_an_address() -> None:
    throttle = LoginThrottle()
    for number in range(20):
        assert throttle.count_attempt(f"name-{number}", HERE, 0) == FREE
        throttle.clear_failures(f"name-{number}", HERE)


def test_ones_own_success_does_not_pay_for_guesses_at_other_names() -> None:
    throttle = LoginThrottle()
    for number in range(5):
        fail(throttle, f"name-{number}", times=1)
        fail(throttle, "mine", times=1)
        throttle.clear_failures("mine", HERE)
    assert throttle.count_attempt("name-6", HERE, 0).wait_if_failed > 0


def test_failures_are_forgotten_after_an_hour() -> None:
    throttle = LoginThrottle()
    fail(throttle, "ada", times=5)
    assert [throttle.count_attempt("ada", HERE, 3601) for _ in range(6)] == [FREE] * 5 + [
        ThrottleDecision(1, 0)
    ]


def test_within_the_hour_every_failure_goes_on_counting() -> None:
    throttle = LoginThrottle()
    fail(throttle, "ada", times=5)
    fail(throttle, "ada", times=1, now=3500)
    assert throttle.count_attempt("ada", HERE, 3500).wait == 2


_STEPS = st.tuples(st.integers(0, 6), st.sampled_from([HERE, THERE, None]), st.floats(0, 400))


@pytest.mark.rule("auth-3", "auth-14")
@given(st.lists(_STEPS, max_size=60))
def test_no_sequence_of_failures_treats_two_names_differently(
    steps: list[tuple[int, str | None, float]],
) -> None:
    """Names play no part: whoever is renamed throughout sees the same verdicts."""
    one, other, now = LoginThrottle(), LoginThrottle(), 0.0
    for number, address, pause in steps:
        now += pause
        known = one.count_attempt(f"known-{number}", address, now)
        assert other.count_attempt(f"{number}-unknown", address, now) == known


def test_of_very_many_names_the_oldest_are_dropped() -> None:
    throttle = LoginThrottle()
    fail(throttle, "ada", times=5)
    fail(throttle, "bob", times=5)
    for number in range(49_000):
        throttle.count_attempt(f"name-{number}", THERE, 0)
    assert throttle.count_attempt("ada", HERE, 0).wait == 1
    fail(throttle, "bob", times=1, now=1)
    for number in range(1000):
        throttle.count_attempt(f"other-{number}", THERE, 1)
    assert throttle.count_attempt("ada", HERE, 0).wait == 0
    assert throttle.count_attempt("bob", HERE, 1).wait == 2
