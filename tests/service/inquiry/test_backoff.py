"""Who is asked again when, with plain numbers for the time."""

from __future__ import annotations

from meshfleet.service.inquiry.backoff import Backoff, Question

MINUTE, HOUR = 60_000, 3_600_000
MODEL, OTHER = Question(7, 0x8000), Question(7, 0x8001)


def waits(backoff: Backoff, now: int) -> int:
    """Minutes until the question may be asked again."""
    return next(minute for minute in range(48 * 60) if backoff.may_ask(MODEL, now + minute * MINUTE))


def test_after_each_failure_the_pause_is_longer_up_to_half_a_day() -> None:
    backoff, now, pauses = Backoff(), 0, []
    for _ in range(7):
        backoff.fail(MODEL, now)
        pauses.append(waits(backoff, now))
        now += pauses[-1] * MINUTE
    assert pauses == [1, 5, 30, 120, 720, 720, 720]


def test_an_answer_is_enough_for_a_day() -> None:
    backoff = Backoff()
    backoff.fail(MODEL, 0)
    backoff.settle(MODEL, 0)
    assert waits(backoff, 0) == 24 * 60
    backoff.fail(MODEL, 24 * HOUR)
    assert waits(backoff, 24 * HOUR) == 1


def test_one_question_does_not_keep_others_waiting() -> None:
    backoff = Backoff()
    backoff.fail(MODEL, 0)
    assert not backoff.may_ask(MODEL, 0)
    assert backoff.may_ask(OTHER, 0)
    assert backoff.may_ask(Question(8, 0x8000), 0)
    assert backoff.may_ask(Question(7), 0)


def test_what_is_well_again_begins_anew() -> None:
    backoff = Backoff()
    for _ in range(4):
        backoff.fail(MODEL, 0)
    backoff.forget(MODEL)
    backoff.forget(OTHER)
    assert backoff.may_ask(MODEL, 0)
    backoff.fail(MODEL, 0)
    assert waits(backoff, 0) == 1


def test_only_so_much_is_remembered_and_what_failed_last_is() -> None:
    backoff = Backoff()
    for device in range(20_000):
        backoff.fail(Question(device), 0)
    backoff.fail(Question(0), 0)
    backoff.fail(Question(20_000), 0)
    assert len(backoff) == 20_000
    assert not backoff.may_ask(Question(0), 0)
    assert backoff.may_ask(Question(1), 0)
    assert not backoff.may_ask(Question(20_000), 0)
