"""Tests of the readings of anchors that the next process takes over."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import TYPE_CHECKING

import msgspec
import pytest
from sqlalchemy import insert

from meshfleet.db.tables import anchor_reading, reading_journal
from meshfleet.service.ingest.parsed_batch import ParsedBatch
from meshfleet.service.ingest.readings import encode_readings
from meshfleet.service.positions.reading_log import ReadingLog
from meshfleet.service.positions.reading_store import ReadingStore
from tests.service.positions.test_reading_store import ANCHORS, DEVICE, HOUR, MINUTE, NOW, A, B, build_link

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.ingest.readings import Reading


def _build_log() -> tuple[ReadingLog, ReadingStore]:
    store = ReadingStore(retention_ms=HOUR)
    store.set_anchors(ANCHORS)
    return ReadingLog(store), store


def _commit(log: ReadingLog, now: int, *readings: Reading) -> None:
    batch = ParsedBatch(now)
    batch.readings += readings
    batch.encoded_readings = encode_readings(batch.readings)
    log.on_commit(batch)


def _flush(log: ReadingLog, database: Database, now: int) -> None:
    database.write_now(log.prepare_flush({}, now).write, ())


def _restore(database: Database, now: int) -> ReadingStore:
    log, store = _build_log()
    asyncio.run(log.restore(database, now))
    return store


def _insert_rows(database: Database, *rows: bytes) -> None:
    values = [{"arrived_at": NOW, "readings": each} for each in rows]
    database.write_now(lambda connection: connection.execute(insert(anchor_reading), values))


@pytest.mark.both_databases
def test_stored_readings_expire_after_the_clock_was_ahead_and_has_been_set_right(database: Database) -> None:
    log, _ = _build_log()
    _commit(log, NOW + 10 * HOUR, build_link(NOW, A))
    _flush(log, database, NOW + 10 * HOUR)
    _commit(log, NOW, build_link(NOW, B))
    _flush(log, database, NOW)
    assert {each.anchor for each in _restore(database, NOW).list_readings(DEVICE, 0, NOW)} == {A, B}
    _flush(log, database, NOW + HOUR + 2 * MINUTE)
    assert len(_restore(database, NOW)) == 0


@pytest.mark.both_databases
def test_rows_that_cannot_be_decoded_are_ignored_with_a_warning(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    readings = encode_readings([build_link(NOW, A)])
    damaged = msgspec.msgpack.encode([encode_readings([(1, 2, 3, 4, "text", 5, 6)]).replace(b"t", b"\xff")])
    _insert_rows(database, b"", readings, damaged, msgspec.msgpack.encode([readings]))
    assert len(_restore(database, NOW)) == 1
    (record,) = caplog.records
    assert record.message.startswith("3 rows of single readings of anchors cannot be decoded")


def test_a_start_has_only_a_part_of_the_stored_readings_in_memory(database: Database) -> None:
    unknown = encode_readings([build_link(NOW + number, 0xC0FFEE0000FF) for number in range(1_000)])
    _insert_rows(database, *[msgspec.msgpack.encode([unknown])] * 20)
    entries = [{"readings": unknown}] * 20
    database.write_now(lambda connection: connection.execute(insert(reading_journal), entries))
    _restore(database, NOW)  # imports what it needs
    tracemalloc.start()
    _restore(database, NOW)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3_000_000, "decoded, all readings take more than 8 MB"
