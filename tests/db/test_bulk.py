"""Bulk statements on both databases: values are stored unchanged and never interpreted as SQL."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Table, delete, select
from sqlalchemy.exc import IntegrityError

from meshfleet.db import Database, bulk
from meshfleet.db.tables import device, device_label, device_state, execution, label, metadata, secret
from meshfleet.errors import DatabaseUnavailable
from tests.examples import examples
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Sequence


pytestmark = pytest.mark.both_databases

UNUSUAL_TEXTS = [
    "it's",
    'say "so"',
    "back\\slash \\n \\. \\N \\x41",
    "tab\tnew\nline\r\n",
    "🔧 Gerät e\u0301 \u200b\ufeff",
    "100% %s %(a)s ? :a $1",
    "'); DROP TABLE label; --",
    "NULL",
    "{1,2}",
    " ",
    "",
    "\x01\x1b\x7f",
    "a" * 100_000,
]

SMALL, USUAL, LARGE = 2**15, 2**31, 2**63


def build_row(number: int, **values: object) -> tuple[Any, ...]:
    """Build the row of a device with a value for each column, whichever columns exist."""
    defaults = {"id": number, "imei": None, "gateway": None}
    return tuple(
        values.get(column.name, defaults.get(column.name, column.type.python_type()))
        for column in device.columns
    )


def load_rows(connection: Connection, table: Table) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in connection.execute(select(table).order_by(*table.primary_key))]


# --- Inserts ---


def test_no_rows_run_no_statement(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [])
    database.write_now(bulk.execute_many, "no SQL at all", [])
    assert database.read_now(bulk.query_in, "SELECT id FROM device WHERE id IN numbers", []) == []


def test_many_rows_are_stored_unchanged(database: Database) -> None:
    rows = [build_row(number, name=f"n{number}", named=number % 2 == 0) for number in range(5_000)]
    database.write_now(bulk.insert_rows, device, rows)
    assert database.read_now(load_rows, device) == rows


def test_unusual_texts_are_stored_unchanged(database: Database) -> None:
    rows = [build_row(number, name=text, imei=text) for number, text in enumerate(UNUSUAL_TEXTS)]
    database.write_now(bulk.insert_rows, device, rows)
    assert database.read_now(load_rows, device) == rows


@settings(max_examples=examples(40))
@given(
    values=st.lists(
        st.fixed_dictionaries(
            {
                "name": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
                "named": st.booleans(),
                "model": st.integers(-USUAL, USUAL - 1),
                "variant": st.integers(-SMALL, SMALL - 1),
                "gateway": st.none() | st.integers(-LARGE, LARGE - 1),
                "created_at": st.integers(-LARGE, LARGE - 1),
                "imei": st.none() | st.just(""),
            }
        ),
        max_size=5,
    )
)
def test_every_value_of_a_column_is_stored_unchanged(
    database: Database, values: list[dict[str, Any]]
) -> None:
    rows = [build_row(number, **value) for number, value in enumerate(values)]

    def write_and_read(connection: Connection) -> list[tuple[Any, ...]]:
        connection.execute(delete(device))
        bulk.insert_rows(connection, device, rows)
        return load_rows(connection, device)

    assert database.write_now(write_and_read) == rows


def test_bytes_are_stored_unchanged(database: Database) -> None:
    rows = [("all", bytes(range(256))), ("none", b""), ("some", b"\\x41'\0")]
    database.write_now(bulk.insert_rows, secret, rows)
    assert database.read_now(load_rows, secret) == rows


@each_row(
    ("column", "value"),
    [("variant", SMALL), ("variant", -SMALL - 1), ("model", USUAL), ("model", 2**40 + 5), ("id", LARGE)],
)
def test_a_number_out_of_range_is_refused_and_never_truncated(
    database: Database, column: str, value: int
) -> None:
    def write_and_read(connection: Connection) -> object:
        connection.execute(delete(device))
        bulk.insert_rows(connection, device, [build_row(1, **{column: value})])
        return load_rows(connection, device)[0][[named.name for named in device.columns].index(column)]

    try:
        stored = database.write_now(write_and_read)
    except Exception:  # noqa: BLE001 # each driver raises its own error
        stored = value
    assert stored == value


def test_every_table_can_be_filled_on_postgresql(postgresql_database: Database) -> None:
    """Check that each column type has a PostgreSQL name, also in tables not filled in bulk today."""

    def fill(connection: Connection, table: Table) -> None:
        empty = tuple(column.type.python_type() for column in table.columns)
        bulk.insert_rows(connection, table, [empty])

    def fill_all(connection: Connection) -> None:
        for table in metadata.sorted_tables:
            fill(connection, table)

    postgresql_database.write_now(fill_all)


# --- Existing rows ---


def test_existing_rows_are_kept_or_updated_as_requested(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [build_row(1, name="old"), build_row(2, name="old")])
    database.write_now(bulk.insert_rows, device, [build_row(2, name="new"), build_row(3, name="new")])
    names = "SELECT name FROM device WHERE id IN numbers ORDER BY id"
    assert _first_column(database.read_now(bulk.query_in, names, [1, 2, 3])) == ["old", "old", "new"]

    def change(connection: Connection) -> None:
        rows = [build_row(1, name="newer"), build_row(4, name="newer")]
        bulk.insert_rows(connection, device, rows, on_conflict="UPDATE SET name = excluded.name")

    database.write_now(change)
    assert _first_column(database.read_now(bulk.query_in, names, [1, 2, 3, 4])) == [
        "newer",
        "old",
        "new",
        "newer",
    ]


def test_a_composite_key_identifies_a_row(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [build_row(1), build_row(2)])
    database.write_now(bulk.insert_rows, label, [(1, "a", 0), (2, "b", 0)])
    for rows in ([(1, 1), (1, 2)], [(1, 2), (2, 1)]):
        database.write_now(bulk.insert_rows, device_label, rows)
    assert database.read_now(load_rows, device_label) == [(1, 1), (1, 2), (2, 1)]


def test_two_inserts_in_one_transaction_add_each_row_once(database: Database) -> None:
    def twice(connection: Connection) -> None:
        bulk.insert_rows(connection, device, [build_row(1), build_row(2)])
        bulk.insert_rows(connection, device, [build_row(3)])

    database.write_now(twice)
    database.write_now(bulk.insert_rows, device, [build_row(4)])
    assert database.read_now(load_rows, device) == [build_row(number) for number in (1, 2, 3, 4)]


def test_a_failed_insert_stores_nothing(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [build_row(1)])
    state = tuple(None for _ in device_state.columns)[1:]
    with pytest.raises(IntegrityError):
        database.write_now(bulk.insert_rows, device_state, [(1, *state), (2, *state)])
    database.write_now(bulk.insert_rows, device, [build_row(3)])
    database.write_now(bulk.insert_rows, device_state, [(3, *state)])
    assert database.read_now(load_rows, device_state) == [(3, *state)]


def test_a_missing_value_raises_the_same_error_on_both_databases(database: Database) -> None:
    with pytest.raises(IntegrityError):
        database.write_now(bulk.insert_rows, device, [build_row(1, name=None)])
    assert database.read_now(load_rows, device) == []


def test_an_insert_that_takes_too_long_raises_database_unavailable(
    postgresql_database: Database,
) -> None:
    rows = [build_row(number) for number in range(50_000)]

    def insert_with_timeout(connection: Connection) -> None:
        bulk.insert_rows(connection, device, rows[:1])
        connection.exec_driver_sql("SET LOCAL statement_timeout = '20ms'")
        bulk.insert_rows(connection, device, rows)

    with closing(postgresql_database) as database, pytest.raises(DatabaseUnavailable):
        database.write_now(insert_with_timeout)


# --- Updates and queries ---


def test_a_statement_runs_for_each_row(database: Database) -> None:
    database.write_now(
        bulk.insert_rows, device, [build_row(number) for number in range(len(UNUSUAL_TEXTS) + 1)]
    )
    changes = [(text, number) for number, text in enumerate(UNUSUAL_TEXTS)]
    database.write_now(bulk.execute_many, "UPDATE device SET name = ? WHERE id = ?", changes)
    names = database.read_now(
        bulk.query_in, "SELECT name FROM device WHERE id IN numbers ORDER BY id", range(100)
    )
    assert _first_column(names) == [*UNUSUAL_TEXTS, ""]


def test_a_query_takes_any_number_of_values(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [build_row(number * 2) for number in range(1000)])
    query = "SELECT id FROM device WHERE id IN numbers ORDER BY id"
    assert _first_column(database.read_now(bulk.query_in, query, range(100_000))) == list(range(0, 2000, 2))


@each_row("text", UNUSUAL_TEXTS)
def test_named_values_are_bound(database: Database, text: str) -> None:
    database.write_now(bulk.insert_rows, device, [build_row(1), build_row(2), build_row(3)])
    change = "UPDATE device SET name = :name WHERE id IN numbers AND id > :after RETURNING id, name"
    assert database.write_now(bulk.query_in, change, [1, 2], name=text, after=1) == [(2, text)]


@each_row("number", [0, 1, SMALL, USUAL, 2**48 - 1, LARGE - 1, -LARGE])
def test_numbers_of_any_size_are_found(database: Database, number: int) -> None:
    database.write_now(bulk.insert_rows, device, [build_row(number)])
    query = "SELECT id FROM device WHERE id IN numbers"
    for numbers in ([number], [number, 7, 7, -7], [number, number]):
        assert _first_column(database.read_now(bulk.query_in, query, numbers)) == [number]


def test_changed_rows_are_counted(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [build_row(1), build_row(2), build_row(3)])

    def delete_rows(connection: Connection) -> int:
        return bulk.execute_in(connection, "DELETE FROM device WHERE id IN numbers", [1, 3, 5]).rowcount

    assert database.write_now(delete_rows) == 2


def _first_column(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [row[0] for row in rows]


# --- Inserts of some columns ---


def test_rows_get_their_own_values_and_shared_constants(database: Database) -> None:
    def fill(connection: Connection) -> None:
        rows = [(number, text, None) for number, text in enumerate(UNUSUAL_TEXTS)]
        constants = {"job": 7, "due": LARGE - 1, "attempt": 1, "progress": 0, "tries": 0, "beats": 0}
        bulk.insert_columns(
            connection,
            execution,
            ("device", "state", "gateway"),
            rows,
            wave=-1,
            is_read=True,
            updated_at=5,
            version=0,
            **constants,
        )
        bulk.insert_columns(connection, execution, ("device",), [], job=8)

    database.write_now(fill)
    columns = execution.c
    query = select(columns.job, columns.device, columns.state, columns.gateway, columns.due, columns.is_read)
    rows = database.read_now(lambda connection: connection.execute(query.order_by(columns.device)).all())
    assert [tuple(row) for row in rows] == [
        (7, number, text, None, LARGE - 1, True) for number, text in enumerate(UNUSUAL_TEXTS)
    ]


def test_an_insert_of_some_columns_refuses_an_existing_row(database: Database) -> None:
    with pytest.raises(IntegrityError):
        database.write_now(lambda c: bulk.insert_columns(c, secret, ("name",), [("x",), ("x",)], value=None))
    with pytest.raises(IntegrityError):
        database.write_now(lambda c: bulk.insert_columns(c, device_label, ("label", "device"), [(1, 1)]))
    assert database.read_now(load_rows, device_label) == []
