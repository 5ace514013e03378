"""Who is asked again when, with plain numbers for the time."""

from __future__ import annotations

from meshfleet.service.metadata.reader import ReadBackoff, ReadKey

MINUTE, HOUR = 60_000, 3_600_000
MODEL, OTHER = ReadKey(7, 0x8000), ReadKey(7, 0x8001)


def waits(backoff: ReadBackoff, now: int) -> int:
    """Minutes until the question may be asked again."""
    return next(minute for minute in range(48 * 60) if backoff.is_due(MODEL, now + minute * MINUTE))


def test_after_each_failure_the_pause_is_longer_up_to_half_a_day() -> None:
    backoff, now, pauses = ReadBackoff(), 0, []
    for _ in range(7):
        backoff.record_failure(MODEL, now)
        pauses.append(waits(backoff, now))
        now += pauses[-1] * MINUTE
    assert pauses == [1, 5, 30, 120, 720, 720, 720]


def test_an_answer_is_enough_for_a_day() -> None:
    backoff = ReadBackoff()
    backoff.record_failure(MODEL, 0)
    backoff.record_response(MODEL, 0)
    assert waits(backoff, 0) == 24 * 60
    backoff.record_failure(MODEL, 24 * HOUR)
    assert waits(backoff, 24 * HOUR) == 1


def test_one_question_does_not_keep_others_waiting() -> None:
    backoff = ReadBackoff()
    backoff.record_failure(MODEL, 0)
    assert not backoff.is_due(MODEL, 0)
    assert backoff.is_due(OTHER, 0)
    assert backoff.is_due(ReadKey(8, 0x8000), 0)
    assert backoff.is_due(ReadKey(7), 0)


def test_what_is_well_again_begins_anew() -> None:
    backoff = ReadBackoff()
    for _ in range(4):
        backoff.record_failure(MODEL, 0)
    backoff.reset(MODEL)
    backoff.reset(OTHER)
    assert backoff.is_due(MODEL, 0)
    backoff.record_failure(MODEL, 0)
    assert waits(backoff, 0) == 1


def test_only_so_much_is_remembered_and_what_failed_last_is() -> None:
    backoff = ReadBackoff()
    for device in range(20_000):
        backoff.record_failure(ReadKey(device), 0)
    backoff.record_failure(ReadKey(0), 0)
    backoff.record_failure(ReadKey(20_000), 0)
    assert len(backoff) == 20_000
    assert not backoff.is_due(ReadKey(0), 0)
    assert backoff.is_due(ReadKey(1), 0)
    assert not backoff.is_due(ReadKey(20_000), 0)
