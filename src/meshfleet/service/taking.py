"""How reports come in: through the embedded broker or another one, and both ways into the ingest."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.broker import own
from meshfleet.db.samples import SampleKind, open_samples
from meshfleet.errors import FleetError
from meshfleet.service import clock
from meshfleet.service.exclusive import takes_reports
from meshfleet.service.following import Following
from meshfleet.service.ingest.figures import IngestFigures
from meshfleet.service.ingest.guests import Guests
from meshfleet.service.ingest.ingest import PAUSES, Ingest
from meshfleet.service.mqtt.endpoint import Endpoint
from meshfleet.service.mqtt.outside import Outside, client_id, options_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.db.samples.retention import Retention
    from meshfleet.service.api import Api
    from meshfleet.service.ingest.ingest import Pauses
    from meshfleet.service.mqtt.listeners import Entrance
    from meshfleet.settings import Settings

_log = logging.getLogger(__name__)

_SECOND: Final = 1000

_GRACE: Final = 5.0
"""Seconds to write what is left at the end."""


def samples_of(database: Database, settings: Settings) -> SampleStore:
    """The samples of a service, with what it is told of how long they are kept."""
    return open_samples(database, settings.data, _retention(settings), now=clock.now())


def _retention(settings: Settings) -> Retention:
    kept = settings.retention
    seconds: dict[int, int | None] = {
        SampleKind.PROPERTY: kept.property,
        SampleKind.MEASUREMENT: kept.measurement,
        SampleKind.MEASUREMENT_ERROR: kept.measurement_error,
        SampleKind.EVENT: kept.event,
        SampleKind.LINK: kept.link,
        SampleKind.HEARTBEAT: kept.heartbeat,
    }
    return {kind: None if each is None else each * _SECOND for kind, each in seconds.items()}


async def take_reports(  # noqa: PLR0913 # by name
    database: Database,
    samples: SampleStore,
    settings: Settings,
    api: Api,
    entrances: Sequence[Entrance],
    *,
    pauses: Pauses = PAUSES,
) -> None:
    """Take reports until cancelled, if anybody can bring any."""
    if not takes_reports(settings):
        return
    owner = await database.write(own)
    ingest = Ingest(
        database,
        samples,
        prefix=settings.topic_prefix,
        guests=None if settings.outside is None else Guests(welcome=settings.autoclaim),
        owner=None if database.is_sqlite else owner,
        rollups=api.rollups,
        pauses=pauses,
        now=clock.now,
    )
    await ingest.restore()
    api.figures.show(IngestFigures(ingest.figures))
    door = await _door(database, settings, api, ingest, owner)
    following = Following(
        database,
        samples,
        settings,
        retention=_retention(settings),
        door=door,
        api=api,
        ingest=ingest,
        carrier=door.broker if isinstance(door, Endpoint) else door,
        pause=pauses.look,
    )
    await following.restore()
    for each in (ingest, door):
        api.readiness.watch(each)
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(ingest.run(), name="ingest")
            tasks.create_task(following.run(), name="following")
            await (door.run(entrances) if isinstance(door, Endpoint) else door.run())
    finally:
        await _end(ingest)


async def _end(ingest: Ingest) -> None:
    """Write what is left. If that cannot be, the next start finds it in the journal."""
    try:
        async with asyncio.timeout(_GRACE):
            await ingest.flush()
    except (FleetError, DBAPIError, TimeoutError) as exc:
        _log.warning("what was coalesced is written at the next start: %s", type(exc).__name__)


async def _door(
    database: Database, settings: Settings, api: Api, ingest: Ingest, owner: bytes
) -> Endpoint | Outside:
    """Where reports come in: the embedded broker, or another one of which we are a client."""
    if settings.outside is None:
        return await asyncio.to_thread(
            Endpoint,
            database,
            settings,
            consumer=ingest,
            owner=owner,
            reception=api.reception,
            figures=api.figures,
            now=clock.now,
            steady=clock.steady,
        )
    return Outside(
        settings.outside,
        await database.write(client_id),
        prefix=settings.topic_prefix,
        consumer=ingest,
        options=await asyncio.to_thread(options_of, settings),
        max_age=settings.requests_max_age,
    )
