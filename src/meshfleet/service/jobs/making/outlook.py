"""What a forecast needs to know of a fleet: how fast gateways are, how often devices are heard, who is busy.

It is read in pages, as the targets themselves: nobody else shall wait for it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import func, select

from meshfleet.db import bulk
from meshfleet.db.tables import pace
from meshfleet.service.jobs.fitness import method_of
from meshfleet.service.jobs.making import rivals
from meshfleet.service.jobs.making.targets import pages
from meshfleet.service.jobs.update import clocks
from meshfleet.service.presence.rhythm import UNKNOWN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.jobs.making.freezing import Frozen
    from meshfleet.wire.products import Way

_RHYTHMS: Final = (
    "SELECT rhythm / 1000, count(*) FROM device_state WHERE device IN numbers AND rhythm IS NOT NULL"
    " GROUP BY rhythm / 1000"
)
"""In seconds: so there are few."""

_SECOND: Final = 1000
_MINUTE: Final = 60_000
_MOST: Final = 0.9


class Outlook(NamedTuple):
    """What is known of those that would be updated."""

    rate: float
    """Bytes per second that gateways bring to devices."""
    beat: float
    """Minutes between two heartbeats, as nine of ten of them keep it or better."""
    busy: int
    """How many of them another job is not over with."""


async def look_ahead(database: Database, frozen: Frozen) -> Outlook:
    """Gather it for a job."""
    rate = await database.read(_usual_rate, method_of(frozen.firmware.need))
    devices = array("q", frozen.sifted.fitting())
    keeping = await database.read(rivals.keeping)
    rhythms: Counter[int] = Counter()
    busy = 0
    for page in pages(devices):
        rhythms.update(await database.read(_rhythms, page))
        busy += len(await database.read(rivals.held, keeping, page))
    rhythms[UNKNOWN] += len(devices) - rhythms.total()
    return Outlook(rate, _usual(rhythms) / _MINUTE, busy)


def _usual_rate(connection: Connection, method: Way) -> float:
    """Bytes per second in a way of updating: as measured, or as is expected."""
    measured = connection.execute(select(func.avg(pace.c.rate)).where(pace.c.method == str(method))).scalar()
    return clocks.RATES[method] if measured is None else float(measured)


def _rhythms(connection: Connection, devices: Sequence[int]) -> dict[int, int]:
    """How many of these devices are heard in which rhythm, in milliseconds; of others it is not known."""
    return {seconds * _SECOND: count for seconds, count in bulk.pick(connection, _RHYTHMS, devices)}


def _usual(rhythms: Counter[int]) -> int:
    """The rhythm of most: a few that are seldom heard do not stand for all."""
    ordered = sorted(rhythms)
    heard = list(accumulate(rhythms[each] for each in ordered))
    return ordered[bisect_left(heard, _MOST * heard[-1])]
