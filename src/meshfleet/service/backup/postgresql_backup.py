"""Backup of a PostgreSQL database by COPY, in one snapshot. It needs no pg_dump, and no equal server version.

The rows of each table are in members `tables/NAME/000000.copy`, `000001.copy` and so on, in the text format
of COPY. There is one table of samples per day, with the day in its name. The last member has the number of
rows of each table.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy import inspect
from sqlalchemy.exc import DBAPIError

from meshfleet.db.bulk import open_copy
from meshfleet.db.samples.postgresql_store import create_partition_by_name, list_partition_names
from meshfleet.db.schema import load_revision, run_migrations
from meshfleet.db.tables import metadata
from meshfleet.errors.backup import BackupDamaged, BackupFailed, RestoreRefused
from meshfleet.service.backup.archive import DESCRIPTION_PATH, TableDescription
from meshfleet.service.secret_store import INSTANCE_SECRET

if TYPE_CHECKING:
    from collections.abc import Generator

    from sqlalchemy import Connection

    from meshfleet.service.backup.archive import ArchiveReader, ArchiveWriter, BackupDescription

_CHUNK_BYTES: Final = 8 << 20
"""A member has at least this size, except for the last member of a table. It is held in memory."""

_STRAY_TABLE: Final = "sample_stray"
_OWN_TABLES: Final = frozenset({*metadata.tables, _STRAY_TABLE})
"""Tables of Meshfleet apart from partitions. Others in the same database are not part of a backup."""

_ROW_COUNTS_PATH: Final = "row-counts.json"

_UNAVAILABLE_SQLSTATES: Final = {"42P01", "55P03"}
"""SQLSTATEs of a table that does not exist, and of a lock that was not acquired in time."""

_LOCK_TIMEOUT: Final = "1s"
"""Time to wait for locked tables before a backup begins again: only then can it be stopped."""

_PARTITION_PREFIXES: Final = ("sample_reported_", "sample_rolled_")


class TablesUnavailable(Exception):
    """Raised if a table was locked or dropped when a backup began, for example because it expired."""


class DatabaseContents(NamedTuple):
    """Tables and sequences of a database, as seen in one snapshot."""

    schema: str
    instance: bytes | None
    """Secret of the installation; None if it has none yet."""
    tables: tuple[TableDescription, ...]
    sequences: dict[str, int]


def set_backup_timeouts(connection: Connection) -> None:
    """Switch off the timeouts that would end a long copy; keep one for the locks of tables."""
    disable_timeouts(connection)
    connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{_LOCK_TIMEOUT}'")


def disable_timeouts(connection: Connection) -> None:
    """Switch off the timeouts of this transaction: copying a large table takes longer."""
    connection.exec_driver_sql(
        "SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0;"
        " SET LOCAL idle_in_transaction_session_timeout = 0"
    )


def describe_contents(connection: Connection, *, with_samples: bool) -> DatabaseContents:
    """Return what a backup will contain. The order of the tables lets their foreign keys be restored.

    The tables are locked against changes of their structure until the transaction ends. Raise
    `TablesUnavailable` if one was dropped or locked before that, and `BackupFailed` if the database has no
    tables of Meshfleet or is a standby, which may lack what was acknowledged.
    """
    if (schema := load_revision(connection)) is None:
        raise BackupFailed("the database has no tables of Meshfleet; check the address")
    if connection.exec_driver_sql("SELECT pg_is_in_recovery()").scalar():
        raise BackupFailed("the server is a standby; use the address of the primary")
    tables = [name for name, _ in inspect(connection).get_sorted_table_and_fkc_names() if name in _OWN_TABLES]
    names = [name for name in map(str, tables) if with_samples or name != _STRAY_TABLE]
    if with_samples:
        names += sorted(list_partition_names(connection))
    _lock_tables(connection, names)
    query = f"SELECT value FROM secret WHERE name = '{INSTANCE_SECRET}'"  # noqa: S608 # constant texts
    instance = connection.exec_driver_sql(query).scalar() if "secret" in names else None
    return DatabaseContents(
        schema,
        instance,
        tuple(TableDescription(name, _list_columns(connection, name)) for name in names),
        {name: value for name, value in _select_sequences(connection).items() if value is not None},
    )


def _lock_tables(connection: Connection, names: list[str]) -> None:
    try:
        connection.exec_driver_sql(f"LOCK TABLE {', '.join(map(_quote_name, names))} IN ACCESS SHARE MODE")
    except DBAPIError as exc:
        if getattr(exc.orig, "sqlstate", None) in _UNAVAILABLE_SQLSTATES:
            raise TablesUnavailable from exc
        raise


def write_tables(
    connection: Connection, tables: tuple[TableDescription, ...], archive: ArchiveWriter
) -> None:
    """Write the rows of tables to a backup file, and then the number of rows of each table."""
    row_counts = {table.name: _write_table(connection, table, archive) for table in tables}
    archive.add_bytes(_ROW_COUNTS_PATH, msgspec.json.encode(row_counts))


def _write_table(connection: Connection, table: TableDescription, archive: ArchiveWriter) -> int:
    """Write the rows of a table to a backup file. Return the number of rows."""
    row_count = 0
    # If writing fails, closing the generator cancels the COPY: otherwise the server would wait forever.
    with closing(_read_chunks(connection, table)) as chunks:
        for number, chunk in enumerate(chunks):
            archive.add_bytes(_member_path(table.name, number), chunk)
            row_count += chunk.count(b"\n")  # each row ends with one, and values have them escaped
    return row_count


def _read_chunks(connection: Connection, table: TableDescription) -> Generator[bytes]:
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


def check_members(archive: ArchiveReader) -> None:
    """Raise `BackupDamaged` if a backup lacks members of its tables, or has others."""
    names = {table.name for table in archive.description.tables}
    expected_numbers = dict.fromkeys(names, 0)
    for member in archive.manifest.members:
        name = member.path.removeprefix("tables/").partition("/")[0]
        if member.path in {DESCRIPTION_PATH, _ROW_COUNTS_PATH}:
            continue
        if name not in names or member.path != _member_path(name, expected_numbers[name]):
            raise BackupDamaged(member.path, "a backup of PostgreSQL has no such file, or not at this place")
        expected_numbers[name] += 1


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
    row_counts = archive.read_json(_ROW_COUNTS_PATH, dict[str, int])
    # Migrations insert first rows, which the backup contains too.
    connection.exec_driver_sql(f"TRUNCATE {', '.join(_quote_name(table.name) for table in contents.tables)}")
    for table in description.tables:
        _insert_rows(connection, table, archive)
        if row_counts is not None:
            _check_row_count(connection, table.name, row_counts.get(table.name, 0))
    known_sequences = _select_sequences(connection)
    for name, value in description.sequences.items():
        if name not in known_sequences:
            raise BackupDamaged(DESCRIPTION_PATH, f"its schema has no sequence {name}")
        connection.exec_driver_sql("SELECT setval(%s::regclass, %s)", (name, value))


def _create_partitions(connection: Connection, description: BackupDescription) -> None:
    for table in description.tables:
        if is_partition(table.name):
            try:
                create_partition_by_name(connection, table.name)
            except ValueError as exc:
                raise BackupDamaged(DESCRIPTION_PATH, str(exc)) from exc


def is_partition(name: str) -> bool:
    """Return whether the table with this name contains the samples of one day."""
    return name.startswith(_PARTITION_PREFIXES)


def _insert_rows(connection: Connection, table: TableDescription, archive: ArchiveReader) -> None:
    folder = _table_folder(table.name)
    members = [member for member in archive.manifest.members if member.path.startswith(folder)]
    with open_copy(connection, f"COPY {_quote_table(table)} FROM STDIN") as copy:
        for member in members:
            for piece in archive.read_member(member):
                copy.write(piece)


def _check_row_count(connection: Connection, table: str, expected: int) -> None:
    found = connection.exec_driver_sql(f"SELECT count(*) FROM {_quote_name(table)}").scalar_one()  # noqa: S608 # a checked name
    if found != expected:
        raise BackupDamaged(_table_folder(table), f"it has {found:,} rows instead of {expected:,}")


def _quote_table(table: TableDescription) -> str:
    return f"{_quote_name(table.name)} ({', '.join(map(_quote_name, table.columns))})"


def _quote_name(name: str) -> str:
    return f'"{name}"'


def _table_folder(name: str) -> str:
    return f"tables/{name}/"


def _member_path(name: str, number: int) -> str:
    return f"{_table_folder(name)}{number:06d}.copy"


def _list_columns(connection: Connection, table: str) -> tuple[str, ...]:
    rows = connection.exec_driver_sql(
        "SELECT attname FROM pg_attribute WHERE attrelid = to_regclass(%s)"
        " AND attnum > 0 AND NOT attisdropped AND attgenerated = '' ORDER BY attname",
        (f'"{table}"',),
    )
    return tuple(name for (name,) in rows)


def _select_sequences(connection: Connection) -> dict[str, int | None]:
    """Return the sequences of the tables of Meshfleet, and the last value of each; None if never used."""
    rows = connection.exec_driver_sql(
        "SELECT s.sequencename, s.last_value FROM pg_sequences s"
        " JOIN pg_depend d ON d.objid = format('%%I', s.sequencename)::regclass AND d.deptype IN ('a', 'i')"
        " JOIN pg_class t ON t.oid = d.refobjid"
        " WHERE s.schemaname = current_schema() AND t.relname = ANY(%s)",
        (list(_OWN_TABLES),),
    )
    return {row.sequencename: row.last_value for row in rows}
