"""Waiting: what is awaited is given back, and who waits in vain is told why."""

from __future__ import annotations

import pytest

from tests.eventually import eventually, eventually_async


def test_the_first_answer_that_is_true_is_given_back() -> None:
    answers = iter([None, 0, "", "there", "later"])
    assert eventually(lambda: next(answers)) == "there"


def test_an_assertion_that_fails_means_not_yet() -> None:
    tries: list[int] = []

    def probe() -> int:
        tries.append(1)
        assert len(tries) > 2
        return len(tries)

    assert eventually(probe) == 3


@pytest.mark.anyio
async def test_who_waits_in_vain_is_told_for_what_and_the_last_answer() -> None:
    async def refuse() -> None:
        raise AssertionError("not today")

    with pytest.raises(
        AssertionError, match="a parcel did not happen within 0 s; the last answer was None"
    ) as told:
        await eventually_async(refuse, "a parcel", patience=0)
    assert str(told.value.__cause__) == "not today"
    with pytest.raises(AssertionError, match="the last answer was 0"):
        await eventually_async(lambda: 0, patience=0)
