"""Passes committed readings to the reading store, and writes them to the database for the next start."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
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

_encode_parts = msgspec.msgpack.Encoder().encode
_decode_parts = msgspec.msgpack.Decoder(list[bytes]).decode


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
        self._unwritten: list[bytes] = []
        """Encoded readings since the last flush; some may be of parents that are no anchors."""
        self._cleaned_at = 0

    def load(self, connection: Connection) -> StoredReadings:
        """Load the readings of the last process."""
        columns = anchor_reading.c
        query = select(columns.arrived_at, columns.readings).order_by(columns.id)
        rows = connection.execute(query)
        return StoredReadings(
            [(at, decode_readings(part)) for at, parts in rows for part in _decode_parts(parts)],
            [reading for entry in load_journal(connection) for reading in entry.readings],
        )

    async def restore(self, stored: StoredReadings, now: int) -> None:
        """Keep the readings of the last process that are still of anchors. Call this before the first batch.

        Readings of the journal are written again, because ingest deletes its journal soon after the start.
        """
        for arrived_at, readings in stored.arrivals:
            self._readings.add(self._readings.select(readings), arrived_at)
            await asyncio.sleep(0)  # there may be millions, and clients already send requests
        if kept := self._readings.select(stored.journal):
            self._readings.add(kept, now)
            self._unwritten.append(encode_readings(kept))
        self._readings.drop_expired(now)

    def on_commit(self, batch: ParsedBatch) -> None:
        """Keep the readings of anchors in a committed batch."""
        kept = self._readings.select(batch.readings)
        if not kept:
            return
        self._readings.add(kept, batch.now)
        # Ingest has encoded all readings of the batch for its journal. Writing some more is cheaper than
        # encoding most of them again.
        is_most = 2 * len(kept) >= len(batch.readings)
        self._unwritten.append(batch.encoded_readings if is_most else encode_readings(kept))

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

    def __init__(self, parts: Sequence[bytes], now: int, cutoff: int | None) -> None:
        self._parts = parts
        self._now = now
        self._cutoff = cutoff

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # of the protocol
        """Write the readings, and delete those whose retention has ended."""
        if self._parts:
            values = {"arrived_at": self._now, "readings": _encode_parts(self._parts)}
            connection.execute(insert(anchor_reading).values(values))
        if self._cutoff is not None:
            connection.execute(delete(anchor_reading).where(anchor_reading.c.arrived_at <= self._cutoff))

    def on_flushed(self) -> None:
        """Nothing depends on the readings being written."""
