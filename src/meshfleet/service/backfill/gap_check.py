"""Looks up whether holes are filled: what is stored decides, not what we remember of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.db.samples import SampleQuery
from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.backfill.series import find_gaps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db.samples import SampleStore, StoredSample
    from meshfleet.db.samples.sample import Retention
    from meshfleet.service.backfill.acknowledger import SampleAcknowledger
    from meshfleet.service.backfill.series import Gap, SeriesKey
    from meshfleet.service.clock import Now

_log = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 1.0
"""Seconds between two looks."""
_CHECKS_PER_EXPIRY: Final = 3600
"""Looks between two times that old holes are forgotten."""
_MAX_GAPS_PER_CHECK: Final = 100
"""Holes that are looked at then: ingest goes first."""
_SERIES_PER_SLICE: Final = 1_000
"""Series that are gone through in one go when old holes are forgotten."""
_SILENT_MS: Final = 30 * 86_400_000
"""Milliseconds without a sample after which a series may be over: no device keeps samples for longer."""
_READ_FAILURES: Final = (DatabaseUnavailable, DBAPIError, OSError, sqlite3.Error)


async def run_gap_checks(
    acknowledger: SampleAcknowledger, samples: SampleStore, retention: Retention, now: Now
) -> None:
    """Look at holes that are due until cancelled."""
    for look in itertools.count(1):
        await asyncio.sleep(_CHECK_SECONDS)
        try:
            await check_due_gaps(acknowledger, samples, now)
        except _READ_FAILURES as exc:
            _log.warning("holes cannot be looked at: %s", type(exc).__name__)
        if look % _CHECKS_PER_EXPIRY == 0:
            await drop_expired_gaps(acknowledger, retention, now())


async def check_due_gaps(acknowledger: SampleAcknowledger, samples: SampleStore, now: Now) -> None:
    """Look at some of the holes that are due, one of each gateway in turn."""
    acknowledger.check_schedule.advance(now())
    looked = 0
    while looked < _MAX_GAPS_PER_CHECK and (taken := acknowledger.check_schedule.pop_due()) is not None:
        key, owner = taken
        series = acknowledger.series[key]
        try:
            if (hole := series.next_due_gap(now())) is not None:
                looked += 1
                await _check_gap(acknowledger, samples, (key, hole), now())
        finally:
            acknowledger.check_schedule.schedule(key, owner, series.due_at)


async def drop_expired_gaps(acknowledger: SampleAcknowledger, retention: Retention, now: int) -> None:
    """Nothing is missing where nothing is kept any more; and what is silent by then is over."""
    for count, key in enumerate(list(acknowledger.series), 1):
        kept = retention[key[1]]
        if kept is not None:
            _drop_expired(acknowledger, key, now - kept, now)
        if count % _SERIES_PER_SLICE == 0:
            await asyncio.sleep(0)


def _drop_expired(acknowledger: SampleAcknowledger, key: SeriesKey, oldest: int, now: int) -> None:
    series = acknowledger.series[key]
    if series.time < min(oldest, now - _SILENT_MS):
        acknowledger.remove_series(key)
        return
    for hole in series.gaps or ():
        if hole.until < oldest:
            acknowledger.drop_gap(key, hole, now)


async def _check_gap(
    acknowledger: SampleAcknowledger, samples: SampleStore, found: tuple[SeriesKey, Gap], now: int
) -> None:
    key, hole = found
    untold = hole.unchecked_arrivals  # what comes from now on may be too late to be read
    left = await samples.read(_build_query(key, hole), partial(_find_remaining, hole))
    hole.unchecked_arrivals -= untold
    acknowledger.update_gap(key, hole, left, now)


def _build_query(key: SeriesKey, gap: Gap) -> SampleQuery:
    device, kind, identifier = key
    return SampleQuery(
        device=device,
        kinds=frozenset({kind}),
        identifier=identifier,
        since=gap.since,
        until=gap.until + 1,
    )


def _find_remaining(gap: Gap, samples: Iterator[StoredSample]) -> list[tuple[int, int]]:
    """What is missing of a hole. If even its ends are, what is next to them is too."""
    believed = [(each.time, each.seq) for each in samples if each.more is None or each.more.clock is None]
    if not believed:
        return [(gap.since, gap.until)]
    first, last = believed[0][0], believed[-1][0]
    left = list(find_gaps(believed))
    if first > gap.since:
        left.insert(0, (gap.since, first))
    if last < gap.until:
        left.append((last, gap.until))
    return left
