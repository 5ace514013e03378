"""Many rows at once: what goes in comes out, on both databases, and nothing of it is taken for SQL."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import delete, select
from sqlalchemy.exc import IntegrityError

from meshfleet.db import bulk
from meshfleet.db.tables import device, device_label, device_state, execution, label, metadata, secret
from meshfleet.errors import DatabaseUnavailable
from tests.examples import examples
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection, Table

    from meshfleet.db import Database

pytestmark = pytest.mark.both_databases

ODD = [
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


def row(number: int, **values: object) -> tuple[Any, ...]:
    """A device, with a value for each column whatever columns there are."""
    usual = {"id": number, "imei": None, "gateway": None}
    return tuple(
        values.get(column.name, usual.get(column.name, column.type.python_type()))
        for column in device.columns
    )


def stored(connection: Connection, table: Table) -> list[tuple[Any, ...]]:
    return [tuple(each) for each in connection.execute(select(table).order_by(*table.primary_key))]


# --- Adding ---


def test_none_at_all_is_nothing_to_do(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [])
    database.write_now(bulk.execute_many, "no SQL at all", [])
    assert database.read_now(bulk.query_in, "SELECT id FROM device WHERE id IN numbers", []) == []


def test_many_rows_come_out_as_they_went_in(database: Database) -> None:
    rows = [row(number, name=f"n{number}", named=number % 2 == 0) for number in range(20_000)]
    database.write_now(bulk.insert_rows, device, rows)
    assert database.read_now(stored, device) == rows


def test_odd_texts_stay_what_they_are(database: Database) -> None:
    rows = [row(number, name=text, imei=text) for number, text in enumerate(ODD)]
    database.write_now(bulk.insert_rows, device, rows)
    assert database.read_now(stored, device) == rows


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture])
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
def test_every_value_of_a_column_comes_out_as_it_went_in(
    database: Database, values: list[dict[str, Any]]
) -> None:
    rows = [row(number, **each) for number, each in enumerate(values)]

    def there_and_back(connection: Connection) -> list[tuple[Any, ...]]:
        connection.execute(delete(device))
        bulk.insert_rows(connection, device, rows)
        return stored(connection, device)

    assert database.write_now(there_and_back) == rows


def test_bytes_stay_what_they_are(database: Database) -> None:
    rows = [("all", bytes(range(256))), ("none", b""), ("some", b"\\x41'\0")]
    database.write_now(bulk.insert_rows, secret, rows)
    assert database.read_now(stored, secret) == rows


@each_row(
    ("column", "value"),
    [("variant", SMALL), ("variant", -SMALL - 1), ("model", USUAL), ("model", 2**40 + 5), ("id", LARGE)],
)
def test_a_number_that_does_not_fit_is_an_error_and_not_another_number(
    database: Database, column: str, value: int
) -> None:
    def there_and_back(connection: Connection) -> object:
        connection.execute(delete(device))
        bulk.insert_rows(connection, device, [row(1, **{column: value})])
        return stored(connection, device)[0][[each.name for each in device.columns].index(column)]

    try:
        found = database.write_now(there_and_back)
    except Exception:  # noqa: BLE001 # each driver has an error of its own
        found = value
    assert found == value


def test_every_type_of_a_column_is_known(postgresql_database: Database) -> None:
    """Each table can be filled, also those that nobody fills today. SQLite asks for no types."""

    def fill(connection: Connection, table: Table) -> None:
        empty = tuple(column.type.python_type() for column in table.columns)
        bulk.insert_rows(connection, table, [empty])

    def fill_all(connection: Connection) -> None:
        for table in metadata.sorted_tables:
            fill(connection, table)

    postgresql_database.write_now(fill_all)
    postgresql_database.close()


# --- Rows that are there already ---


def test_rows_that_are_there_are_left_or_changed_as_told(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [row(1, name="old"), row(2, name="old")])
    database.write_now(bulk.insert_rows, device, [row(2, name="new"), row(3, name="new")])
    names = "SELECT name FROM device WHERE id IN numbers ORDER BY id"
    assert _first(database.read_now(bulk.query_in, names, [1, 2, 3])) == ["old", "old", "new"]

    def change(connection: Connection) -> None:
        rows = [row(1, name="newer"), row(4, name="newer")]
        bulk.insert_rows(connection, device, rows, on_conflict="UPDATE SET name = excluded.name")

    database.write_now(change)
    assert _first(database.read_now(bulk.query_in, names, [1, 2, 3, 4])) == ["newer", "old", "new", "newer"]


def test_a_key_of_several_columns_is_a_key(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [row(1), row(2)])
    database.write_now(bulk.insert_rows, label, [(1, "a", 0), (2, "b", 0)])
    for rows in ([(1, 1), (1, 2)], [(1, 2), (2, 1)]):
        database.write_now(bulk.insert_rows, device_label, rows)
    assert database.read_now(stored, device_label) == [(1, 1), (1, 2), (2, 1)]


def test_twice_in_one_transaction_adds_each_row_once(database: Database) -> None:
    def twice(connection: Connection) -> None:
        bulk.insert_rows(connection, device, [row(1), row(2)])
        bulk.insert_rows(connection, device, [row(3)])

    database.write_now(twice)
    database.write_now(bulk.insert_rows, device, [row(4)])
    assert database.read_now(stored, device) == [row(number) for number in (1, 2, 3, 4)]


def test_a_failure_leaves_nothing_behind(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [row(1)])
    state = tuple(None for _ in device_state.columns)[1:]
    with pytest.raises(IntegrityError):
        database.write_now(bulk.insert_rows, device_state, [(1, *state), (2, *state)])
    database.write_now(bulk.insert_rows, device, [row(3)])
    database.write_now(bulk.insert_rows, device_state, [(3, *state)])
    assert database.read_now(stored, device_state) == [(3, *state)]


def test_a_missing_value_is_the_same_error_on_both(database: Database) -> None:
    with pytest.raises(IntegrityError):
        database.write_now(bulk.insert_rows, device, [row(1, name=None)])
    assert database.read_now(stored, device) == []


def test_many_rows_that_take_too_long_are_unavailable_as_everything_else(
    postgresql_database: Database,
) -> None:
    rows = [row(number) for number in range(50_000)]

    def hurry(connection: Connection) -> None:
        bulk.insert_rows(connection, device, rows[:1])
        connection.exec_driver_sql("SET LOCAL statement_timeout = '20ms'")
        bulk.insert_rows(connection, device, rows)

    with closing(postgresql_database) as database, pytest.raises(DatabaseUnavailable):
        database.write_now(hurry)


# --- Changing and asking ---


def test_a_statement_runs_for_each_row(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [row(number) for number in range(len(ODD) + 1)])
    changes = [(text, number) for number, text in enumerate(ODD)]
    database.write_now(bulk.execute_many, "UPDATE device SET name = ? WHERE id = ?", changes)
    names = database.read_now(
        bulk.query_in, "SELECT name FROM device WHERE id IN numbers ORDER BY id", range(100)
    )
    assert _first(names) == [*ODD, ""]


def test_as_many_numbers_may_be_asked_for_as_one_likes(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [row(number * 2) for number in range(1000)])
    query = "SELECT id FROM device WHERE id IN numbers ORDER BY id"
    assert _first(database.read_now(bulk.query_in, query, range(100_000))) == list(range(0, 2000, 2))


@each_row("number", [0, 1, SMALL, USUAL, 2**48 - 1, LARGE - 1, -LARGE])
def test_numbers_of_any_size_are_found(database: Database, number: int) -> None:
    database.write_now(bulk.insert_rows, device, [row(number)])
    query = "SELECT id FROM device WHERE id IN numbers"
    for asked in ([number], [number, 7, 7, -7], [number, number]):
        assert _first(database.read_now(bulk.query_in, query, asked)) == [number]


def test_what_was_changed_is_counted(database: Database) -> None:
    database.write_now(bulk.insert_rows, device, [row(1), row(2), row(3)])

    def remove(connection: Connection) -> int:
        return bulk.execute_in(connection, "DELETE FROM device WHERE id IN numbers", [1, 3, 5]).rowcount

    assert database.write_now(remove) == 2


def _first(rows: Sequence[Sequence[Any]]) -> list[Any]:
    return [each[0] for each in rows]


# --- Filling ---


def test_rows_are_filled_with_what_differs_and_what_is_the_same(database: Database) -> None:
    def fill(connection: Connection) -> None:
        rows = [(number, text, None) for number, text in enumerate(ODD)]
        same = {"job": 7, "due": LARGE - 1, "attempt": 1, "progress": 0, "tries": 0, "beats": 0}
        bulk.insert_columns(
            connection,
            execution,
            ("device", "state", "gateway"),
            rows,
            wave=-1,
            is_read=True,
            updated_at=5,
            version=0,
            **same,
        )
        bulk.insert_columns(connection, execution, ("device",), [], job=8)

    database.write_now(fill)
    columns = execution.c
    query = select(columns.job, columns.device, columns.state, columns.gateway, columns.due, columns.is_read)
    found = database.read_now(lambda connection: connection.execute(query.order_by(columns.device)).all())
    assert [tuple(each) for each in found] == [
        (7, number, text, None, LARGE - 1, True) for number, text in enumerate(ODD)
    ]


def test_a_row_that_is_there_is_not_filled_again(database: Database) -> None:
    with pytest.raises(IntegrityError):
        database.write_now(lambda c: bulk.insert_columns(c, secret, ("name",), [("x",), ("x",)], value=None))
    with pytest.raises(IntegrityError):
        database.write_now(lambda c: bulk.insert_columns(c, device_label, ("label", "device"), [(1, 1)]))
    assert database.read_now(stored, device_label) == []
