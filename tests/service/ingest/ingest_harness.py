"""A pipeline for tests, with a clock that the test moves, and what can be seen of it from outside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import select

from meshfleet.db.samples import SampleKind, SampleQuery, StoredSample, open_sample_store
from meshfleet.db.tables import device, device_state, foreign_name, reading_journal, reject
from meshfleet.mqtt.broker import ReportBatch
from meshfleet.mqtt.broker.store import PendingChanges
from meshfleet.service.ingest.pipeline import DEFAULT_TIMINGS, IngestPipeline, IngestTimings
from meshfleet.service.ingest.rollups import MAX_CLOSED_PER_FLUSH, Rollups
from tests.service.ingest.failing_store import FailingStore
from tests.service.ingest.messages import D, mac_to_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from sqlalchemy import Select

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.service.ingest.gateway_admission import GatewayAdmission

NOON = 1_700_049_600_000
"""2023-11-15T12:00:00.000Z"""

SECOND, MINUTE, DAY = 1_000, 60_000, 86_400_000

_FIRST, _LAST = -(2**62), 2**62

REPORTED_KINDS = frozenset(
    {SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.MEASUREMENT_ERROR, SampleKind.EVENT}
)


class IngestHarness:
    """A pipeline on a database. `restart` is what a crash and a new start are to it."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        database: Database,
        folder: Path,
        *,
        admission: GatewayAdmission | None = None,
        owner: bytes | None = None,
        timings: IngestTimings = DEFAULT_TIMINGS,
        max_per_flush: int = MAX_CLOSED_PER_FLUSH,
    ) -> None:
        """`at_once`: how many minutes are told by one flush."""
        self.now = NOON
        self.database = database
        self._folder = folder
        self._guests = admission
        self._owner = owner
        self._pauses = timings
        self._at_once = max_per_flush
        self.store, self.ingest = self._start()

    def _start(self) -> tuple[FailingStore, IngestPipeline]:
        store = FailingStore(open_sample_store(self.database, self._folder, {}, now=self.now))
        made = IngestPipeline(
            self.database,
            store,
            prefix="",
            admission=self._guests,
            owner=self._owner,
            rollups=Rollups(max_per_flush=self._at_once),
            timings=self._pauses,
            now=lambda: self.now,
        )
        return store, made

    async def restart(self) -> None:
        """Forget all that is only in memory, and go on."""
        self.store.close()
        self.store, self.ingest = self._start()
        await self.ingest.restore()

    async def commit(self, *messages: Publish) -> None:
        """Let messages come, as one batch."""
        await self.ingest.commit(build_batch(messages))

    async def commit_flushed(self, *messages: Publish) -> None:
        """Let messages come, and write down what they say of devices."""
        await self.commit(*messages)
        await self.ingest.flush()

    def close(self) -> None:
        """Let running work end."""
        self.store.close()

    # What can be seen

    async def samples(self, mac: str = D, *, kinds: Iterable[int] = REPORTED_KINDS) -> list[StoredSample]:
        """All samples of a device."""
        wanted = SampleQuery(device=mac_to_number(mac), kinds=frozenset(kinds), since=_FIRST, until=_LAST)
        return await self.store.read(wanted, list)

    async def sample(self, mac: str = D) -> StoredSample:
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

    def select_rows(self, query: Select[Any]) -> list[Any]:
        """What a query gives."""
        return self.database.read_now(lambda connection: list(connection.execute(query)))

    def device(self, mac: str = D) -> Any:
        """What is known of a device; None: nothing."""
        found = self.select_rows(select(device).where(device.c.id == mac_to_number(mac)))
        return found[0] if found else None

    def state(self, mac: str = D) -> Any:
        """How a device is; None: nobody knows."""
        found = self.select_rows(select(device_state).where(device_state.c.device == mac_to_number(mac)))
        return found[0] if found else None

    def gateway(self, mac: str = D) -> str | None:
        """To which gateway a device belongs."""
        known = self.device(mac)
        return None if known is None or known.gateway is None else f"{known.gateway:012x}"

    def rejects(self) -> list[Any]:
        """The list, the oldest first."""
        return self.select_rows(select(reject).order_by(reject.c.id))

    def foreign_names(self) -> dict[int, str]:
        """Names that the catalogue does not know."""
        return {row.number: row.name for row in self.select_rows(select(foreign_name))}

    def count_journal(self) -> int:
        """How many batches of readings are not counted yet."""
        return len(self.select_rows(select(reading_journal.c.id)))


def build_batch(messages: Sequence[Publish]) -> ReportBatch:
    """A batch with which the broker has nothing to remember."""
    return ReportBatch(messages, PendingChanges(), b"")
