"""Bulk inserts, updates and queries in the fastest form of each database driver.

SQLAlchemy's own bulk insert takes several times as long.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import Boolean, Column, Connection, CursorResult, Double, Integer, LargeBinary, Table, Text
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Row = Sequence[Any]

_encode = msgspec.json.Encoder().encode

_POSTGRESQL_TYPES: Final = (
    # int8 for integers of every size: the driver would truncate a value that is too large for a smaller
    # type. With int8 the server rejects the value.
    (Integer, "int8"),
    (Boolean, "bool"),
    (Double, "float8"),
    (LargeBinary, "bytea"),
    (Text, "text"),
)
"""PostgreSQL type name for each SQLAlchemy column type in use."""


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[Row], *, on_conflict: str = "NOTHING"
) -> int:
    """Insert rows, each with a value for every column in table order. Return the number of inserted rows.

    `on_conflict` is the SQL action for a row whose primary key exists, such as `UPDATE SET ...`. No two of
    `rows` may have the same primary key.
    """
    if not rows:
        return 0
    if connection.dialect.name == "sqlite":
        placeholders = f"VALUES ({', '.join('?' * len(table.columns))})"
        return connection.exec_driver_sql(
            _build_insert(table, placeholders, on_conflict), list(rows)
        ).rowcount
    _copy_to_temporary_table(connection, table, rows)
    # Foreign key checks are queries too: they must not be planned again for each row.
    connection.exec_driver_sql("SET LOCAL plan_cache_mode = auto")
    inserted_count = connection.exec_driver_sql(
        _build_insert(table, f"TABLE new_{table.name}", on_conflict)
    ).rowcount
    connection.exec_driver_sql(f"TRUNCATE new_{table.name}")
    return inserted_count


def upsert_rows(connection: Connection, table: Table, rows: Sequence[Row], *, on_conflict: str) -> None:
    """Insert or update rows of numbers and strings, as `insert_rows` does, but faster if most keys exist."""
    if not rows:
        return
    if connection.dialect.name != "sqlite":
        insert_rows(connection, table, rows, on_conflict=on_conflict)
        return
    # One statement for all rows, as in `update_rows`.
    expressions = ", ".join(_json_fields(len(table.columns)))
    source = f"SELECT {expressions} FROM json_each(?) WHERE true"  # noqa: S608 # constant names
    connection.exec_driver_sql(_build_insert(table, source, on_conflict), (_rows_to_json(rows),))


def insert_columns(
    connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[Row], **constants: Any
) -> None:
    """Insert rows with values for `columns`, and with equal `constants` (value by column) in every row.

    All other columns are NULL. Values must be numbers or strings. The caller checks that numbers fit their
    columns, as SQLite does not.
    """
    target_columns = [table.columns[name] for name in (*columns, *constants)]
    if not rows:
        return
    if connection.dialect.name != "sqlite":
        typed_columns = [
            (column.name, column.type.compile(connection.dialect).lower()) for column in target_columns
        ]
        _copy_rows(connection, table.name, typed_columns, ((*row, *constants.values()) for row in rows))
        return
    # One statement for all rows, as in `update_rows`.
    expressions = _json_fields(len(columns)) + ["?"] * len(constants)
    source = f"SELECT {', '.join(expressions)} FROM json_each(?)"  # noqa: S608 # constant names
    names = ", ".join(column.name for column in target_columns)
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({names}) {source}", (*constants.values(), _rows_to_json(rows))
    )


def insert_row(connection: Connection, table: Table, *values: Any) -> int:
    """Insert one row with `values` for all columns after the id column. Return the generated id."""
    id_column, *columns = (column.name for column in table.columns)
    placeholders = ", ".join("?" * len(values))
    statement = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({placeholders})"  # noqa: S608 # constant names
    if connection.dialect.name == "sqlite":
        return connection.exec_driver_sql(statement, values).lastrowid
    statement = f"{statement.replace('?', '%s')} RETURNING {id_column}"
    return int(connection.exec_driver_sql(statement, values).scalar_one())


def reserve_ids(connection: Connection, table: Table, count: int) -> range | list[int]:
    """Reserve ids for `count` rows to insert into a table; no other transaction gets these ids.

    The id is the first column of the primary key.
    """
    if connection.dialect.name != "sqlite":
        statement = (
            f"SELECT nextval(pg_get_serial_sequence('{table.name}', '{table.primary_key.columns[0].name}'))"  # noqa: S608 # constant names
            " FROM generate_series(1, %s)"
        )
        return [row[0] for row in connection.exec_driver_sql(statement, (count,))]
    # There is only one writer, in a transaction: inserting these rows advances the counter past them.
    statement = "SELECT seq FROM sqlite_sequence WHERE name = ?"
    last_id = connection.exec_driver_sql(statement, (table.name,)).scalar() or 0
    return range(last_id + 1, last_id + 1 + count)


def execute_many(connection: Connection, statement: str, rows: Sequence[Row]) -> None:
    """Run an SQL statement with `?` placeholders once for each row of values."""
    if rows:
        connection.exec_driver_sql(_adapt_placeholders(connection, statement), list(rows))


class BulkUpdate(NamedTuple):
    """Update of many rows by key: the first of `columns` is the key column, the other columns are set.

    `condition` is an SQL condition: rows that do not satisfy the condition are not updated. In the condition,
    `{name}` stands for the new value of the column `name`.
    """

    columns: tuple[str, ...]
    condition: str
    null_columns: tuple[str, ...] = ()
    """Columns to set to NULL in every row.

    A NULL among the values of a row would cost SQLite's driver a microsecond.
    """


def update_rows(connection: Connection, table: Table, change: BulkUpdate, rows: Sequence[Row]) -> None:
    """Update table rows by key. Each of `rows` has the values for `change.columns`, in their order."""
    key, *value_columns = change.columns
    new_values = {column: f"new.{column}" for column in change.columns}
    if connection.dialect.name == "sqlite":
        # One statement for all rows: between two statements the driver would release the GIL to the event
        # loop and wait for it.
        fields = zip(_json_fields(len(change.columns)), change.columns, strict=True)
        expressions = ", ".join(f"{value} AS {column}" for value, column in fields)
        source = f" FROM (SELECT {expressions} FROM json_each(?)) AS new"  # noqa: S608 # constant names
        values: tuple[object, ...] = (_rows_to_json(rows),)
    else:
        arrays = ", ".join(f"%s::{_postgresql_type(table.columns[column])}[]" for column in change.columns)
        source = f" FROM unnest({arrays}) AS new ({', '.join(change.columns)})"
        values = tuple(list(column) for column in zip(*rows, strict=True))
    assignments = [f"{column} = {new_values[column]}" for column in value_columns] + [
        f"{column} = NULL" for column in change.null_columns
    ]
    connection.exec_driver_sql(
        f"UPDATE {table.name} SET {', '.join(assignments)}{source}"  # noqa: S608 # constant names
        f" WHERE {table.name}.{key} = {new_values[key]} AND ({change.condition.format(**new_values)})",
        values,
    )


def query_in(
    connection: Connection, query: str, keys: Sequence[int] | Sequence[str], /, **values: Any
) -> Sequence[Row]:
    """Run a query in which the condition `column IN numbers` matches any of `keys`. Return the rows.

    `values` are the values of `:name` placeholders.
    """
    return execute_in(connection, query, keys, **values).fetchall()


def query_rows(connection: Connection, query: str, values: Row, *, lock: str = "") -> Sequence[Row]:
    """Run a query with `?` placeholders. Return the rows of the result.

    `lock` is an SQL suffix such as FOR UPDATE, added on PostgreSQL only.
    """
    statement = query if connection.dialect.name == "sqlite" else query + lock
    return connection.exec_driver_sql(_adapt_placeholders(connection, statement), tuple(values)).fetchall()


def execute_one(connection: Connection, statement: str, values: Row) -> int:
    """Run an SQL statement with `?` placeholders. Return the number of changed rows."""
    return connection.exec_driver_sql(_adapt_placeholders(connection, statement), tuple(values)).rowcount


def execute_in(
    connection: Connection, statement: str, keys: Sequence[int] | Sequence[str], /, **values: Any
) -> CursorResult[Any]:
    """Run an SQL statement in which the condition `column IN numbers` matches any of `keys`.

    There may be any number of keys, integers or strings. `values` are the values of `:name` placeholders.
    """
    if connection.dialect.name == "sqlite":
        # One bound value for the whole list: the statement stays cached, and SQLite limits bound values.
        condition, encoded = "IN (SELECT value FROM json_each(:numbers))", _encode(list(keys)).decode()
        text = statement.replace("IN numbers", condition)
        return connection.exec_driver_sql(text, {"numbers": encoded, **values})
    text = statement.replace("IN numbers", "= ANY(%(numbers)s)")
    for name in values:
        text = text.replace(f":{name}", f"%({name})s")
    return connection.exec_driver_sql(text, {"numbers": list(keys), **values})


def _build_insert(table: Table, source: str, on_conflict: str) -> str:
    """Build an INSERT statement for all columns. `source` is SQL for the rows, such as VALUES or SELECT."""
    key = ", ".join(column.name for column in table.primary_key)
    columns = ", ".join(column.name for column in table.columns)
    return f"INSERT INTO {table.name} ({columns}) {source} ON CONFLICT ({key}) DO {on_conflict}"


def _adapt_placeholders(connection: Connection, statement: str) -> str:
    """Replace the placeholders `?` of SQLite by `%s`, if the database is PostgreSQL."""
    return statement if connection.dialect.name == "sqlite" else statement.replace("?", "%s")


def _json_fields(count: int) -> list[str]:
    """Return SQLite expressions for the first `count` values of a JSON array that `json_each` yields."""
    return [f"json_extract(value, '$[{index}]')" for index in range(count)]


def _copy_to_temporary_table(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Copy rows to the temporary table `new_NAME`: COPY into the table itself fails on an existing key."""
    column_definitions = ", ".join(f"{column.name} {_postgresql_type(column)}" for column in table.columns)
    connection.exec_driver_sql(
        f"CREATE TEMPORARY TABLE IF NOT EXISTS new_{table.name} ({column_definitions})"
    )
    _copy_rows(
        connection,
        f"new_{table.name}",
        [(column.name, _postgresql_type(column)) for column in table.columns],
        rows,
    )


def _copy_rows(
    connection: Connection, name: str, columns: Sequence[tuple[str, str]], rows: Iterable[Row]
) -> None:
    """Copy rows to a PostgreSQL table in binary COPY format. `columns` are pairs of column name and type."""
    names = ", ".join(column for column, _ in columns)
    with open_copy(connection, f"COPY {name} ({names}) FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types([type_name for _, type_name in columns])
        for row in rows:
            copy.write_row(row)


@contextmanager
def open_copy(connection: Connection, statement: str) -> Iterator[Any]:
    """Run a COPY statement of PostgreSQL around the `with` block. Yield the `Copy` object of psycopg."""
    driver: Any = connection.connection.driver_connection
    dbapi: Any = connection.dialect.dbapi  # not imported: with SQLite psycopg is never loaded
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            yield copy
    except dbapi.Error as exc:
        # Raise what SQLAlchemy would raise: it does not see errors of a COPY.
        raise DBAPIError.instance(statement, None, exc, dbapi.Error, dialect=connection.dialect) from exc


def _rows_to_json(rows: Sequence[Row]) -> str:
    return _encode(rows).decode()


def _postgresql_type(column: Column[Any]) -> str:
    return next(name for column_type, name in _POSTGRESQL_TYPES if isinstance(column.type, column_type))
