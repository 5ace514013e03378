"""A minute counts every reading once, and can be read until it is committed."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.db.samples import SampleExtras, SampleKind, StoredSample
from meshfleet.service.ingest.minute_rollup import MinuteRollup, MinuteSummary, decode_minute
from meshfleet.service.ingest.readings import (
    CHANNEL_BASE,
    CHANNEL_SHIFT,
    SEQ_SHIFT,
    ReadingKind,
    decode_readings,
)
from meshfleet.service.ingest.rollups import Rollups
from tests.row_tables import each_row

START = 1_700_000_040_000
"""Start of a minute."""


_OFFSETS = st.integers(0, 59_999) | st.integers(0, 9)
_CHANNELS = st.sampled_from([0, 37, 38, 39])


@given(st.lists(st.tuples(_OFFSETS, _CHANNELS), max_size=200))
def test_a_minute_counts_each_time_and_channel_once(readings: list[tuple[int, int]]) -> None:
    minute = MinuteRollup(oldest_journal_id=1, opened_at=0, updated_at=0, gateway=5, key=(1, 4, 2, START))
    added = [minute.add(START + offset, -50, build_flags(channel)) for offset, channel in readings]
    assert minute.count == added.count(True) == len(set(readings))
    assert not any(minute.add(START + offset, -50, build_flags(channel)) for offset, channel in readings)


def build_flags(channel: int = 0, seq: int | None = None) -> int:
    """Build the flags of a link reading."""
    flags = (channel - CHANNEL_BASE) << CHANNEL_SHIFT if channel else 0
    return flags if seq is None else flags | (seq + 1) << SEQ_SHIFT


Parts = tuple[int, int, int | None]
"""Offset in the minute, channel (0 for none), and `seq`."""


def summarize(*readings: Parts) -> MinuteSummary:
    """Return the summary of one minute; the RSSI of a reading is -50 minus its position."""
    rollups = Rollups()
    rollups.add(
        1,
        [
            (ReadingKind.LINK, 1, 5, START + offset, -50 - index, 2, build_flags(channel, seq))
            for index, (offset, channel, seq) in enumerate(readings)
        ],
        START,
    )
    (minute,) = rollups.list_unwritten_minutes(1, LINKS)
    summary = decode_minute(minute)
    assert summary is not None
    return summary


@each_row(
    ("seqs", "expected"),
    [
        ([7], (7, 1, 1)),
        ([7, 8, 9], (7, 3, 3)),
        ([9, 7, 8], (7, 3, 3)),
        ([7, 7], (7, 1, 1)),
        ([254, 255, 1], (254, 4, 3)),
        ([10, 20], (10, 11, 2)),
        ([0], (0, 1, 1)),
        ([255, 0], (255, 2, 2)),
        (list(range(256)), (0, 256, 256)),
    ],
)
def test_the_seqs_of_a_minute_are_a_cyclic_range(seqs: list[int], expected: tuple[int, int, int]) -> None:
    found = summarize(*((index, 0, seq) for index, seq in enumerate(seqs))).seqs
    assert found is not None
    assert (found.first, found.span, found.received) == expected


def test_a_minute_counts_readings_by_channel_and_knows_when_the_link_was_used() -> None:
    summary = summarize((0, 0, None), (1, 37, None), (1, 39, None), (20, 0, None), (30, 39, None))
    assert [(each.channel, each.count, each.total) for each in summary.channels or ()] == [
        (37, 1, -51),
        (39, 2, -52 - 54),
    ]
    assert (summary.linked_count, summary.newest_linked_at) == (2, START + 20)
    assert (summary.count, summary.last, summary.last_at) == (5, -54, START + 30)
    assert summarize((3, 37, None)).newest_linked_at == 0
    assert summarize((3, 0, None), (2, 37, None)).newest_linked_at == START + 3


def test_minutes_and_readings_of_version_0_1_0_can_be_decoded() -> None:
    extras = SampleExtras(
        ext='{"count":2,"min":-9,"max":-7,"last":-7,"lastAt":1700000040001,"unreachable":true}'
    )
    summary = decode_minute(StoredSample(START, SampleKind.LINK, 2, -1, 5, -8.0, None, extras))
    assert summary is not None
    assert (summary.linked_count, summary.newest_linked_at, summary.unreachable) == (2, START + 1, True)
    old = [[1, 1, 5, START, -50, 2, True], [0, 1, 5, START, 0, 0, False]]
    rollups = Rollups()
    rollups.add(1, decode_readings(msgspec.msgpack.encode(old)), START)
    (minute,) = rollups.list_unwritten_minutes(1, LINKS)
    assert (found := decode_minute(minute)) is not None
    assert (found.unreachable, found.seqs, found.channels) == (True, None, None)


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
            rollups.add(1, [(ReadingKind.LINK, device, 5, at, -50, parent, 0)], now)
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
        readings = [(ReadingKind.LINK, 1, 5, now, -50, parent, 0) for parent in range(1000)]
        rollups.add(1, readings, now)
        assert len(rollups.list_unwritten_minutes(1, LINKS)) == 64
        rows = rollups.close_ended_minutes(now + 120_000)
        assert len(rows[1]) == 1000
        rollups.drop_closed_minutes(rows)
        assert not rollups.list_unwritten_minutes(1, LINKS)
