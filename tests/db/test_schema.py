"""The history of the schema: whoever starts finds the tables that the program knows, or is refused."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import inspect, select, text
from sqlalchemy.exc import DBAPIError

from meshfleet.db import postgresql as on_server
from meshfleet.db import sqlite as in_file
from meshfleet.db.database import Database
from meshfleet.db.schema import is_schema_current, run_migrations
from meshfleet.db.tables import label, metadata
from meshfleet.errors import FleetError
from meshfleet.errors.startup import UnusableDatabase
from meshfleet.mqtt.broker import load_stored_state
from tests.db.parallel_processes import start_processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection
    from sqlalchemy.engine.interfaces import ReflectedIndex

    from tests.db.conftest import DatabaseLocation
    from tests.db.parallel_processes import ParallelProcesses

pytestmark = pytest.mark.both_databases


def untouched(place: DatabaseLocation) -> Database:
    """A database, without bringing it up to date."""
    if place.address == "sqlite":
        return Database(in_file.create_sqlite_engines(place.folder / "meshfleet.sqlite"))
    return Database(on_server.create_postgresql_engines(place.address))


def run(connection: Connection, *statements: str) -> None:
    for each in statements:
        connection.exec_driver_sql(each)


def content(connection: Connection) -> set[str]:
    """All that has been made in a database."""
    if connection.dialect.name == "sqlite":
        return set(connection.execute(text("SELECT name FROM sqlite_master")).scalars())
    extensions = connection.execute(text("SELECT extname FROM pg_extension WHERE extname != 'plpgsql'"))
    relations = text("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
    return {*connection.execute(relations).scalars(), *extensions.scalars()}


# --- Bringing a database up to date ---


def test_an_empty_database_is_brought_up_to_date(place: DatabaseLocation) -> None:
    with closing(untouched(place)) as database:
        assert not database.read_now(is_schema_current)
    with closing(place.open()) as database:
        assert database.read_now(is_schema_current)


def test_doing_it_again_changes_nothing(place: DatabaseLocation) -> None:
    with closing(place.open()) as database:
        database.write_now(run, "INSERT INTO label (text, created_at) VALUES ('kept', 1)")
        before = database.read_now(content)
    with closing(place.open()) as database:
        assert database.read_now(content) == before
        assert database.read_now(lambda connection: connection.scalar(select(label.c.text))) == "kept"


_OPEN = """
from pathlib import Path
from meshfleet.db import open_database
from meshfleet.db.schema import is_schema_current

def work(address, folder):
    database = open_database(address, Path(folder))
    try:
        return database.read_now(is_schema_current)
    finally:
        database.close()
"""


@pytest.fixture(scope="module")
def processes() -> Iterator[ParallelProcesses]:
    with start_processes(_OPEN) as processes:
        yield processes


@pytest.mark.parametrize("_time", range(2))
def test_programs_may_bring_one_database_up_to_date_at_once(
    processes: ParallelProcesses, place: DatabaseLocation, _time: int
) -> None:
    assert processes.call_all(*place) == ["True", "True"]


def test_a_failure_on_the_way_leaves_a_database_as_it_was(place: DatabaseLocation) -> None:
    with closing(untouched(place)) as database:
        database.write_now(run, "CREATE TABLE label (mine INTEGER)")
        before = database.read_now(content)
        with pytest.raises((FleetError, DBAPIError)):
            place.open()
        assert database.read_now(content) == before
        database.write_now(run, "DROP TABLE label")
    with closing(place.open()) as database:
        assert database.read_now(is_schema_current)


def _older(connection: Connection) -> None:
    """Make a database as it was before messages had positions, with messages of two sessions."""
    run_migrations(connection, "0008")
    for number in (1, 2):
        row = {"number": number, "client_id": f"client {number}"}
        connection.execute(
            text("INSERT INTO broker_session VALUES (:number, 'user ada', :client_id, NULL)"), row
        )
    for place, (number, packet_id) in enumerate(_MESSAGES):
        message = {"session": number, "id": packet_id, "place": place, "payload": b"%d" % place}
        connection.execute(
            text("INSERT INTO broker_message VALUES (:session, :id, :place, 'a', :payload, false, NULL)"),
            message,
        )


_MESSAGES = ((1, 65_534), (2, 7), (1, 65_535), (1, 1), (2, 9), (1, 3), (1, 65_533), (1, 2))
"""Session and packet id, in their order; the ids of one session begin at 1 again, twice."""


def test_messages_that_wait_keep_their_order_and_their_packet_ids(place: DatabaseLocation) -> None:
    with closing(untouched(place)) as database:
        database.write_now(_older)
    with closing(place.open()) as database:
        found = database.read_now(load_stored_state).messages
    came = sorted((int(letter.payload), number, position % 65_535 + 1) for number, position, letter in found)
    assert [(number, packet_id) for _, number, packet_id in came] == list(_MESSAGES)
    assert [letter.payload for number, _, letter in found if number == 1] == [
        b"0",
        b"2",
        b"3",
        b"5",
        b"6",
        b"7",
    ]


# --- Refusing one ---


def test_tables_of_somebody_else_are_told_in_plain_words(place: DatabaseLocation) -> None:
    with closing(untouched(place)) as database:
        database.write_now(run, "CREATE TABLE label (mine INTEGER)")
    with pytest.raises(UnusableDatabase, match="label") as raised:
        place.open()
    assert "CREATE TABLE" not in str(raised.value)


def test_an_older_program_refuses_a_newer_schema(place: DatabaseLocation) -> None:
    with closing(place.open()) as database:
        database.write_now(run, "UPDATE alembic_version SET version_num = '9999'")
        before = database.read_now(content)
        with pytest.raises(UnusableDatabase, match=r"newer Meshfleet \(its schema is 9999\)"):
            place.open()
        assert not database.read_now(is_schema_current)
        assert database.read_now(content) == before


def test_a_postgresql_that_is_too_old_is_refused(postgresql_place: DatabaseLocation) -> None:
    assert "PostgreSQL 15 or newer is required; the server is 14" in _refusal(
        postgresql_place, "PostgreSQL 14.19"
    )


def test_a_server_whose_version_nobody_knows_is_refused(postgresql_place: DatabaseLocation) -> None:
    assert "PostgreSQL 15 or newer is required" in _refusal(postgresql_place, "CockroachDB CCL v23.1.0")


def _refusal(place: DatabaseLocation, version: str) -> str:
    """What a server is told that says it is another version; it really says so, in this database."""
    with psycopg.connect(place.address) as server:
        source = f"'SELECT ''{version} on x86_64-linux''::text'"
        claim = (
            f"CREATE OR REPLACE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql STABLE AS {source}"
        )
        server.execute(claim.encode())
    with pytest.raises(UnusableDatabase) as raised:
        place.open()
    return str(raised.value)


def test_an_sqlite_that_is_too_old_is_refused(
    sqlite_place: DatabaseLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr("sqlite3.dbapi2.sqlite_version_info", (3, 33, 0))
        with pytest.raises(UnusableDatabase, match=r"SQLite 3\.34 or newer"):
            sqlite_place.open()
    with closing(untouched(sqlite_place)) as database:
        assert database.read_now(content) == set()


# --- The tables that are made, and those that the program knows ---


_WITHOUT_EXPRESSIONS = pytest.mark.filterwarnings(
    "ignore:Skipped unsupported reflection of expression-based",
    "ignore:autogenerate skipping metadata-specified expression-based",
)
"""SQLAlchemy cannot see such indexes of SQLite; their text is compared below."""


def _is_known(_object: object, name: str | None, kind: str, *_: object) -> bool:
    """Whether it can be described for both databases: searching for parts of names and samples cannot."""
    is_for_search = str(name).startswith("device_name") or name == "ix_device_name_trigrams"
    is_of_samples = str(name).startswith("sample")
    return not (kind in {"table", "index"} and (is_for_search or is_of_samples))


def _differences(connection: Connection) -> list[object]:
    options = {"include_object": _is_known, "compare_type": True, "compare_server_default": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


@_WITHOUT_EXPRESSIONS
def test_nothing_is_left_to_migrate(place: DatabaseLocation) -> None:
    with closing(place.open()) as database:
        assert database.read_now(_differences) == []
        database.write_now(run, "DROP INDEX ix_audit_actor_time_id")
        assert len(database.read_now(_differences)) == 1


_SQLITE_FACTS = (
    """SELECT name, sql LIKE '%AUTOINCREMENT%', sql LIKE '%WITHOUT ROWID%' FROM sqlite_master
    WHERE type = 'table' AND name NOT LIKE 'device_name%'""",
    "SELECT name, sql FROM sqlite_master WHERE type = 'index'",
)
_SERVER_FACTS = (
    """SELECT relname, reloptions::text, relkind::text FROM pg_class
    WHERE relnamespace = 'public'::regnamespace""",
    "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    """SELECT table_name || '.' || column_name, collation_name, column_default FROM information_schema.columns
    WHERE table_schema = 'public'""",
)


def _facts(connection: Connection) -> dict[str, object]:
    """All that can be known of the tables in a database."""
    tables = inspect(connection)
    found: dict[str, object] = {}
    for name in metadata.tables:
        found |= {
            f"{name}.{each['name']}": {**each, "type": str(each["type"])} for each in tables.get_columns(name)
        }
        found[f"key of {name}"] = tables.get_pk_constraint(name)
        found[f"foreign keys of {name}"] = sorted(map(repr, tables.get_foreign_keys(name)))
        found[f"unique in {name}"] = sorted(map(repr, tables.get_unique_constraints(name)))
        indexes = [each for each in tables.get_indexes(name) if each["name"] != "ix_device_name_trigrams"]
        found[f"indexes of {name}"] = sorted(map(_told, indexes))
    queries = _SQLITE_FACTS if connection.dialect.name == "sqlite" else _SERVER_FACTS
    for query in queries:
        found |= {f"also {row[0]}": tuple(row) for row in connection.exec_driver_sql(query)}
    return found


def _told(index: ReflectedIndex) -> str:
    """An index in words: a condition by itself would tell where it is in memory."""
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return repr({**index, "dialect_options": options})


_NOT_OURS = (
    "also sample",
    "also pk_sample",
    "also ix_device_name_trigrams",
    "also alembic_version",
    "also sqlite_autoindex_alembic_version",
)


@_WITHOUT_EXPRESSIONS
def test_the_tables_made_are_those_that_the_program_knows(place: DatabaseLocation) -> None:
    with closing(place.open()) as database:
        made = database.read_now(_facts)
    if place.address == "sqlite":
        (place.folder / "meshfleet.sqlite").unlink()
    else:
        with psycopg.connect(place.address, autocommit=True) as server:
            server.execute("DROP SCHEMA public CASCADE")
            server.execute("CREATE SCHEMA public")
    with closing(untouched(place)) as database:
        database.write_now(metadata.create_all)
        known = database.read_now(_facts)
    assert {name: fact for name, fact in made.items() if not name.startswith(_NOT_OURS)} == known
