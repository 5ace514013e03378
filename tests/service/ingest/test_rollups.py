"""A minute counts every reading once, and can be read until it is committed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.db.samples import SampleKind
from meshfleet.service.ingest.readings import ReadingKind
from meshfleet.service.ingest.rollups import MinuteRollup, Rollups

START = 1_700_000_040_000
"""Start of a minute."""


@given(st.lists(st.integers(0, 59_999) | st.integers(0, 9), max_size=200))
def test_a_minute_counts_each_time_once(offsets: list[int]) -> None:
    minute = MinuteRollup(oldest_journal_id=1, opened_at=0, updated_at=0, gateway=5)
    for offset in offsets:
        if not minute.has(START + offset):
            minute.add(START + offset, -50, unreachable=False)
    assert minute.count == len(set(offsets))
    assert all(minute.has(START + offset) for offset in offsets)


LINKS = frozenset({SampleKind.LINK})
_LATE = st.integers(0, 4)
"""Minutes by which a reading is late."""


@given(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3), _LATE) | st.none(), max_size=60))
def test_the_minutes_of_a_device_can_be_read_until_they_are_committed(
    steps: list[tuple[int, int, int] | None],
) -> None:
    """Run steps: a reading of a device by a parent, or half a minute that passes."""
    rollups, now = Rollups(), START
    open_minutes: set[tuple[int, int, int]] = set()

    def list_readable() -> set[tuple[int, int, int]]:
        return {
            (device, minute.identifier, minute.time)
            for device in (1, 2)
            for minute in rollups.list_unwritten_minutes(device, LINKS)
        }

    for step in steps:
        if step is not None:
            device, parent, delay = step
            at = now - delay * 60_000
            rollups.add(1, [(ReadingKind.LINK, device, 5, at, -50, parent, False)], now)
            open_minutes.add((device, parent, at - at % 60_000))
        else:
            now += 30_000
            rows = rollups.close_ended_minutes(now)
            assert list_readable() == open_minutes
            open_minutes -= {(device, row[2], row[0]) for device, closed in rows.items() for row in closed}
            rollups.drop_closed_minutes(rows)
        assert list_readable() == open_minutes


def test_the_number_of_readable_parents_is_limited() -> None:
    rollups = Rollups()
    for round_ in range(3):
        now = START + round_ * 600_000
        readings = [(ReadingKind.LINK, 1, 5, now, -50, parent, False) for parent in range(1000)]
        rollups.add(1, readings, now)
        assert len(rollups.list_unwritten_minutes(1, LINKS)) == 64
        rows = rollups.close_ended_minutes(now + 120_000)
        assert len(rows[1]) == 1000
        rollups.drop_closed_minutes(rows)
        assert not rollups.list_unwritten_minutes(1, LINKS)
