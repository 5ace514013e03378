"""Behavior on SQLite only: the file, its settings, its single writer, and other processes."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import Connection, event, insert, select

from meshfleet.db import open_database
from meshfleet.db import sqlite as in_file
from meshfleet.db.database import Database
from meshfleet.db.tables import secret
from meshfleet.errors import DatabaseUnavailable, FleetError
from tests.db.test_database import PATIENCE, add, texts
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.db.conftest import DatabaseLocation

_PRAGMAS = {
    "foreign_keys": 1,
    "journal_mode": "wal",
    "synchronous": 2,  # FULL
    "busy_timeout": 10_000,
    "trusted_schema": 0,
}


def read_pragmas(connection: Connection) -> dict[str, object]:
    return {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in _PRAGMAS}


@pytest.fixture
def permissive_umask() -> Iterator[None]:
    """Let files of this process be readable and writable for all users by default."""
    old_umask = os.umask(0)
    yield
    os.umask(old_umask)


@pytest.fixture
def file(sqlite_database: Database, tmp_path: Path) -> Iterator[Path]:
    """Return the path of the file of `sqlite_database`."""
    yield tmp_path / "meshfleet.sqlite"
    sqlite_database.close()


# --- File ---


@pytest.mark.rule("rest-170")
@pytest.mark.usefixtures("permissive_umask")
def test_files_are_accessible_only_to_their_owner(sqlite_location: DatabaseLocation) -> None:
    with closing(sqlite_location.open()) as database:
        database.write_now(add, "a")
        assert {path.name: path.stat().st_mode & 0o777 for path in sqlite_location.folder.iterdir()} == {
            "meshfleet.sqlite": 0o600,
            "meshfleet.sqlite-wal": 0o600,
            "meshfleet.sqlite-shm": 0o600,
        }


@each_row("name", ["a b", "a?b=c#d", "100%", "%41", "Gerät 🔧", "a:b", "file:x"])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    open_database("sqlite", folder).close()
    assert [path.name for path in folder.iterdir()] == ["meshfleet.sqlite"]


def _create_directory(path: Path) -> None:
    path.mkdir()


def _write_garbage(path: Path) -> None:
    path.write_bytes(b"no database at all" * 1000)


def _damage_middle(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE filler AS SELECT randomblob(100000)")
        connection.commit()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 3000)


@pytest.mark.parametrize("damage", [_create_directory, _write_garbage, _damage_middle])
def test_an_invalid_database_file_raises_our_error(
    sqlite_location: DatabaseLocation, damage: Callable[[Path], None]
) -> None:
    damage(sqlite_location.folder / "meshfleet.sqlite")
    with pytest.raises(FleetError):
        sqlite_location.open()


# --- Settings ---


async def _gather_pragmas(database: Database) -> list[dict[str, object]]:
    barrier = threading.Barrier(4)

    def read_in_parallel(connection: Connection) -> dict[str, object]:
        barrier.wait(PATIENCE)
        return read_pragmas(connection)

    return list(await asyncio.gather(*(database.read(read_in_parallel) for _ in range(4))))


def test_every_connection_has_its_settings(file: Path) -> None:
    # A database of its own: `sqlite_database` does not sync to the disk.
    with closing(Database(in_file.create_sqlite_engines(file))) as database:
        assert database.write_now(read_pragmas) == _PRAGMAS
        assert asyncio.run(_gather_pragmas(database)) == [_PRAGMAS] * 4


# --- Single writer ---


def _increment_counter(connection: Connection) -> None:
    value = connection.scalar(select(secret.c.value).where(secret.c.name == "counter"))
    number = 0 if value is None else int(value)
    connection.execute(secret.delete())
    connection.execute(insert(secret).values(name="counter", value=b"%d" % (number + 1)))


async def _increment_in_parallel(database: Database) -> None:
    await asyncio.gather(*(database.write(_increment_counter) for _ in range(50)))


@pytest.mark.usefixtures("file")
def test_writers_do_not_overwrite_changes_of_each_other(sqlite_database: Database) -> None:
    asyncio.run(_increment_in_parallel(sqlite_database))
    assert sqlite_database.read_now(lambda connection: connection.scalar(select(secret.c.value))) == b"50"


# --- Other processes ---


def test_a_write_waits_for_a_short_lock_of_another_process(file: Path) -> None:
    engines = in_file.create_sqlite_engines(file)
    has_started = threading.Event()
    event.listen(engines.writers, "checkout", lambda *_: has_started.set())
    with closing(Database(engines)) as database, closing(_hold_write_lock(file)) as other:

        def release() -> None:
            assert has_started.wait(PATIENCE)
            assert [database.read_now(texts) for _ in range(20)] == [[]] * 20
            other.execute("COMMIT")

        releasing = threading.Thread(target=release)
        releasing.start()
        assert database.write_now(add, "a") == "a"
        releasing.join()
        assert database.read_now(texts) == ["a"]


def _hold_write_lock(file: Path) -> sqlite3.Connection:
    """Open a connection like another process, and hold the write lock."""
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_a_long_lock_of_another_process_raises_database_unavailable(file: Path) -> None:
    engines = in_file.create_sqlite_engines(file)
    event.listen(
        engines.writers, "connect", lambda connection, _: connection.execute("PRAGMA busy_timeout = 50")
    )
    with closing(Database(engines)) as database, closing(_hold_write_lock(file)) as other:
        with pytest.raises(DatabaseUnavailable, match="database is locked"):
            database.write_now(add, "a")
        assert database.read_now(texts) == []
        other.execute("ROLLBACK")
        assert database.write_now(add, "a") == "a"


_WRITER = """
import sys
from pathlib import Path
from meshfleet.db import open_database
from tests.db.test_database import add

database = open_database("sqlite", Path(sys.argv[1]))
for line in sys.stdin:
    database.write_now(add, line.strip())
    print("done", flush=True)
"""


def test_committed_rows_survive_a_killed_process(sqlite_location: DatabaseLocation) -> None:
    command = [sys.executable, "-c", _WRITER, str(sqlite_location.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for text in ("a", "b", "c"):
            writer.stdin.write(f"{text}\n".encode())
            assert writer.stdout.readline() == b"done\n"
        writer.send_signal(signal.SIGKILL)
    assert (sqlite_location.folder / "meshfleet.sqlite-wal").stat().st_size > 0
    with closing(sqlite_location.open()) as database:
        assert database.read_now(texts) == ["a", "b", "c"]
