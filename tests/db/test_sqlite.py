"""What holds on SQLite alone: its file, its settings, its one writer, and other programs at the same file."""

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
from sqlalchemy import event, insert, select

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

    from sqlalchemy import Connection

    from tests.db.conftest import DatabaseLocation

_PRAGMAS = {
    "foreign_keys": 1,
    "journal_mode": "wal",
    "synchronous": 2,  # FULL
    "busy_timeout": 10_000,
    "trusted_schema": 0,
}


def pragmas(connection: Connection) -> dict[str, object]:
    return {name: connection.exec_driver_sql(f"PRAGMA {name}").scalar() for name in _PRAGMAS}


@pytest.fixture
def anything_goes() -> Iterator[None]:
    """Whatever this process makes may be read and changed by everybody."""
    before = os.umask(0)
    yield
    os.umask(before)


@pytest.fixture
def file(sqlite_database: Database, tmp_path: Path) -> Iterator[Path]:
    """The file of `sqlite_database`."""
    yield tmp_path / "meshfleet.sqlite"
    sqlite_database.close()


# --- Its file ---


@pytest.mark.rule("rest-170")
@pytest.mark.usefixtures("anything_goes")
def test_its_files_are_for_their_owner_alone(sqlite_place: DatabaseLocation) -> None:
    with closing(sqlite_place.open()) as database:
        database.write_now(add, "a")
        assert {each.name: each.stat().st_mode & 0o777 for each in sqlite_place.folder.iterdir()} == {
            "meshfleet.sqlite": 0o600,
            "meshfleet.sqlite-wal": 0o600,
            "meshfleet.sqlite-shm": 0o600,
        }


@each_row("name", ["a b", "a?b=c#d", "100%", "%41", "Gerät 🔧", "a:b", "file:x"])
def test_a_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    open_database("sqlite", folder).close()
    assert [each.name for each in folder.iterdir()] == ["meshfleet.sqlite"]


def _spoil_nothing(path: Path) -> None:
    path.mkdir()


def _spoil_all(path: Path) -> None:
    path.write_bytes(b"no database at all" * 1000)


def _spoil_its_middle(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE filler AS SELECT randomblob(100000)")
        connection.commit()
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * 3000)


@pytest.mark.parametrize("spoil", [_spoil_nothing, _spoil_all, _spoil_its_middle])
def test_what_is_no_database_is_refused_with_an_error_of_ours(
    sqlite_place: DatabaseLocation, spoil: Callable[[Path], None]
) -> None:
    spoil(sqlite_place.folder / "meshfleet.sqlite")
    with pytest.raises(FleetError):
        sqlite_place.open()


# --- Its settings ---


async def _gather_pragmas(database: Database) -> list[dict[str, object]]:
    all_there = threading.Barrier(4)

    def look(connection: Connection) -> dict[str, object]:
        all_there.wait(PATIENCE)
        return pragmas(connection)

    return list(await asyncio.gather(*(database.read(look) for _ in range(4))))


def test_every_connection_is_set_up(file: Path) -> None:
    with closing(
        Database(in_file.create_sqlite_engines(file))
    ) as database:  # `sqlite_database` does not wait for the disk
        assert database.write_now(pragmas) == _PRAGMAS
        assert asyncio.run(_gather_pragmas(database)) == [_PRAGMAS] * 4


# --- One writer ---


def _raise_counter(connection: Connection) -> None:
    found = connection.scalar(select(secret.c.value).where(secret.c.name == "counter"))
    number = 0 if found is None else int(found)
    connection.execute(secret.delete())
    connection.execute(insert(secret).values(name="counter", value=b"%d" % (number + 1)))


async def _raise_often(database: Database) -> None:
    await asyncio.gather(*(database.write(_raise_counter) for _ in range(50)))


@pytest.mark.usefixtures("file")
def test_no_writer_works_on_what_another_one_changes(sqlite_database: Database) -> None:
    asyncio.run(_raise_often(sqlite_database))
    assert sqlite_database.read_now(lambda connection: connection.scalar(select(secret.c.value))) == b"50"


# --- Other programs ---


def test_a_program_that_holds_the_lock_shortly_is_waited_for(file: Path) -> None:
    engines = in_file.create_sqlite_engines(file)
    begins = threading.Event()
    event.listen(engines.writers, "checkout", lambda *_: begins.set())
    with closing(Database(engines)) as database, closing(_holding(file)) as other:

        def release() -> None:
            assert begins.wait(PATIENCE)
            assert [database.read_now(texts) for _ in range(20)] == [[]] * 20
            other.execute("COMMIT")

        releasing = threading.Thread(target=release)
        releasing.start()
        assert database.write_now(add, "a") == "a"
        releasing.join()
        assert database.read_now(texts) == ["a"]


def _holding(file: Path) -> sqlite3.Connection:
    """Another program, which holds the lock of writers."""
    other = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    return other


def test_a_program_that_holds_the_lock_for_long_is_told(file: Path) -> None:
    engines = in_file.create_sqlite_engines(file)
    event.listen(engines.writers, "connect", lambda made, _: made.execute("PRAGMA busy_timeout = 50"))
    with closing(Database(engines)) as impatient, closing(_holding(file)) as other:
        with pytest.raises(DatabaseUnavailable, match="database is locked"):
            impatient.write_now(add, "a")
        assert impatient.read_now(texts) == []
        other.execute("ROLLBACK")
        assert impatient.write_now(add, "a") == "a"


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


def test_what_was_committed_survives_a_process_that_is_killed(sqlite_place: DatabaseLocation) -> None:
    command = [sys.executable, "-c", _WRITER, str(sqlite_place.folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for text in ("a", "b", "c"):
            writer.stdin.write(f"{text}\n".encode())
            assert writer.stdout.readline() == b"done\n"
        writer.send_signal(signal.SIGKILL)
    assert (sqlite_place.folder / "meshfleet.sqlite-wal").stat().st_size > 0
    with closing(sqlite_place.open()) as database:
        assert database.read_now(texts) == ["a", "b", "c"]
