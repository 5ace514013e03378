"""A minute knows every reading that is in it, and can be read until it is committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.db.samples import SampleKind
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rollups import MinuteRollup, Rollups

BEGIN = 1_700_000_040_000
"""Of a minute."""


@given(st.lists(st.integers(0, 59_999) | st.integers(0, 9), max_size=200))
def test_a_minute_counts_each_moment_once(moments: list[int]) -> None:
    minute = MinuteRollup(oldest_batch=1, opened_at=0, updated_at=0, gateway=5)
    for moment in moments:
        if not minute.has(BEGIN + moment):
            minute.add(BEGIN + moment, -50, unreachable=False)
    assert minute.count == len(set(moments))
    assert all(minute.has(BEGIN + moment) for moment in moments)


LINKS = frozenset({SampleKind.LINK})
_LATE = st.integers(0, 4)
"""Minutes by which a reading comes late."""


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3), _LATE) | st.none(), max_size=60))
def test_the_minutes_of_a_device_can_be_read_until_they_are_committed(
    steps: list[tuple[int, int, int] | None],
) -> None:
    """A step is a reading of a device by a parent, or half a minute that passes."""
    rollups, now = Rollups(), BEGIN
    open_minutes: set[tuple[int, int, int]] = set()

    def readable() -> set[tuple[int, int, int]]:
        return {
            (each, minute.identifier, minute.time)
            for each in (1, 2)
            for minute in rollups.list_open_minutes(each, LINKS)
        }

    for step in steps:
        if step is not None:
            device, parent, late = step
            at = now - late * 60_000
            rollups.add(1, [(ReadingKind.LINK, device, 5, at, -50, parent, False)], now)
            open_minutes.add((device, parent, at - at % 60_000))
        else:
            now += 30_000
            rows = rollups.close_due(now)
            assert readable() == open_minutes
            open_minutes -= {(device, row[2], row[0]) for device, closed in rows.items() for row in closed}
            rollups.drop_closed(rows)
        assert readable() == open_minutes


def test_parents_that_a_gateway_makes_up_are_not_all_read() -> None:
    rollups = Rollups()
    for round_ in range(3):
        now = BEGIN + round_ * 600_000
        made_up = [(ReadingKind.LINK, 1, 5, now, -50, parent, False) for parent in range(1000)]
        rollups.add(1, made_up, now)
        assert len(rollups.list_open_minutes(1, LINKS)) == 64
        rows = rollups.close_due(now + 120_000)
        assert len(rows[1]) == 1000
        rollups.drop_closed(rows)
        assert not rollups.list_open_minutes(1, LINKS)
