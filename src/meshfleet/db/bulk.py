"""Many rows at once, as fast as each driver can: SQLAlchemy's own way takes several times as long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from sqlalchemy import Boolean, Integer, LargeBinary, Text
from sqlalchemy.exc import DBAPIError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Column, Connection, CursorResult, Table

    Row = Sequence[Any]

_encode = msgspec.json.Encoder().encode

_POSTGRESQL_TYPES: Final = (
    (Integer, "int8"),  # of every size: the driver cuts what is too large for less, the server refuses it
    (Boolean, "bool"),
    (LargeBinary, "bytea"),
    (Text, "text"),
)
"""What PostgreSQL calls the types of our columns."""


def insert_rows(
    connection: Connection, table: Table, rows: Sequence[Row], *, on_conflict: str = "NOTHING"
) -> int:
    """Add rows, each with a value for every column in the order of the table, and tell how many were added.

    `otherwise` is what to do about a row that is there already, in SQL: `UPDATE SET ...` perhaps. No two of
    the rows may have the same key.
    """
    if not rows:
        return 0
    if connection.dialect.name == "sqlite":
        return connection.exec_driver_sql(
            _build_insert(table, _placeholders(table), on_conflict), list(rows)
        ).rowcount
    _copy_to_temporary_table(connection, table, rows)
    # The checks of foreign keys are queries too: they must not be planned anew for each row.
    connection.exec_driver_sql("SET LOCAL plan_cache_mode = auto")
    added = connection.exec_driver_sql(_build_insert(table, f"TABLE new_{table.name}", on_conflict)).rowcount
    connection.exec_driver_sql(f"TRUNCATE new_{table.name}")
    return added


def upsert_rows(connection: Connection, table: Table, rows: Sequence[Row], *, on_conflict: str) -> None:
    """`insert` for rows of numbers and texts of which most are there already, again and again."""
    if not rows:
        return
    if connection.dialect.name != "sqlite":
        insert_rows(connection, table, rows, on_conflict=on_conflict)
        return
    # One statement for all rows, as in `update`.
    parts = ", ".join(f"json_extract(value, '$[{place}]')" for place in range(len(table.columns)))
    source = f"SELECT {parts} FROM json_each(?) WHERE true"  # noqa: S608 # our own names
    connection.exec_driver_sql(_build_insert(table, source, on_conflict), (_json(rows),))


def insert_columns(
    connection: Connection, table: Table, columns: Sequence[str], rows: Sequence[Row], **constants: Any
) -> None:
    """Add rows of numbers and texts that are not there: values for these columns, and the same in others.

    Columns of which nothing is said are NULL. Numbers must fit their columns: nobody would refuse them.
    """
    named = [table.columns[name] for name in (*columns, *constants)]
    if not rows:
        return
    if connection.dialect.name != "sqlite":
        exact = [(column.name, column.type.compile(connection.dialect).lower()) for column in named]
        _copy(connection, table.name, exact, ((*row, *constants.values()) for row in rows))
        return
    # One statement for all rows, as in `update`.
    parts = [f"json_extract(value, '$[{place}]')" for place in range(len(columns))] + ["?"] * len(constants)
    source = f"SELECT {', '.join(parts)} FROM json_each(?)"  # noqa: S608 # our own names
    names = ", ".join(column.name for column in named)
    connection.exec_driver_sql(
        f"INSERT INTO {table.name} ({names}) {source}", (*constants.values(), _json(rows))
    )


def insert_row(connection: Connection, table: Table, *values: Any) -> int:
    """Add one row, with a value for each column but the first, which numbers it; gives the number."""
    number, *columns = (column.name for column in table.columns)
    places = ", ".join("?" * len(values))
    statement = f"INSERT INTO {table.name} ({', '.join(columns)}) VALUES ({places})"  # noqa: S608 # our own names
    if connection.dialect.name == "sqlite":
        return connection.exec_driver_sql(statement, values).lastrowid
    statement = f"{statement.replace('?', '%s')} RETURNING {number}"
    return int(connection.exec_driver_sql(statement, values).scalar_one())


def reserve_ids(connection: Connection, table: Table, count: int) -> range | list[int]:
    """Numbers for rows that are to be added, which nobody else gets. The first column numbers the table."""
    if connection.dialect.name != "sqlite":
        statement = (
            f"SELECT nextval(pg_get_serial_sequence('{table.name}', '{table.primary_key.columns[0].name}'))"  # noqa: S608 # our own names
            " FROM generate_series(1, %s)"
        )
        return [row[0] for row in connection.exec_driver_sql(statement, (count,))]
    # The only writer, and in a transaction: whoever adds these moves the counter behind them.
    statement = "SELECT seq FROM sqlite_sequence WHERE name = ?"
    last = connection.exec_driver_sql(statement, (table.name,)).scalar() or 0
    return range(last + 1, last + 1 + count)


def execute_many(connection: Connection, statement: str, rows: Sequence[Row]) -> None:
    """Run a statement, with `?` for its values, once for each of the rows."""
    if rows:
        text = statement if connection.dialect.name == "sqlite" else statement.replace("?", "%s")
        connection.exec_driver_sql(text, list(rows))


class BulkUpdate(NamedTuple):
    """A change of many rows: the key, then what is set, if a condition holds in which `{column}` is new."""

    columns: tuple[str, ...]
    condition: str
    null_columns: tuple[str, ...] = ()
    """Columns that are set to NULL. As values of rows these would cost SQLite's driver a microsecond each."""


def update_rows(connection: Connection, table: Table, change: BulkUpdate, rows: Sequence[Row]) -> None:
    """Set columns of rows that are found by their key. Each row has a value for each column of the change."""
    key, *others = change.columns
    new = {column: f"new.{column}" for column in change.columns}
    if connection.dialect.name == "sqlite":
        # One statement for all rows: between two, the driver would hand Python's lock to the event loop and
        # wait until it comes back.
        parts = ", ".join(
            f"json_extract(value, '$[{place}]') AS {column}" for place, column in enumerate(change.columns)
        )
        source = f" FROM (SELECT {parts} FROM json_each(?)) AS new"  # noqa: S608 # our own names
        values: tuple[object, ...] = (_json(rows),)
    else:
        arrays = ", ".join(f"%s::{_postgresql_type(table.columns[column])}[]" for column in change.columns)
        source = f" FROM unnest({arrays}) AS new ({', '.join(change.columns)})"
        values = tuple(list(column) for column in zip(*rows, strict=True))
    assigned = [f"{each} = {new[each]}" for each in others] + [
        f"{each} = NULL" for each in change.null_columns
    ]
    connection.exec_driver_sql(
        f"UPDATE {table.name} SET {', '.join(assigned)}{source}"  # noqa: S608 # our own names
        f" WHERE {table.name}.{key} = {new[key]} AND ({change.condition.format(**new)})",
        values,
    )


def query_in(connection: Connection, query: str, numbers: Sequence[int] | Sequence[str]) -> Sequence[Row]:
    """Run a query in which `IN numbers` stands for these, however many they are."""
    return execute_in(connection, query, numbers).fetchall()


def query_rows(connection: Connection, text: str, values: Row, *, lock: str = "") -> Sequence[Row]:
    """Run a query with `?` for its values. `lock` ends it on a server, where others write too."""
    if connection.dialect.name == "sqlite":
        return connection.exec_driver_sql(text, tuple(values)).fetchall()
    return connection.exec_driver_sql(text.replace("?", "%s") + lock, tuple(values)).fetchall()


def execute_one(connection: Connection, text: str, values: Row) -> int:
    """Run a statement with `?` for its values, and tell how many rows it changed."""
    statement = text if connection.dialect.name == "sqlite" else text.replace("?", "%s")
    return connection.exec_driver_sql(statement, tuple(values)).rowcount


def execute_in(
    connection: Connection, statement: str, numbers: Sequence[int] | Sequence[str]
) -> CursorResult[Any]:
    """Run any statement in which `IN numbers` stands for these, which may be texts as well."""
    if connection.dialect.name == "sqlite":
        # One value, not one for each number: SQLite keeps the statement ready, and has a limit on values.
        text, value = "IN (SELECT value FROM json_each(?1))", _encode(list(numbers)).decode()
        return connection.exec_driver_sql(statement.replace("IN numbers", text), (value,))
    text = statement.replace("IN numbers", "= ANY(%(numbers)s)")
    return connection.exec_driver_sql(text, {"numbers": list(numbers)})


def _build_insert(table: Table, source: str, on_conflict: str) -> str:
    key = ", ".join(column.name for column in table.primary_key)
    return f"INSERT INTO {table.name} ({_column_list(table)}) {source} ON CONFLICT ({key}) DO {on_conflict}"


def _column_list(table: Table) -> str:
    return ", ".join(column.name for column in table.columns)


def _placeholders(table: Table) -> str:
    return f"VALUES ({', '.join('?' * len(table.columns))})"


def _copy_to_temporary_table(connection: Connection, table: Table, rows: Sequence[Row]) -> None:
    """Send rows to a table that only this connection sees: COPY itself would stop at a row that exists."""
    typed = ", ".join(f"{column.name} {_postgresql_type(column)}" for column in table.columns)
    connection.exec_driver_sql(f"CREATE TEMPORARY TABLE IF NOT EXISTS new_{table.name} ({typed})")
    _copy(
        connection,
        f"new_{table.name}",
        [(column.name, _postgresql_type(column)) for column in table.columns],
        rows,
    )


def _copy(connection: Connection, name: str, columns: Sequence[tuple[str, str]], rows: Iterable[Row]) -> None:
    """Send rows to a table of PostgreSQL, with these columns of these types."""
    driver: Any = connection.connection.driver_connection
    dbapi: Any = connection.dialect.dbapi  # not by its name: who uses SQLite never loads it
    statement = f"COPY {name} ({', '.join(each for each, _ in columns)}) FROM STDIN (FORMAT BINARY)"
    try:
        with driver.cursor() as cursor, cursor.copy(statement) as copy:
            copy.set_types([kind for _, kind in columns])
            for row in rows:
                copy.write_row(row)
    except dbapi.Error as exc:
        # As SQLAlchemy would raise it: it does not see what happens here.
        raise DBAPIError.instance(statement, None, exc, dbapi.Error, dialect=connection.dialect) from exc


def _json(rows: Sequence[Row]) -> str:
    return _encode(rows).decode()


def _postgresql_type(column: Column[Any]) -> str:
    return next(name for kind, name in _POSTGRESQL_TYPES if isinstance(column.type, kind))
