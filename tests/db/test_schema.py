"""Schema migration: a start creates the current tables or refuses the database."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, inspect, select, text
from sqlalchemy.exc import DBAPIError

from meshfleet.db import postgresql as on_server
from meshfleet.db import sqlite as in_file
from meshfleet.db.database import Database
from meshfleet.db.schema import is_schema_current, run_migrations
from meshfleet.db.tables import label, metadata
from meshfleet.errors import FleetError
from meshfleet.errors.startup import UnusableDatabase
from meshfleet.mqtt.broker import load_stored_state
from tests.db.parallel_processes import ParallelProcesses, start_processes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine.interfaces import ReflectedIndex

    from tests.db.conftest import DatabaseLocation

pytestmark = pytest.mark.both_databases


def connect_unmigrated(location: DatabaseLocation) -> Database:
    """Connect to a database without migrating it."""
    if location.address == "sqlite":
        return Database(in_file.create_sqlite_engines(location.folder / "meshfleet.sqlite"))
    return Database(on_server.create_postgresql_engines(location.address))


def run_statements(connection: Connection, *statements: str) -> None:
    for statement in statements:
        connection.exec_driver_sql(statement)


def list_objects(connection: Connection) -> set[str]:
    """Return the names of all objects in a database."""
    if connection.dialect.name == "sqlite":
        return set(connection.execute(text("SELECT name FROM sqlite_master")).scalars())
    extensions = connection.execute(text("SELECT extname FROM pg_extension WHERE extname != 'plpgsql'"))
    relations = text("SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace")
    return {*connection.execute(relations).scalars(), *extensions.scalars()}


# --- Migration ---


def test_an_empty_database_is_migrated(database_location: DatabaseLocation) -> None:
    with closing(connect_unmigrated(database_location)) as database:
        assert not database.read_now(is_schema_current)
    with closing(database_location.open()) as database:
        assert database.read_now(is_schema_current)


def test_a_second_migration_changes_nothing(database_location: DatabaseLocation) -> None:
    with closing(database_location.open()) as database:
        database.write_now(run_statements, "INSERT INTO label (text, created_at) VALUES ('kept', 1)")
        before = database.read_now(list_objects)
    with closing(database_location.open()) as database:
        assert database.read_now(list_objects) == before
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


@pytest.mark.parametrize("_repetition", range(2))
def test_processes_may_migrate_one_database_at_the_same_time(
    processes: ParallelProcesses, database_location: DatabaseLocation, _repetition: int
) -> None:
    assert processes.call_all(*database_location) == ["True", "True"]


def test_a_failed_migration_leaves_the_database_unchanged(database_location: DatabaseLocation) -> None:
    with closing(connect_unmigrated(database_location)) as database:
        database.write_now(run_statements, "CREATE TABLE label (mine INTEGER)")
        before = database.read_now(list_objects)
        with pytest.raises((FleetError, DBAPIError)):
            database_location.open()
        assert database.read_now(list_objects) == before
        database.write_now(run_statements, "DROP TABLE label")
    with closing(database_location.open()) as database:
        assert database.read_now(is_schema_current)


def _create_old_schema(connection: Connection) -> None:
    """Create the schema before messages had positions, with messages of two sessions."""
    run_migrations(connection, "0008")
    for number in (1, 2):
        row = {"number": number, "client_id": f"client {number}"}
        connection.execute(
            text("INSERT INTO broker_session VALUES (:number, 'user ada', :client_id, NULL)"), row
        )
    for index, (number, packet_id) in enumerate(_MESSAGES):
        message = {"session": number, "id": packet_id, "index": index, "payload": b"%d" % index}
        connection.execute(
            text("INSERT INTO broker_message VALUES (:session, :id, :index, 'a', :payload, false, NULL)"),
            message,
        )


_MESSAGES = ((1, 65_534), (2, 7), (1, 65_535), (1, 1), (2, 9), (1, 3), (1, 65_533), (1, 2))
"""Session and packet id in order; the ids of one session start again at 1, twice."""


def test_queued_messages_keep_their_order_and_packet_ids(database_location: DatabaseLocation) -> None:
    with closing(connect_unmigrated(database_location)) as database:
        database.write_now(_create_old_schema)
    with closing(database_location.open()) as database:
        messages = database.read_now(load_stored_state).messages
    ordered = sorted(
        (int(message.payload), number, position % 65_535 + 1) for number, position, message in messages
    )
    assert [(number, packet_id) for _, number, packet_id in ordered] == list(_MESSAGES)
    assert [message.payload for number, _, message in messages if number == 1] == [
        b"0",
        b"2",
        b"3",
        b"5",
        b"6",
        b"7",
    ]


# --- Refused databases ---


def test_tables_of_another_program_are_reported_in_plain_words(database_location: DatabaseLocation) -> None:
    with closing(connect_unmigrated(database_location)) as database:
        database.write_now(run_statements, "CREATE TABLE label (mine INTEGER)")
    with pytest.raises(UnusableDatabase, match="label") as raised:
        database_location.open()
    assert "CREATE TABLE" not in str(raised.value)


def test_an_older_program_refuses_a_newer_schema(database_location: DatabaseLocation) -> None:
    with closing(database_location.open()) as database:
        database.write_now(run_statements, "UPDATE alembic_version SET version_num = '9999'")
        before = database.read_now(list_objects)
        with pytest.raises(UnusableDatabase, match=r"newer Meshfleet \(its schema is 9999\)"):
            database_location.open()
        assert not database.read_now(is_schema_current)
        assert database.read_now(list_objects) == before


def test_a_postgresql_that_is_too_old_is_refused(postgresql_location: DatabaseLocation) -> None:
    assert "PostgreSQL 15 or newer is required; the server is 14" in _refuse_version(
        postgresql_location, "PostgreSQL 14.19"
    )


def test_a_server_with_an_unknown_version_is_refused(postgresql_location: DatabaseLocation) -> None:
    assert "PostgreSQL 15 or newer is required" in _refuse_version(
        postgresql_location, "CockroachDB CCL v23.1.0"
    )


def _refuse_version(location: DatabaseLocation, version: str) -> str:
    """Let a server report another version. Return the error with which it is refused."""
    with psycopg.connect(location.address) as server:
        source = f"'SELECT ''{version} on x86_64-linux''::text'"
        replace_version = (
            f"CREATE OR REPLACE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql STABLE AS {source}"
        )
        server.execute(replace_version.encode())
    with pytest.raises(UnusableDatabase) as raised:
        location.open()
    return str(raised.value)


def test_an_sqlite_that_is_too_old_is_refused(
    sqlite_location: DatabaseLocation, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr("sqlite3.dbapi2.sqlite_version_info", (3, 33, 0))
        with pytest.raises(UnusableDatabase, match=r"SQLite 3\.34 or newer"):
            sqlite_location.open()
    with closing(connect_unmigrated(sqlite_location)) as database:
        assert database.read_now(list_objects) == set()


# --- Migrated tables compared with the metadata ---


_WITHOUT_EXPRESSIONS = pytest.mark.filterwarnings(
    "ignore:Skipped unsupported reflection of expression-based",
    "ignore:autogenerate skipping metadata-specified expression-based",
)
"""SQLAlchemy cannot reflect such indexes of SQLite; their SQL is compared below."""


def _is_comparable(_object: object, name: str | None, kind: str, *_: object) -> bool:
    """Return whether the metadata describes an object; trigram indexes and sample tables are excluded."""
    is_for_search = str(name).startswith("device_name") or name == "ix_device_name_trigrams"
    is_of_samples = str(name).startswith("sample")
    return not (kind in {"table", "index"} and (is_for_search or is_of_samples))


def _differences(connection: Connection) -> list[object]:
    options = {"include_object": _is_comparable, "compare_type": True, "compare_server_default": True}
    return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))


@_WITHOUT_EXPRESSIONS
def test_migrations_and_metadata_do_not_differ(database_location: DatabaseLocation) -> None:
    with closing(database_location.open()) as database:
        assert database.read_now(_differences) == []
        database.write_now(run_statements, "DROP INDEX ix_audit_actor_time_id")
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


def _describe_tables(connection: Connection) -> dict[str, object]:
    """Return everything that can be reflected of the tables in a database."""
    inspector = inspect(connection)
    facts: dict[str, object] = {}
    for name in metadata.tables:
        facts |= {
            f"{name}.{column['name']}": {**column, "type": str(column["type"])}
            for column in inspector.get_columns(name)
        }
        facts[f"key of {name}"] = inspector.get_pk_constraint(name)
        facts[f"foreign keys of {name}"] = sorted(map(repr, inspector.get_foreign_keys(name)))
        facts[f"unique in {name}"] = sorted(map(repr, inspector.get_unique_constraints(name)))
        indexes = [
            index for index in inspector.get_indexes(name) if index["name"] != "ix_device_name_trigrams"
        ]
        facts[f"indexes of {name}"] = sorted(map(_format_index, indexes))
    queries = _SQLITE_FACTS if connection.dialect.name == "sqlite" else _SERVER_FACTS
    for query in queries:
        facts |= {f"also {row[0]}": tuple(row) for row in connection.exec_driver_sql(query)}
    return facts


def _format_index(index: ReflectedIndex) -> str:
    """Format an index; the repr of a condition would contain its memory address."""
    options = {name: str(value) for name, value in index.get("dialect_options", {}).items()}
    return repr({**index, "dialect_options": options})


_NOT_IN_METADATA = (
    "also sample",
    "also pk_sample",
    "also ix_device_name_trigrams",
    "also alembic_version",
    "also sqlite_autoindex_alembic_version",
)
_STILL_IN_METADATA = tuple(
    f"also {prefix}{table}" for table in ("sample_log", "sample_reader") for prefix in ("", "pk_")
)


@_WITHOUT_EXPRESSIONS
def test_migrated_tables_equal_those_of_the_metadata(database_location: DatabaseLocation) -> None:
    with closing(database_location.open()) as database:
        migrated = database.read_now(_describe_tables)
    if database_location.address == "sqlite":
        (database_location.folder / "meshfleet.sqlite").unlink()
    else:
        with psycopg.connect(database_location.address, autocommit=True) as server:
            server.execute("DROP SCHEMA public CASCADE")
            server.execute("CREATE SCHEMA public")
    with closing(connect_unmigrated(database_location)) as database:
        database.write_now(metadata.create_all)
        expected = database.read_now(_describe_tables)
    assert {
        name: fact
        for name, fact in migrated.items()
        if not name.startswith(_NOT_IN_METADATA) or name.startswith(_STILL_IN_METADATA)
    } == expected
