"""The login throttle, with plain numbers as the time."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.accounts.throttle import LoginThrottle, ThrottleDecision

ADDRESS, OTHER_ADDRESS = "192.0.2.1", "192.0.2.2"
NO_DELAY = ThrottleDecision(wait=0, wait_if_failed=0)


def fail(
    throttle: LoginThrottle, name: str, address: str | None = ADDRESS, *, times: int, now: float = 0
) -> None:
    for _ in range(times):
        assert throttle.count_attempt(name, address, now).wait == 0


@pytest.mark.rule("auth-13")
def test_five_failures_cause_no_delay_and_the_sixth_attempt_waits() -> None:
    throttle = LoginThrottle()
    assert [throttle.count_attempt("ada", ADDRESS, 0) for _ in range(7)] == [NO_DELAY] * 5 + [
        ThrottleDecision(1, 0)
    ] * 2


@pytest.mark.rule("auth-13")
def test_delays_double_up_to_five_minutes() -> None:
    throttle, now, delays = LoginThrottle(), 1000.0, []
    fail(throttle, "ada", times=5, now=now)
    for _ in range(11):
        delays.append(throttle.count_attempt("ada", ADDRESS, now).wait)
        now += delays[-1]
        fail(throttle, "ada", times=1, now=now)
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]


@pytest.mark.rule("auth-13")
def test_an_early_attempt_does_not_prolong_the_delay() -> None:
    throttle = LoginThrottle()
    now = fail_patiently(throttle, times=8)
    waits = [throttle.count_attempt("ada", ADDRESS, now + later).wait for later in (0, 0.1, 3, 7.5, 7.99, 8)]
    assert waits == [8, 8, 5, 1, 1, 0]


@given(failures=st.integers(5, 40), early=st.floats(0.01, 1))
def test_the_returned_delay_is_exactly_long_enough(failures: int, early: float) -> None:
    throttle = LoginThrottle()
    now = fail_patiently(throttle, times=failures)
    wait = throttle.count_attempt("ada", ADDRESS, now).wait
    assert throttle.count_attempt("ada", ADDRESS, now + wait - early).wait == 1
    assert throttle.count_attempt("ada", ADDRESS, now + wait).wait == 0


def fail_patiently(throttle: LoginThrottle, *, times: int) -> float:
    """Fail a number of times, each time after the returned delay; return the time of the last failure."""
    now = 0.0
    for _ in range(times):
        while wait := throttle.count_attempt("ada", ADDRESS, now).wait:
            now += wait
    return now


@pytest.mark.rule("auth-15")
def test_failures_of_other_names_and_addresses_cause_no_delay() -> None:
    throttle = LoginThrottle()
    fail(throttle, "ada", times=5)
    assert throttle.count_attempt("ada", ADDRESS, 0).wait == 1
    assert throttle.count_attempt("ada", OTHER_ADDRESS, 0) == NO_DELAY
    assert throttle.count_attempt("ada", None, 0) == NO_DELAY
    assert throttle.count_attempt("bob", ADDRESS, 0) == NO_DELAY


@pytest.mark.rule("auth-14")
def test_many_failed_names_delay_an_address() -> None:
    throttle = LoginThrottle()
    waits = [throttle.count_attempt(f"name-{number}", ADDRESS, 0).wait_if_failed for number in range(9)]
    assert waits == [0, 0, 0, 0, 0, 1, 2, 4, 8]
    assert throttle.count_attempt("another", OTHER_ADDRESS, 0) == NO_DELAY


def test_failures_of_one_name_do_not_delay_other_names_at_an_address() -> None:
    throttle, now = LoginThrottle(), 0.0
    for _ in range(12):
        now += throttle.count_attempt("ada", ADDRESS, now).wait
    assert throttle.count_attempt("bob", ADDRESS, now) == NO_DELAY


def test_a_success_clears_the_failures_of_its_name_and_address() -> None:
    throttle = LoginThrottle()
    fail(throttle, "ada", times=4)
    fail(throttle, "ada", OTHER_ADDRESS, times=5)
    fail(throttle, "bob", times=5)
    fail(throttle, "ada", times=1)
    throttle.clear_failures("ada", ADDRESS)
    assert throttle.count_attempt("ada", ADDRESS, 0) == NO_DELAY
    assert throttle.count_attempt("ada", OTHER_ADDRESS, 0).wait == 1
    assert throttle.count_attempt("bob", ADDRESS, 0).wait == 1


def test_successful_logins_of_many_users_never_delay_an_address() -> None:
    throttle = LoginThrottle()
    for number in range(20):
        assert throttle.count_attempt(f"name-{number}", ADDRESS, 0) == NO_DELAY
        throttle.clear_failures(f"name-{number}", ADDRESS)


def test_a_success_does_not_clear_failures_of_other_names() -> None:
    throttle = LoginThrottle()
    for number in range(5):
        fail(throttle, f"name-{number}", times=1)
        fail(throttle, "mine", times=1)
        throttle.clear_failures("mine", ADDRESS)
    assert throttle.count_attempt("name-6", ADDRESS, 0).wait_if_failed > 0


def test_failures_expire_after_an_hour() -> None:
    throttle = LoginThrottle()
    fail(throttle, "ada", times=5)
    assert [throttle.count_attempt("ada", ADDRESS, 3601) for _ in range(6)] == [NO_DELAY] * 5 + [
        ThrottleDecision(1, 0)
    ]


def test_failures_within_an_hour_add_up() -> None:
    throttle = LoginThrottle()
    fail(throttle, "ada", times=5)
    fail(throttle, "ada", times=1, now=3500)
    assert throttle.count_attempt("ada", ADDRESS, 3500).wait == 2


_STEPS = st.tuples(st.integers(0, 6), st.sampled_from([ADDRESS, OTHER_ADDRESS, None]), st.floats(0, 400))


@pytest.mark.rule("auth-3", "auth-14")
@given(st.lists(_STEPS, max_size=60))
def test_no_sequence_of_failures_treats_two_names_differently(
    steps: list[tuple[int, str | None, float]],
) -> None:
    """Repeat each sequence with other names: the decisions are the same."""
    one, other, now = LoginThrottle(), LoginThrottle(), 0.0
    for number, address, pause in steps:
        now += pause
        decision = one.count_attempt(f"known-{number}", address, now)
        assert other.count_attempt(f"{number}-unknown", address, now) == decision


def test_the_oldest_entries_are_dropped_beyond_the_limit() -> None:
    throttle = LoginThrottle()
    fail(throttle, "ada", times=5)
    fail(throttle, "bob", times=5)
    for number in range(49_000):
        throttle.count_attempt(f"name-{number}", OTHER_ADDRESS, 0)
    assert throttle.count_attempt("ada", ADDRESS, 0).wait == 1
    fail(throttle, "bob", times=1, now=1)
    for number in range(1000):
        throttle.count_attempt(f"other-{number}", OTHER_ADDRESS, 1)
    assert throttle.count_attempt("ada", ADDRESS, 0).wait == 0
    assert throttle.count_attempt("bob", ADDRESS, 1).wait == 2
