"""Looks up whether holes are filled: what is stored decides, not what we remember of it."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import sqlite3
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
            forget(acks, retention, now())


async def check(acks: Acks, samples: SampleStore, now: Now) -> None:
    """Look at some of the holes that are due, first at those that have waited the longest."""
    for key, hole in heapq.nsmallest(_AT_ONCE, _due(acks, now()), key=lambda due: due[1].checked_at):
        at = now() - 1  # what comes in this very millisecond may be too late to be read
        acks.settle(key, hole, await samples.read(_wanted(key, hole), _left), at)


def forget(acks: Acks, retention: Retention, now: int) -> None:
    """Nothing is missing where nothing is kept any more."""
    for key in list(acks.holed):
        kept = retention[key[1]]
        for hole in acks.series[key].holes or ():
            if kept is not None and hole.until < now - kept:
                acks.forget(key, hole)


def _due(acks: Acks, now: int) -> Iterator[tuple[Key, Hole]]:
    for key in acks.waiting:
        for hole in acks.series[key].holes or ():
            if hole.is_due(now):
                yield key, hole


def _wanted(key: Key, hole: Hole) -> Wanted:
    device, kind, identifier = key
    return Wanted(
        device=device,
        kinds=frozenset({kind}),
        identifier=identifier,
        since=hole.since,
        until=hole.until + 1,
    )


def _left(samples: Iterator[Sample]) -> list[tuple[int, int]]:
    believed = (each for each in samples if each.more is None or each.more.clock is None)
    return list(gaps((each.time, each.seq) for each in believed))
