"""Looks up whether holes are filled: what is stored decides, not what we remember of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.db.samples import Wanted
from meshfleet.errors import DatabaseUnavailable
from meshfleet.service.acks.series import gaps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.db.samples import Sample, SampleStore
    from meshfleet.db.samples.retention import Retention
    from meshfleet.service.acks.acks import Acks
    from meshfleet.service.acks.series import Hole, Key
    from meshfleet.service.clock import Now

_log = logging.getLogger(__name__)

_PAUSE: Final = 1.0
"""Seconds between two looks."""
_HOUR: Final = 3600
"""Looks between two times that old holes are forgotten."""
_AT_ONCE: Final = 100
"""Holes that are looked at then: ingest goes first."""
_SLICE: Final = 1_000
"""Series that are gone through in one go when old holes are forgotten."""
_SILENT: Final = 30 * 86_400_000
"""Milliseconds without a sample after which a series may be over: no device keeps samples for longer."""
_FAILURES: Final = (DatabaseUnavailable, DBAPIError, OSError, sqlite3.Error)


async def keep_checking(acks: Acks, samples: SampleStore, retention: Retention, now: Now) -> None:
    """Look at holes that are due until cancelled."""
    for look in itertools.count(1):
        await asyncio.sleep(_PAUSE)
        try:
            await check(acks, samples, now)
        except _FAILURES as exc:
            _log.warning("holes cannot be looked at: %s", type(exc).__name__)
        if look % _HOUR == 0:
            await forget(acks, retention, now())


async def check(acks: Acks, samples: SampleStore, now: Now) -> None:
    """Look at some of the holes that are due, one of each gateway in turn."""
    acks.agenda.call(now())
    looked = 0
    while looked < _AT_ONCE and (taken := acks.agenda.take()) is not None:
        key, owner = taken
        series = acks.series[key]
        try:
            if (hole := series.due(now())) is not None:
                looked += 1
                await _look(acks, samples, (key, hole), now())
        finally:
            acks.agenda.put(key, owner, series.due_at)


async def forget(acks: Acks, retention: Retention, now: int) -> None:
    """Nothing is missing where nothing is kept any more; and what is silent by then is over."""
    for count, key in enumerate(list(acks.series), 1):
        kept = retention[key[1]]
        if kept is not None:
            _forget(acks, key, now - kept, now)
        if count % _SLICE == 0:
            await asyncio.sleep(0)


def _forget(acks: Acks, key: Key, oldest: int, now: int) -> None:
    series = acks.series[key]
    if series.time < min(oldest, now - _SILENT):
        acks.end(key)
        return
    for hole in series.holes or ():
        if hole.until < oldest:
            acks.forget(key, hole, now)


async def _look(acks: Acks, samples: SampleStore, found: tuple[Key, Hole], now: int) -> None:
    key, hole = found
    untold = hole.untold  # what comes from now on may be too late to be read
    left = await samples.read(_wanted(key, hole), partial(_left, hole))
    hole.untold -= untold
    acks.settle(key, hole, left, now)


def _wanted(key: Key, hole: Hole) -> Wanted:
    device, kind, identifier = key
    return Wanted(
        device=device,
        kinds=frozenset({kind}),
        identifier=identifier,
        since=hole.since,
        until=hole.until + 1,
    )


def _left(hole: Hole, samples: Iterator[Sample]) -> list[tuple[int, int]]:
    """What is missing of a hole. If even its ends are, what is next to them is too."""
    believed = [(each.time, each.seq) for each in samples if each.more is None or each.more.clock is None]
    if not believed:
        return [(hole.since, hole.until)]
    first, last = believed[0][0], believed[-1][0]
    left = list(gaps(believed))
    if first > hole.since:
        left.insert(0, (hole.since, first))
    if last < hole.until:
        left.append((last, hole.until))
    return left
