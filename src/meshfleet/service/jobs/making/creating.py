"""Making a job: check, find the targets, part them, and write them down (rest-115)."""

from __future__ import annotations

import asyncio
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import Conflict, FleetError
from meshfleet.service.jobs.changes import Tell, nobody
from meshfleet.service.jobs.making import freezing, rivals, targets, wanted
from meshfleet.service.jobs.making.checking import check
from meshfleet.service.jobs.making.forecast import forecast
from meshfleet.service.jobs.making.freezing import Frozen, Published, RivalsChanged
from meshfleet.service.jobs.making.outlook import look_ahead
from meshfleet.service.jobs.making.sifting import sift
from meshfleet.service.jobs.making.superseding import take_over
from meshfleet.service.jobs.making.waves import Waves
from meshfleet.service.jobs.shown import jobs as reading

if TYPE_CHECKING:
    from array import array
    from collections.abc import Sequence

    from meshfleet.db import Database
    from meshfleet.service.accounts.model import Actor
    from meshfleet.service.clock import Now
    from meshfleet.service.jobs.making.checking import Checked
    from meshfleet.service.jobs.making.sifting import Sifted
    from meshfleet.service.requests.once import Key
    from meshfleet.wire.rest import DryRun, Job, NewJob, Wave

_SEED_BITS: Final = 63
"""What a column can hold."""

_TRIES: Final = 5
"""For a job whose devices others keep claiming while it is written down."""


class Asked(NamedTuple):
    """Who wants a job, and how often; and who is to hear what becomes of others."""

    by: Actor
    key: Key | None
    """With the same key it is one job, however often it is asked for."""
    tell: Tell = nobody


async def create(database: Database, order: NewJob, asked: Asked, now: Now) -> Job | DryRun:
    """Make a job, or tell what it would do."""
    if order.dry_run:
        checked = check(order, now())
        return await _foretell(database, checked, asked, await targets.resolve(database, order.targets))
    found = await find_past(database, asked, now)
    if found is not None:  # whatever is over by now: the same key gets the same answer
        return found
    checked = check(order, now())
    await database.read(wanted.find, order)  # before its targets are looked for
    return await make(database, checked, asked, await targets.resolve(database, order.targets), now=now)


async def find_past(database: Database, asked: Asked, now: Now) -> Job | None:
    """The job that came with the same key before."""
    number = None if asked.key is None else await database.read(freezing.past, asked.key)
    return None if number is None else await database.read(reading.show, number, now=now())


async def make(  # noqa: PLR0913 # by name
    database: Database,
    checked: Checked,
    asked: Asked,
    numbers: array[int],
    *,
    now: Now,
    parent: int | None = None,
) -> Job:
    """Make a job for these devices."""
    for _ in range(_TRIES):
        frozen = await freeze(database, checked, asked, numbers, parent)
        if not len(frozen.sifted):
            raise Conflict("none of these devices is there any more")
        published = await _write(database, frozen, now)
        if published is not None:
            await take_over(database, published.number, published.older, now(), asked.tell)
            return await database.read(reading.show, published.number, now=now())
    raise Conflict("other jobs keep coming for the same devices")


async def _foretell(database: Database, checked: Checked, asked: Asked, numbers: array[int]) -> DryRun:
    frozen = await freeze(database, checked, asked, numbers, None)
    return await asyncio.to_thread(forecast, frozen, await look_ahead(database, frozen))


async def freeze(
    database: Database, checked: Checked, asked: Asked, numbers: array[int], parent: int | None
) -> Frozen:
    """All that a job will be made of, as it is now."""
    firmware = await database.read(wanted.find, checked.order)
    others = await database.read(rivals.find)
    sifted = await sift(database, numbers, firmware.need, others.rejecting)
    seed = secrets.randbits(_SEED_BITS)
    # In a thread: a hundred thousand devices take a while to be put in order.
    waves = await asyncio.to_thread(waves_of, seed, sifted, checked.order.waves)
    return Frozen(
        checked=checked,
        firmware=firmware,
        sifted=sifted,
        waves=waves,
        seed=seed,
        rivals=others,
        by=asked.by,
        key=asked.key,
        parent=parent,
    )


def waves_of(seed: int, sifted: Sifted, wanted: Sequence[Wave]) -> Waves:
    """The waves of those that are updated: who is connected goes first (rest-208)."""
    return Waves(seed, sifted.fitting(connected=True), wanted, later=sifted.fitting(connected=False))


async def _write(database: Database, frozen: Frozen, now: Now) -> Published | None:
    """Write it all down, and let it be seen; None: others came in between."""
    draft = await database.write(freezing.begin_draft, now())
    try:
        for start in range(0, len(frozen.sifted), freezing.CHUNK):
            rows = await asyncio.to_thread(freezing.rows_of, frozen, start)
            await database.write(freezing.write_chunk, draft, rows)
        published = await database.write(freezing.publish, draft, frozen, now())
    except RivalsChanged:
        await _discard(database, draft.number)
        return None
    except FleetError:
        await _discard(database, draft.number)
        raise
    if not published.is_new:
        await _discard(database, draft.number)
    return published


async def _discard(database: Database, number: int) -> None:
    while await database.write(freezing.discard, number):
        pass
