"""Ingest pipeline for tests, with a clock set by the test and access to the stored rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from sqlalchemy import Select, select

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

    from meshfleet.db import Database
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.service.ingest.gateway_admission import GatewayAdmission
    from meshfleet.service.presence.gateway_clocks import GatewayClocks

NOON = 1_700_049_600_000
"""2023-11-15T12:00:00.000Z"""

SECOND, MINUTE, DAY = 1_000, 60_000, 86_400_000

_FIRST, _LAST = -(2**62), 2**62

REPORTED_KINDS = frozenset(
    {SampleKind.PROPERTY, SampleKind.MEASUREMENT, SampleKind.MEASUREMENT_ERROR, SampleKind.EVENT}
)


class IngestHarness:
    """Ingest pipeline on a database. `restart` simulates a crash and a new start."""

    def __init__(  # noqa: PLR0913 # keyword-only
        self,
        database: Database,
        folder: Path,
        *,
        admission: GatewayAdmission | None = None,
        owner: bytes | None = None,
        timings: IngestTimings = DEFAULT_TIMINGS,
        max_per_flush: int = MAX_CLOSED_PER_FLUSH,
    ) -> None:
        """Create the pipeline. At most `max_per_flush` minutes are closed by one flush."""
        self.now = NOON
        self.database = database
        self._folder = folder
        self._admission = admission
        self._owner = owner
        self._timings = timings
        self._max_per_flush = max_per_flush
        self.acking_gateways: set[int] = set()
        self.clock_shifts: dict[int, int] = {}
        self._clocks: GatewayClocks | None = None
        self.store, self.ingest = self._start()

    def _start(self) -> tuple[FailingStore, IngestPipeline]:
        self.rollups = Rollups(max_per_flush=self._max_per_flush)
        store = FailingStore(open_sample_store(self.database, self._folder, {}, now=self.now))
        pipeline = IngestPipeline(
            self.database,
            store,
            prefix="",
            admission=self._admission,
            owner=self._owner,
            rollups=self.rollups,
            acking_gateways=self.acking_gateways,
            clock_shifts=self.clock_shifts if self._clocks is None else self._clocks.shifts,
            is_shift_confirmed=(lambda _gateway: True) if self._clocks is None else self._clocks.is_confirmed,
            timings=self._timings,
            now=lambda: self.now,
        )
        return store, pipeline

    async def use_clocks(self, clocks: GatewayClocks) -> None:
        """Start again with the measured clocks of gateways."""
        self._clocks = clocks
        await self.restart()

    async def restart(self) -> None:
        """Discard everything that is only in memory, and start again."""
        self.store.close()
        self.store, self.ingest = self._start()
        await self.ingest.restore()

    async def commit(self, *messages: Publish) -> None:
        """Commit messages as one batch."""
        await self.ingest.commit(build_batch(messages))

    async def commit_flushed(self, *messages: Publish) -> None:
        """Commit messages, and write the device states."""
        await self.commit(*messages)
        await self.ingest.flush()

    def close(self) -> None:
        """Wait for running work, then close the store."""
        self.store.close()

    # Stored rows

    async def samples(self, mac: str = D, *, kinds: Iterable[int] = REPORTED_KINDS) -> list[StoredSample]:
        """Return all samples of a device."""
        query = SampleQuery(device=mac_to_number(mac), kinds=frozenset(kinds), since=_FIRST, until=_LAST)
        return await self.store.read(query, list)

    async def sample(self, mac: str = D) -> StoredSample:
        """Return the only sample of a device."""
        (only,) = await self.samples(mac)
        return only

    async def minutes(self, kind: SampleKind, mac: str = D) -> list[tuple[Any, ...]]:
        """Return the roll-ups of a device: minute, parent, mean and statistics."""
        return [
            (sample.time, sample.identifier, sample.number, msgspec.json.decode(sample.more.ext))
            for sample in await self.samples(mac, kinds=[kind])
            if sample.more is not None and sample.more.ext is not None
        ]

    def select_rows(self, query: Select[Any]) -> list[Any]:
        """Return the rows of a query."""
        return self.database.read_now(lambda connection: list(connection.execute(query)))

    def device(self, mac: str = D) -> Any:
        """Return the row of a device; None if it is unknown."""
        rows = self.select_rows(select(device).where(device.c.id == mac_to_number(mac)))
        return rows[0] if rows else None

    def state(self, mac: str = D) -> Any:
        """Return the state of a device; None if it has none."""
        rows = self.select_rows(select(device_state).where(device_state.c.device == mac_to_number(mac)))
        return rows[0] if rows else None

    def gateway(self, mac: str = D) -> str | None:
        """Return the gateway to which a device belongs."""
        row = self.device(mac)
        return None if row is None or row.gateway is None else f"{row.gateway:012x}"

    def rejects(self) -> list[Any]:
        """Return the stored rejects, the oldest first."""
        return self.select_rows(select(reject).order_by(reject.c.id))

    def foreign_names(self) -> dict[int, str]:
        """Return the stored names that are not in the catalogue."""
        return {row.number: row.name for row in self.select_rows(select(foreign_name))}

    def count_journal(self) -> int:
        """Count the journal entries."""
        return len(self.select_rows(select(reading_journal.c.id)))


def build_batch(messages: Sequence[Publish]) -> ReportBatch:
    """Build a batch without changes of the broker."""
    return ReportBatch(messages, PendingChanges(), b"")
