"""Backup of a PostgreSQL database by COPY, in one snapshot. pg_dump is not needed, nor the same version.

The rows of each table are in members `tables/NAME/000000.copy`, `000001.copy` and so on, in the text format
of COPY. Samples are in one table per day, whose names tell the days.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from sqlalchemy import inspect

from meshfleet.db.bulk import open_copy
from meshfleet.db.samples.postgresql_store import create_partition_by_name, list_partition_names
from meshfleet.db.schema import load_revision, run_migrations
from meshfleet.errors.backup import BackupDamaged, BackupFailed, RestoreRefused
from meshfleet.service.backup.archive import DESCRIPTION_PATH, TableDescription

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

    from meshfleet.service.backup.archive import ArchiveReader, ArchiveWriter, BackupDescription

_CHUNK_BYTES: Final = 8 << 20
"""A member has at least this size, except for the last member of a table. It is held in memory."""

_REVISION_TABLE: Final = "alembic_version"
_PARTITIONED: Final = {"sample", "sample_reported", "sample_rolled"}
_PARTITION_PREFIXES: Final = ("sample_reported_", "sample_rolled_")


class DatabaseContents(NamedTuple):
    """Tables and sequences of a database, as seen in one snapshot."""

    schema: str
    tables: tuple[TableDescription, ...]
    sequences: dict[str, int]


def disable_timeouts(connection: Connection) -> None:
    """Switch off the timeouts of this transaction: copying a large table takes longer."""
    connection.exec_driver_sql(
        "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;"
        " SET LOCAL idle_in_transaction_session_timeout = 0"
    )


def describe_contents(connection: Connection, *, with_samples: bool) -> DatabaseContents:
    """Return what a backup contains, with tables in an order in which foreign keys can be restored.

    Raise `BackupFailed` if the database has no tables of Meshfleet.
    """
    if (schema := load_revision(connection)) is None:
        raise BackupFailed("the database has no tables of Meshfleet; check the address")
    partitions = list_partition_names(connection)
    inspector = inspect(connection)
    tables = [name for name, _ in inspector.get_sorted_table_and_fkc_names() if name is not None]
    names = [name for name in tables if name not in {_REVISION_TABLE, *_PARTITIONED, *partitions}]
    if with_samples:
        names += sorted(partitions)
    else:
        names.remove("sample_stray")
    return DatabaseContents(
        schema,
        tuple(TableDescription(name, _list_columns(connection, name)) for name in names),
        _load_sequences(connection),
    )


def write_tables(
    connection: Connection, tables: tuple[TableDescription, ...], archive: ArchiveWriter
) -> None:
    """Write the rows of tables to an archive."""
    for table in tables:
        chunks = _read_chunks(connection, table)
        for number, chunk in enumerate(chunks):
            archive.add_bytes(f"{_table_folder(table.name)}{number:06d}.copy", chunk)


def _read_chunks(connection: Connection, table: TableDescription) -> Iterator[bytes]:
    pieces: list[bytes] = []
    size = 0
    with open_copy(connection, f"COPY {_quote_table(table)} TO STDOUT") as copy:
        for piece in copy:
            pieces.append(bytes(piece))
            size += len(piece)
            if size >= _CHUNK_BYTES:
                yield b"".join(pieces)
                pieces, size = [], 0
    if pieces:
        yield b"".join(pieces)


def restore_tables(connection: Connection, archive: ArchiveReader) -> None:
    """Create the schema of a checked backup in an empty database and insert all rows, in one transaction."""
    description = archive.description
    disable_timeouts(connection)
    if existing := inspect(connection).get_table_names():
        raise RestoreRefused(
            f"the database is not empty: it has {len(existing)} tables, such as {existing[0]}; "
            "create an empty database and name it with --database"
        )
    run_migrations(connection, description.schema)
    _create_partitions(connection, description)
    contents = describe_contents(connection, with_samples=description.has_samples)
    if sorted(contents.tables) != sorted(description.tables):
        raise BackupDamaged(DESCRIPTION_PATH, "its tables are not those of its schema")
    # Migrations insert first rows, which the backup contains too.
    connection.exec_driver_sql(f"TRUNCATE {', '.join(_quote(table.name) for table in contents.tables)}")
    for table in description.tables:
        _insert_rows(connection, table, archive)
    known_sequences = _list_sequences(connection)
    for name, value in description.sequences.items():
        if name not in known_sequences:
            raise BackupDamaged(DESCRIPTION_PATH, f"its schema has no sequence {name}")
        connection.exec_driver_sql("SELECT setval(%s::regclass, %s)", (name, value))


def _create_partitions(connection: Connection, description: BackupDescription) -> None:
    for table in description.tables:
        if table.name.startswith(_PARTITION_PREFIXES):
            try:
                create_partition_by_name(connection, table.name)
            except ValueError as exc:
                raise BackupDamaged(DESCRIPTION_PATH, str(exc)) from exc


def _insert_rows(connection: Connection, table: TableDescription, archive: ArchiveReader) -> None:
    folder = _table_folder(table.name)
    paths = [member.path for member in archive.manifest.members if member.path.startswith(folder)]
    with open_copy(connection, f"COPY {_quote_table(table)} FROM STDIN") as copy:
        for path in paths:
            for piece in archive.read_member(path):
                copy.write(piece)


def _quote_table(table: TableDescription) -> str:
    return f"{_quote(table.name)} ({', '.join(map(_quote, table.columns))})"


def _quote(name: str) -> str:
    return f'"{name}"'


def _table_folder(name: str) -> str:
    return f"tables/{name}/"


def _list_columns(connection: Connection, table: str) -> tuple[str, ...]:
    rows = connection.exec_driver_sql(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s)"
        " AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attname",
        (f'"{table}"',),
    )
    return tuple(name for (name,) in rows)


def _load_sequences(connection: Connection) -> dict[str, int]:
    """Return the last value of each sequence that was used."""
    return {name: value for name, value in _select_sequences(connection) if value is not None}


def _list_sequences(connection: Connection) -> set[str]:
    return {name for name, _ in _select_sequences(connection)}


def _select_sequences(connection: Connection) -> list[tuple[str, int | None]]:
    rows = connection.exec_driver_sql(
        "SELECT sequencename, last_value FROM pg_sequences WHERE schemaname = current_schema()"
    )
    return [(name, value) for name, value in rows]
