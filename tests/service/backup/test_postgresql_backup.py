"""Backup of PostgreSQL while expired partitions are dropped."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.errors import LockNotAvailable

from meshfleet.db import connect_database
from meshfleet.db.samples.postgresql_store import create_partition_by_name
from meshfleet.service.backup.archive import ArchiveReader
from meshfleet.service.backup.creation import BackupRequest, write_backup
from meshfleet.settings import load_settings
from tests.databases import create_database
from tests.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path

PARTITIONS = ("sample_reported_20260101", "sample_reported_20260102")
COUNT_WAITING = "SELECT count(*) FROM pg_locks WHERE mode = 'AccessShareLock' AND NOT granted"


class PausedOutput(io.BytesIO):
    """File whose first write waits for an event."""

    def __init__(self) -> None:
        super().__init__()
        self.started = Event()
        self.go_on = Event()

    def write(self, data: bytes) -> int:  # type: ignore[override] # the archive writes only bytes
        self.started.set()
        assert self.go_on.wait(60)
        return super().write(data)


@pytest.fixture
def url(postgresql_server: str, tmp_path: Path) -> str:
    url = create_database(postgresql_server, "partitions")
    database = connect_database(url, tmp_path)
    for name in PARTITIONS:
        database.write_now(create_partition_by_name, name)
    database.close()
    return url


def list_tables(output: io.BytesIO) -> set[str]:
    archive = ArchiveReader(output)
    archive.check()
    return {table.name for table in archive.description.tables}


def build_request(url: str, tmp_path: Path) -> BackupRequest:
    settings = load_settings({"database": url, "data": str(tmp_path)}, {})
    return BackupRequest(settings, True, lambda: 0, Event(), lambda _: None)  # noqa: FBT003 # named field


def test_partitions_that_are_dropped_during_a_backup(
    url: str, postgresql_server: str, tmp_path: Path
) -> None:
    output = PausedOutput()
    first, second = PARTITIONS
    with psycopg.connect(url) as retention, ThreadPoolExecutor(1) as thread:
        retention.execute(f"DROP TABLE {first}".encode())
        backup = thread.submit(write_backup, build_request(url, tmp_path), output)
        # Its snapshot still has the partition, for whose lock it waits.
        with psycopg.connect(postgresql_server, autocommit=True) as server:
            eventually(lambda: server.execute(COUNT_WAITING).fetchone() == (1,), "that the backup waits")
        retention.commit()
        assert output.started.wait(60)
        # It has locked the other one: retention gives up soon, and tries again later.
        retention.execute("SET LOCAL lock_timeout = 100")
        with pytest.raises(LockNotAvailable):
            retention.execute(f"DROP TABLE {second}".encode())
        output.go_on.set()
        backup.result()
    assert list_tables(output) & set(PARTITIONS) == {second}
