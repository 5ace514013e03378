"""Passes committed readings to the reading store, and writes them to the database for the next start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import delete, insert, select

from meshfleet.db.tables import anchor_reading
from meshfleet.service.ingest.readings import decode_readings, encode_readings
from meshfleet.service.ingest.store import load_journal

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.positions.reading_store import ReadingStore

_CLEANUP_MS: Final = 60_000
"""Milliseconds between two deletions of readings whose retention has ended."""


class StoredReadings(NamedTuple):
    """Readings that the last process stored."""

    arrivals: list[tuple[int, list[Reading]]]
    """Time of arrival and readings, the oldest first."""
    journal: list[Reading]
    """Readings of the journal of ingest; the last process may have had no time to write them here."""


class ReadingLog:
    """Subscriber of committed reports that keeps the readings of anchors."""

    def __init__(self, readings: ReadingStore) -> None:
        self._readings = readings
        self._unwritten: list[Reading] = []
        self._cleaned_at = 0

    def load(self, connection: Connection) -> StoredReadings:
        """Load the readings of the last process."""
        columns = anchor_reading.c
        query = select(columns.arrived_at, columns.readings).order_by(columns.id)
        rows = connection.execute(query)
        return StoredReadings(
            [(row.arrived_at, decode_readings(row.readings)) for row in rows],
            [reading for entry in load_journal(connection) for reading in entry.readings],
        )

    async def restore(self, stored: StoredReadings, now: int) -> None:
        """Keep the readings of the last process that are still of anchors. Call this before the first batch.

        Readings of the journal are written again, because ingest deletes its journal soon after the start.
        """
        for arrived_at, readings in stored.arrivals:
            self._readings.add(self._readings.select(readings), arrived_at)
            await asyncio.sleep(0)  # there may be millions, and clients already send requests
        self._keep(stored.journal, now)
        self._readings.drop_expired(now)

    def on_commit(self, batch: ParsedBatch) -> None:
        """Keep the readings of anchors in a committed batch."""
        self._keep(batch.readings, batch.now)

    def _keep(self, readings: Sequence[Reading], now: int) -> None:
        kept = self._readings.select(readings)
        if kept:
            self._readings.add(kept, now)
            self._unwritten += kept

    def prepare_flush(self, states: PendingStates, now: int) -> ReadingFlush:  # noqa: ARG002 # of the protocol
        """Return the readings since the last flush."""
        unwritten, self._unwritten = self._unwritten, []
        cutoff = None
        if now - self._cleaned_at >= _CLEANUP_MS or now < self._cleaned_at:
            self._cleaned_at, cutoff = now, now - self._readings.retention_ms
            self._readings.drop_expired(now)
        return ReadingFlush(unwritten, now, cutoff)


class ReadingFlush:
    """Readings to write in the transaction of a flush."""

    def __init__(self, readings: Sequence[Reading], now: int, cutoff: int | None) -> None:
        self._readings = readings
        self._now = now
        self._cutoff = cutoff

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # of the protocol
        """Write the readings, and delete those whose retention has ended."""
        if self._readings:
            values = {"arrived_at": self._now, "readings": encode_readings(self._readings)}
            connection.execute(insert(anchor_reading).values(values))
        if self._cutoff is not None:
            connection.execute(delete(anchor_reading).where(anchor_reading.c.arrived_at <= self._cutoff))

    def on_flushed(self) -> None:
        """Nothing depends on the readings being written."""
