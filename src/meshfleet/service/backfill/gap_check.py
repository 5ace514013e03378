"""Checks periodically whether gaps in series of samples are filled, by reading the stored samples."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.db.samples import SampleQuery, SampleStore, StoredSample
from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.backfill.series import Gap, SeriesKey, TimeRange, find_gaps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db.samples.sample import Retention
    from meshfleet.service.backfill.acknowledger import SampleAcknowledger
    from meshfleet.service.clock import Now

_log = logging.getLogger(__name__)

_CHECK_SECONDS: Final = 1.0
"""Seconds between two runs of the gap checks."""
_CHECKS_PER_EXPIRY: Final = 3600
"""Number of runs of the gap checks from one removal of expired gaps to the next."""
_MAX_GAPS_PER_CHECK: Final = 100
"""Maximum number of gaps checked in one run, because ingest has priority."""
_SERIES_PER_SLICE: Final = 1_000
"""Number of series to search for expired gaps before the event loop runs other tasks."""
_SILENT_MS: Final = 30 * 86_400_000
"""Minimum milliseconds without a sample before a series is removed: no device keeps samples longer."""
_READ_FAILURES: Final = (DatabaseUnavailable, DBAPIError, OSError, sqlite3.Error)


async def run_gap_checks(acknowledger: SampleAcknowledger, samples: SampleStore, now: Now) -> None:
    """Check due gaps every second, and drop expired gaps about every hour, until canceled."""
    for check in itertools.count(1):
        await asyncio.sleep(_CHECK_SECONDS)
        try:
            await check_due_gaps(acknowledger, samples, now)
        except _READ_FAILURES as exc:
            _log.warning("gaps cannot be checked: %s; the check is retried", type(exc).__name__)
        if check % _CHECKS_PER_EXPIRY == 0:
            await drop_expired_gaps(acknowledger, samples.retention, now())


async def check_due_gaps(acknowledger: SampleAcknowledger, samples: SampleStore, now: Now) -> None:
    """Check at most 100 due gaps. Gateways take turns, with one gap each."""
    acknowledger.check_schedule.advance(now())
    checked_count = 0
    while checked_count < _MAX_GAPS_PER_CHECK and (due := acknowledger.check_schedule.pop_due()) is not None:
        series = acknowledger.series[due.key]
        try:
            if (gap := series.next_due_gap(now())) is not None:
                checked_count += 1
                await _check_gap(acknowledger, samples, due.key, gap, now())
        finally:
            acknowledger.check_schedule.schedule(due.key, due.gateway, series.next_check_at)


async def drop_expired_gaps(acknowledger: SampleAcknowledger, retention: Retention, now: int) -> None:
    """Drop gaps that are older than the retention of samples, and remove series that have ended."""
    for count, key in enumerate(list(acknowledger.series), 1):
        _, kind, _ = key
        retention_ms = retention[kind]
        if retention_ms is not None:
            _drop_expired_gaps(acknowledger, key, now - retention_ms, now)
        if count % _SERIES_PER_SLICE == 0:
            await asyncio.sleep(0)


def _drop_expired_gaps(acknowledger: SampleAcknowledger, key: SeriesKey, oldest: int, now: int) -> None:
    """Drop the gaps of a series that end before `oldest`, or remove the series if it has ended."""
    series = acknowledger.series[key]
    if series.time < min(oldest, now - _SILENT_MS):
        acknowledger.remove_series(key)
        return
    for gap in series.gaps or ():
        if gap.until < oldest:
            acknowledger.drop_gap(key, gap, now)


async def _check_gap(
    acknowledger: SampleAcknowledger, samples: SampleStore, key: SeriesKey, gap: Gap, now: int
) -> None:
    """Read the stored samples in a gap, and record in which time ranges samples are still missing."""
    arrivals = gap.unchecked_arrivals  # the read may miss samples that arrive from now on
    remaining = await samples.read(_build_gap_query(key, gap), partial(_find_missing_ranges, gap))
    gap.unchecked_arrivals -= arrivals
    acknowledger.update_gap(key, gap, remaining, now)


def _build_gap_query(key: SeriesKey, gap: Gap) -> SampleQuery:
    """Build the query for the samples of a series in a gap, including the samples at the gap's ends."""
    device, kind, identifier = key
    return SampleQuery(
        device=device,
        kinds=frozenset({kind}),
        identifier=identifier,
        since=gap.since,
        until=gap.until + 1,
    )


def _find_missing_ranges(gap: Gap, samples: Iterator[StoredSample]) -> list[TimeRange]:
    """Return the time ranges within a gap in which samples are still missing.

    A gap lies between two samples. If such a sample was deleted, the range up to its time counts as missing.
    """
    plausible = [sample for sample in samples if sample.more is None or sample.more.clock is None]
    if not plausible:
        return [TimeRange(gap.since, gap.until)]
    first, last = plausible[0].time, plausible[-1].time
    remaining = list(find_gaps(plausible))
    if first > gap.since:
        remaining.insert(0, TimeRange(gap.since, first))
    if last < gap.until:
        remaining.append(TimeRange(last, gap.until))
    return remaining
