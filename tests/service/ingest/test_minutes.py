"""A minute knows every reading that is in it, however many there are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.service.ingest.rollups import Minute

BEGIN = 1_700_000_040_000
"""Of a minute."""


@given(st.lists(st.integers(0, 59_999) | st.integers(0, 9), max_size=200))
def test_a_minute_counts_each_moment_once(moments: list[int]) -> None:
    minute = Minute(batch=1, opened_at=0, touched_at=0, gateway=5)
    for moment in moments:
        if not minute.has(BEGIN + moment):
            minute.add(BEGIN + moment, -50, unreachable=False)
    assert minute.count == len(set(moments))
    assert all(minute.has(BEGIN + moment) for moment in moments)
