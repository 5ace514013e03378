"""`eventually`: its results, and its errors at the timeout."""

from __future__ import annotations

import pytest

from tests.eventually import eventually, eventually_async


def test_the_first_true_result_is_returned() -> None:
    results = iter([None, 0, "", "there", "later"])
    assert eventually(lambda: next(results)) == "there"


def test_a_failed_assertion_means_not_yet() -> None:
    attempts: list[int] = []

    def probe() -> int:
        attempts.append(1)
        assert len(attempts) > 2
        return len(attempts)

    assert eventually(probe) == 3


@pytest.mark.anyio
async def test_a_timeout_names_the_condition_and_the_last_result() -> None:
    async def fail() -> None:
        raise AssertionError("not today")

    with pytest.raises(
        AssertionError, match="a parcel did not happen within 0 s; the last result was None"
    ) as raised:
        await eventually_async(fail, "a parcel", patience=0)
    assert str(raised.value.__cause__) == "not today"
    with pytest.raises(AssertionError, match="the last result was 0"):
        await eventually_async(lambda: 0, patience=0)
