"""Help for people who lost their password."""

from __future__ import annotations

import json
import shutil
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from argon2 import PasswordHasher
from sqlalchemy import select

from meshfleet.db import Database
from meshfleet.db import sqlite as in_file
from meshfleet.db.tables import audit, session
from meshfleet.rest import Role
from meshfleet.service.accounts import user_store
from meshfleet.service.actor import Actor
from tests.cli.programs import run_command
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from sqlalchemy import Connection


ADA = Actor(name="ada", role=Role.ADMIN, kind="user")
BOB = Actor(name="bob", role=Role.VIEWER, kind="user")


@pytest.fixture
def database(sqlite_template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database in the usual folder of the working directory; ada and bob are logged in."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "meshfleet-data"
    folder.mkdir(0o700)
    shutil.copy(sqlite_template, folder)
    with closing(Database(in_file.create_sqlite_engines(folder / "meshfleet.sqlite"))) as database:
        database.write_now(_fill)
        yield database


def _fill(connection: Connection) -> None:
    for who in (ADA, BOB):
        user_store.insert_user(connection, who.name, hashed="lost", role=who.role, by=who, now=0)
        user_store.insert_session(connection, who, knowing="lost", now=0)


def verified(database: Database, username: str, password: str) -> bool:
    hashed = database.read_now(user_store.find_password_hash, username)
    assert hashed is not None
    return PasswordHasher().verify(hashed, password)


def rows(database: Database, query: Any) -> list[tuple[object, ...]]:
    return database.read_now(lambda connection: [tuple(row) for row in connection.execute(query)])


@pytest.mark.rule("auth-29")
def test_somebody_gets_a_new_password_which_is_printed(database: Database, tmp_path: Path) -> None:
    result = run_command("users", "reset-password", "--data", str(tmp_path / "meshfleet-data"), "ada")
    assert result.exit_code == 0
    (password,) = [word for word in result.stdout.split() if len(word) == 20]
    assert verified(database, "ada", password)
    assert database.read_now(user_store.find_password_hash, "bob") == "lost"


def test_each_new_password_is_another(database: Database) -> None:
    said = [json.loads(run_command("users", "reset-password", "ada", "--json").stdout) for _ in range(2)]
    assert [each["username"] for each in said] == ["ada", "ada"]
    assert said[0]["password"] != said[1]["password"]
    assert verified(database, "ada", said[1]["password"])


def test_their_sessions_end_and_nobody_elses(database: Database) -> None:
    assert run_command("users", "reset-password", "ada").exit_code == 0
    assert rows(database, select(session.c.username)) == [("bob",)]


def test_the_audit_log_tells_of_it(database: Database) -> None:
    run_command("users", "reset-password", "ada")
    newest = select(audit.c.actor, audit.c.action, audit.c.target).order_by(audit.c.id.desc()).limit(1)
    ((actor, action, target),) = rows(database, newest)
    assert "command line" in str(actor)
    assert (action, target) == ("user.change-password", "ada")


def test_a_name_is_read_in_any_case(database: Database) -> None:
    said = json.loads(run_command("users", "reset-password", "--json", "ADA").stdout)
    assert verified(database, "ada", said["password"])


def test_the_database_is_found_as_the_service_finds_it(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_command("users", "reset-password", "ada").exit_code == 1
    folder = str(tmp_path / "meshfleet-data")
    said = run_command("users", "reset-password", "--json", "ada", MESHFLEET_DATA=folder)
    assert verified(database, "ada", json.loads(said.stdout)["password"])


# --- One that is asked for ---


def test_a_password_that_is_typed_is_taken_and_not_shown(database: Database) -> None:
    result = run_command("users", "reset-password", "--ask", "ada", stdin="correct-horse\ncorrect-horse\n")
    assert result.exit_code == 0
    assert "correct-horse" not in result.output
    assert verified(database, "ada", "correct-horse")


def test_with_json_the_question_is_not_mixed_into_the_answer(database: Database) -> None:
    given = ["users", "reset-password", "--ask", "--json", "ada"]
    result = run_command(*given, stdin="correct-horse\ncorrect-horse\n")
    assert json.loads(result.stdout) == {"username": "ada", "password": None}
    assert verified(database, "ada", "correct-horse")


@each_row("typed", ["short\nshort\n", "correct-horse\nanother-horse\n", ""])
def test_a_password_that_is_too_short_or_mistyped_changes_nothing(database: Database, typed: str) -> None:
    assert run_command("users", "reset-password", "--ask", "ada", stdin=typed).exit_code == 1
    assert database.read_now(user_store.find_password_hash, "ada") == "lost"


# --- What is refused ---


@each_row("name", ["nobody", "not a name", ""])
def test_an_unknown_user_is_refused(database: Database, name: str) -> None:
    result = run_command("users", "reset-password", name)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert rows(database, select(session.c.username).order_by(session.c.username)) == [("ada",), ("bob",)]


@pytest.mark.parametrize("there", [True, False])
def test_a_directory_without_a_database_stays_as_it_is(tmp_path: Path, *, there: bool) -> None:
    folder = tmp_path / "data"
    if there:
        folder.mkdir()
    result = run_command("users", "reset-password", "--data", str(folder), "ada")
    assert (result.exit_code, "there is no database" in result.stderr) == (1, True)
    assert list(tmp_path.rglob("*")) == ([folder] if there else [])


def test_a_database_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meshfleet.sqlite").mkdir()
    result = run_command("users", "reset-password", "--data", str(tmp_path), "ada")
    assert (result.exit_code, "Is a directory" in result.stderr) == (1, True)


def test_nobody_named_is_wrong_usage() -> None:
    assert run_command("users", "reset-password").exit_code == 2
