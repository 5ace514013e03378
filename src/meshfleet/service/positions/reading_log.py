"""Passes committed readings to the reading store, and writes them to the database for the next start."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy import delete, insert, select, update

from meshfleet.db.tables import anchor_reading
from meshfleet.service.ingest.readings import decode_readings, encode_readings
from meshfleet.service.ingest.store import load_next_journal_entry

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from sqlalchemy import Connection

    from meshfleet.db import Database
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.ingest.readings import Reading
    from meshfleet.service.positions.reading_store import ReadingStore

_log = logging.getLogger(__name__)

_CLEANUP_MS: Final = 60_000
"""Milliseconds between two deletions of readings whose retention has ended."""

_encode_parts = msgspec.msgpack.Encoder().encode
_decode_parts = msgspec.msgpack.Decoder(list[bytes]).decode


class _StoredRow(NamedTuple):
    """Readings of one flush of the last process."""

    id: int
    arrived_at: int
    batches: list[list[Reading]] | None
    """None if they cannot be decoded."""


class ReadingLog:
    """Subscriber of committed reports that keeps the readings of anchors."""

    def __init__(self, readings: ReadingStore) -> None:
        self._readings = readings
        self._unwritten: list[bytes] = []
        """Encoded readings since the last flush; some may be of parents that are no anchors."""
        self._cleaned_at = 0

    async def restore(self, database: Database, now: int) -> None:
        """Keep the readings of the last process that are still of anchors. Call this before the first batch.

        There may be millions: they are decoded flush by flush, and those that are not kept are freed before
        the next flush.
        """
        await self._restore_flushes(database, now)
        await self._restore_journal(database, now)
        self._readings.drop_expired(now)

    async def _restore_flushes(self, database: Database, now: int) -> None:
        """Keep what the last process has written with its flushes, and what has not expired."""
        last_id, skipped = 0, 0
        since = now - self._readings.retention_ms
        while (row := await database.read(_load_next_row, last_id, since)) is not None:
            last_id = row.id
            skipped += row.batches is None
            for readings in row.batches or ():
                self._readings.add(self._readings.select(readings), min(row.arrived_at, now))
                await asyncio.sleep(0)  # clients already send requests
        if skipped:
            _log.warning(
                "%d rows of single readings of anchors cannot be decoded, and are ignored: another version"
                " has written them, or they are damaged. Positions in their time come from minutes.",
                skipped,
            )

    async def _restore_journal(self, database: Database, now: int) -> None:
        """Keep the readings of the journal of ingest; the last process may have had no time for a flush.

        They are written again, because ingest deletes its journal soon after the start.
        """
        last_id = 0
        while (entry := await database.read(load_next_journal_entry, last_id)) is not None:
            last_id = entry.id
            if kept := self._readings.select(entry.readings):
                self._readings.add(kept, now)
                self._unwritten.append(encode_readings(kept))

    def on_commit(self, batch: ParsedBatch) -> None:
        """Keep the readings of anchors in a committed batch."""
        if not batch.readings or not self._readings.anchors:
            return
        if self._readings.is_mostly_of_anchors(batch.readings):
            # Ingest has encoded all readings of the batch for its journal. To write and load some more is
            # cheaper than to select those of anchors here, and to encode them again.
            self._readings.add(batch.readings, batch.now)
            self._unwritten.append(batch.encoded_readings)
        elif kept := self._readings.select(batch.readings):
            self._readings.add(kept, batch.now)
            self._unwritten.append(encode_readings(kept))

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
            arrived_at, now = anchor_reading.c.arrived_at, self._now
            connection.execute(delete(anchor_reading).where(arrived_at <= self._cutoff))
            # If the clock was ahead, and has been set right, later rows would stay until it gets there again.
            connection.execute(update(anchor_reading).where(arrived_at > now).values(arrived_at=now))

    def on_flushed(self) -> None:
        """Nothing depends on the readings being written."""


def _load_next_row(connection: Connection, last_id: int, since: int) -> _StoredRow | None:
    """Load the first row after the one with `last_id` that arrived after `since`. Return None at the end."""
    columns = anchor_reading.c
    query = select(columns.id, columns.arrived_at, columns.readings).order_by(columns.id).limit(1)
    row = connection.execute(query.where(columns.id > last_id, columns.arrived_at > since)).first()
    return None if row is None else _StoredRow(row.id, row.arrived_at, _decode_row(row.readings))


def _decode_row(data: bytes) -> list[list[Reading]] | None:
    try:
        return [decode_readings(part) for part in _decode_parts(data)]
    except (ValueError, RecursionError):  # a damaged row can be anything, such as text that is not UTF-8
        return None
