"""A pipeline for tests, with a clock that the test moves, and what can be seen of it from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import select

from meshfleet.broker import Batch
from meshfleet.broker.changes import Changes
from meshfleet.db.samples import Sample, SampleKind, Wanted, open_samples
from meshfleet.db.tables import device, device_state, foreign_name, reading_journal, reject
from meshfleet.service.ingest.ingest import PAUSES, Ingest, Pauses
from meshfleet.service.ingest.rollups import AT_ONCE, Rollups
from tests.service.ingest.messages import D, number
from tests.service.ingest.stores import Fragile

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sqlalchemy import Select

    from meshfleet.db import Database
    from meshfleet.service.ingest.guests import Guests
    from meshfleet.wire.mqtt.packets import Publish

NOON = 1_700_049_600_000
"""2023-11-15T12:00:00.000Z"""

SECOND, MINUTE, DAY = 1_000, 60_000, 86_400_000

_FIRST, _LAST = -(2**62), 2**62

REPORTED = frozenset(
    {SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.MEASUREMENT_ERROR, SampleKind.EVENT}
)


class Intake:
    """A pipeline on a database. `restart` is what a crash and a new start are to it."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        folder: Path,
        *,
        guests: Guests | None = None,
        owner: bytes | None = None,
        pauses: Pauses = PAUSES,
        at_once: int = AT_ONCE,
    ) -> None:
        """`at_once`: how many minutes are told by one flush."""
        self.now = NOON
        self.database = database
        self._folder = folder
        self._guests = guests
        self._owner = owner
        self._pauses = pauses
        self._at_once = at_once
        self.store, self.ingest = self._begin()

    def _begin(self) -> tuple[Fragile, Ingest]:
        store = Fragile(open_samples(self.database, self._folder, {}, now=self.now))
        made = Ingest(
            self.database,
            store,
            prefix="",
            guests=self._guests,
            owner=self._owner,
            rollups=Rollups(at_once=self._at_once),
            pauses=self._pauses,
            now=lambda: self.now,
        )
        return store, made

    async def restart(self) -> None:
        """Forget all that is only in memory, and go on."""
        self.store.close()
        self.store, self.ingest = self._begin()
        await self.ingest.restore()

    async def take(self, *messages: Publish) -> None:
        """Let messages come, as one batch."""
        await self.ingest.take(batch(messages))

    async def settle(self, *messages: Publish) -> None:
        """Let messages come, and write down what they say of devices."""
        await self.take(*messages)
        await self.ingest.flush()

    def close(self) -> None:
        """Let running work end."""
        self.store.close()

    # What can be seen

    async def samples(self, mac: str = D, *, kinds: Iterable[int] = REPORTED) -> list[Sample]:
        """All samples of a device."""
        wanted = Wanted(device=number(mac), kinds=frozenset(kinds), since=_FIRST, until=_LAST)
        return await self.store.read(wanted, list)

    async def sample(self, mac: str = D) -> Sample:
        """The only one."""
        (only,) = await self.samples(mac)
        return only

    async def minutes(self, kind: SampleKind, mac: str = D) -> list[tuple[Any, ...]]:
        """The roll-ups of a device: minute, of which parent, mean, and what is kept beside it."""
        return [
            (each.time, each.identifier, each.number, msgspec.json.decode(each.more.ext))
            for each in await self.samples(mac, kinds=[kind])
            if each.more is not None and each.more.ext is not None
        ]

    def rows(self, query: Select[Any]) -> list[Any]:
        """What a query gives."""
        return self.database.read_now(lambda connection: list(connection.execute(query)))

    def device(self, mac: str = D) -> Any:
        """What is known of a device; None: nothing."""
        found = self.rows(select(device).where(device.c.id == number(mac)))
        return found[0] if found else None

    def state(self, mac: str = D) -> Any:
        """How a device is; None: nobody knows."""
        found = self.rows(select(device_state).where(device_state.c.device == number(mac)))
        return found[0] if found else None

    def gateway(self, mac: str = D) -> str | None:
        """To which gateway a device belongs."""
        known = self.device(mac)
        return None if known is None or known.gateway is None else f"{known.gateway:012x}"

    def rejects(self) -> list[Any]:
        """The list, the oldest first."""
        return self.rows(select(reject).order_by(reject.c.id))

    def names(self) -> dict[int, str]:
        """Names that the catalogue does not know."""
        return {row.number: row.name for row in self.rows(select(foreign_name))}

    def journal(self) -> int:
        """How many batches of readings are not counted yet."""
        return len(self.rows(select(reading_journal.c.id)))


def batch(messages: Sequence[Publish]) -> Batch:
    """A batch with which the broker has nothing to remember."""
    return Batch(messages, Changes(), b"")
