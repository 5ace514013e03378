"""The backoff of reads, with plain numbers for the time."""

from __future__ import annotations

from meshfleet.service.metadata.reader import MetadataReadBackoff, ReadKey

MINUTE, HOUR = 60_000, 3_600_000
MODEL, OTHER = ReadKey(7, 0x8000), ReadKey(7, 0x8001)


def minutes_until_due(backoff: MetadataReadBackoff, now: int) -> int:
    """Return the minutes until the key may be read again."""
    return next(minute for minute in range(48 * 60) if backoff.is_due(MODEL, now + minute * MINUTE))


def test_the_delay_grows_with_each_failure_up_to_half_a_day() -> None:
    backoff, now, delays = MetadataReadBackoff(), 0, []
    for _ in range(7):
        backoff.record_failure(MODEL, now)
        delays.append(minutes_until_due(backoff, now))
        now += delays[-1] * MINUTE
    assert delays == [1, 5, 30, 120, 720, 720, 720]


def test_a_response_is_valid_for_a_day() -> None:
    backoff = MetadataReadBackoff()
    backoff.record_failure(MODEL, 0)
    backoff.record_response(MODEL, 0)
    assert minutes_until_due(backoff, 0) == 24 * 60
    backoff.record_failure(MODEL, 24 * HOUR)
    assert minutes_until_due(backoff, 24 * HOUR) == 1


def test_a_failed_key_does_not_delay_others() -> None:
    backoff = MetadataReadBackoff()
    backoff.record_failure(MODEL, 0)
    assert not backoff.is_due(MODEL, 0)
    assert backoff.is_due(OTHER, 0)
    assert backoff.is_due(ReadKey(8, 0x8000), 0)
    assert backoff.is_due(ReadKey(7), 0)


def test_a_reset_key_starts_with_the_first_delay() -> None:
    backoff = MetadataReadBackoff()
    for _ in range(4):
        backoff.record_failure(MODEL, 0)
    backoff.reset_delay(MODEL)
    backoff.reset_delay(OTHER)
    assert backoff.is_due(MODEL, 0)
    backoff.record_failure(MODEL, 0)
    assert minutes_until_due(backoff, 0) == 1


def test_the_number_of_keys_is_limited_and_the_oldest_are_discarded() -> None:
    backoff = MetadataReadBackoff()
    for device in range(20_000):
        backoff.record_failure(ReadKey(device), 0)
    backoff.record_failure(ReadKey(0), 0)
    backoff.record_failure(ReadKey(20_000), 0)
    assert len(backoff) == 20_000
    assert not backoff.is_due(ReadKey(0), 0)
    assert backoff.is_due(ReadKey(1), 0)
    assert not backoff.is_due(ReadKey(20_000), 0)
