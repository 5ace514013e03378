"""Database errors are classified by their code, not by their text."""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

import psycopg
import pytest
from sqlalchemy.exc import IntegrityError

from meshfleet.db.driver_errors import classify_error
from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.readiness import ReadinessCode
from tests.db.test_database import add

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database


def _fail_and_classify(database: Database, work: Callable[[Connection], object]) -> ReadinessCode:
    with pytest.raises(DatabaseUnavailable) as caught:
        database.write_now(work)
    return caught.value.readiness_problem.code


def _run_statement(statement: str) -> Callable[[Connection], object]:
    return lambda connection: connection.exec_driver_sql(statement)


@pytest.mark.rule("rest-160")
def test_a_full_disk_of_sqlite_is_classified(sqlite_database: Database) -> None:
    def fill(connection: Connection) -> None:
        # As on a full disk, SQLite gets no more pages for its file.
        connection.exec_driver_sql("PRAGMA max_page_count = 1")
        connection.exec_driver_sql("CREATE TABLE more AS SELECT randomblob(100000) AS data")

    assert _fail_and_classify(sqlite_database, fill) is ReadinessCode.DISK_FULL


@pytest.mark.rule("rest-160")
def test_a_lock_of_another_program_on_sqlite_is_classified(sqlite_database: Database, tmp_path: Path) -> None:
    sqlite_database.write_now(
        _run_statement("PRAGMA busy_timeout = 1")
    )  # there is only one writing connection
    other = sqlite3.connect(tmp_path / "meshfleet.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert (
        _fail_and_classify(sqlite_database, lambda connection: add(connection, "x"))
        is ReadinessCode.DATABASE_LOCKED
    )
    other.close()


@pytest.mark.rule("rest-160")
def test_error_codes_of_postgresql_are_classified(postgresql_database: Database) -> None:
    def raise_full(connection: Connection) -> None:
        # The disk of the server cannot be filled here; raise the same error code instead.
        connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'anything' USING ERRCODE = '53100'; END $$")

    def wait_for_lock(connection: Connection) -> None:
        address = connection.engine.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(address) as other:
            other.execute("LOCK TABLE label")
            connection.exec_driver_sql("SET LOCAL lock_timeout = '1ms'")
            add(connection, "x")

    codes = [_fail_and_classify(postgresql_database, work) for work in (raise_full, wait_for_lock)]
    assert codes == [ReadinessCode.DISK_FULL, ReadinessCode.DATABASE_LOCKED]


@pytest.mark.rule("rest-160")
@pytest.mark.both_databases
def test_a_failed_write_is_a_problem_until_another_write_has_stored_a_change(database: Database) -> None:
    def fill_disk(connection: Connection) -> None:
        if database.is_sqlite:
            connection.exec_driver_sql("PRAGMA max_page_count = 1")
            connection.exec_driver_sql("CREATE TABLE more AS SELECT randomblob(100000) AS data")
        connection.exec_driver_sql("DO $$ BEGIN RAISE EXCEPTION 'anything' USING ERRCODE = '53100'; END $$")

    def find_problem_code() -> ReadinessCode | None:
        return None if database.write_problem is None else database.write_problem.code

    database.write_now(add, "a")
    assert find_problem_code() is None
    assert _fail_and_classify(database, fill_disk) is ReadinessCode.DISK_FULL
    assert find_problem_code() is ReadinessCode.DISK_FULL
    # Both need no disk space: they succeed on a full disk too.
    database.write_now(_run_statement("DELETE FROM label WHERE text = 'missing'"))
    database.read_now(_run_statement("SELECT text FROM label"))
    assert find_problem_code() is ReadinessCode.DISK_FULL
    with pytest.raises(IntegrityError):
        database.write_now(add, "a")
    assert find_problem_code() is ReadinessCode.DISK_FULL
    database.write_now(_run_statement("DELETE FROM label WHERE text = 'a'"))
    assert find_problem_code() is None


@pytest.mark.rule("rest-160")
def test_a_full_disk_under_any_other_file_is_classified() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(OSError, match="space") as caught:  # noqa: PTH123 # a device
        full.write(b"x")
    assert classify_error(caught.value) is ReadinessCode.DISK_FULL
    with pytest.raises(FileNotFoundError) as missing:
        os.stat("/nowhere")  # noqa: PTH116 # any error
    assert classify_error(missing.value) is ReadinessCode.DATABASE_UNREACHABLE
