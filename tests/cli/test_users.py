"""`meshfleet users reset-password`."""

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
from meshfleet.rest.accounts import Role
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
    """Create a database in the default data directory, with the users ada and bob, who are logged in."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "meshfleet-data"
    folder.mkdir(0o700)
    shutil.copy(sqlite_template, folder)
    with closing(Database(in_file.create_sqlite_engines(folder / "meshfleet.sqlite"))) as database:
        database.write_now(_insert_users)
        yield database


def _insert_users(connection: Connection) -> None:
    for user in (ADA, BOB):
        user_store.insert_user(connection, user.name, hashed="lost", role=user.role, by=user, now=0)
        user_store.insert_session(connection, user, checked_hash="lost", now=0)


def is_password(database: Database, username: str, password: str) -> bool:
    hashed = database.read_now(user_store.find_password_hash, username)
    assert hashed is not None
    return PasswordHasher().verify(hashed, password)


def rows(database: Database, query: Any) -> list[tuple[object, ...]]:
    return database.read_now(lambda connection: [tuple(row) for row in connection.execute(query)])


@pytest.mark.rule("auth-29")
def test_a_new_password_is_set_and_printed(database: Database, tmp_path: Path) -> None:
    result = run_command("users", "reset-password", "--data", str(tmp_path / "meshfleet-data"), "ada")
    assert result.exit_code == 0
    (password,) = [word for word in result.stdout.split() if len(word) == 20]
    assert is_password(database, "ada", password)
    assert database.read_now(user_store.find_password_hash, "bob") == "lost"


def test_every_reset_generates_another_password(database: Database) -> None:
    result = [json.loads(run_command("users", "reset-password", "ada", "--json").stdout) for _ in range(2)]
    assert [each["username"] for each in result] == ["ada", "ada"]
    assert result[0]["password"] != result[1]["password"]
    assert is_password(database, "ada", result[1]["password"])


def test_only_the_sessions_of_the_user_end(database: Database) -> None:
    assert run_command("users", "reset-password", "ada").exit_code == 0
    assert rows(database, select(session.c.username)) == [("bob",)]


def test_a_reset_is_audited(database: Database) -> None:
    run_command("users", "reset-password", "ada")
    newest = select(audit.c.actor, audit.c.action, audit.c.target).order_by(audit.c.id.desc()).limit(1)
    ((actor, action, target),) = rows(database, newest)
    assert "command line" in str(actor)
    assert (action, target) == ("user.change-password", "ada")


def test_the_user_name_is_case_insensitive(database: Database) -> None:
    result = json.loads(run_command("users", "reset-password", "--json", "ADA").stdout)
    assert is_password(database, "ada", result["password"])


def test_the_database_is_found_by_the_settings_of_the_service(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run_command("users", "reset-password", "ada").exit_code == 1
    folder = str(tmp_path / "meshfleet-data")
    result = run_command("users", "reset-password", "--json", "ada", MESHFLEET_DATA=folder)
    assert is_password(database, "ada", json.loads(result.stdout)["password"])


# --- Prompted passwords ---


def test_a_prompted_password_is_set_and_not_shown(database: Database) -> None:
    result = run_command("users", "reset-password", "--ask", "ada", stdin="correct-horse\ncorrect-horse\n")
    assert result.exit_code == 0
    assert "correct-horse" not in result.output
    assert is_password(database, "ada", "correct-horse")


def test_with_json_the_prompt_is_not_on_standard_output(database: Database) -> None:
    command = ["users", "reset-password", "--ask", "--json", "ada"]
    result = run_command(*command, stdin="correct-horse\ncorrect-horse\n")
    assert json.loads(result.stdout) == {"username": "ada", "password": None}
    assert is_password(database, "ada", "correct-horse")


@each_row("typed", ["short\nshort\n", "correct-horse\nanother-horse\n", ""])
def test_a_short_or_mistyped_password_changes_nothing(database: Database, typed: str) -> None:
    assert run_command("users", "reset-password", "--ask", "ada", stdin=typed).exit_code == 1
    assert database.read_now(user_store.find_password_hash, "ada") == "lost"


# --- Refusals ---


@each_row("name", ["unknown", "not a name", ""])
def test_an_unknown_user_is_refused(database: Database, name: str) -> None:
    result = run_command("users", "reset-password", name)
    assert result.exit_code == 1
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert rows(database, select(session.c.username).order_by(session.c.username)) == [("ada",), ("bob",)]


@pytest.mark.parametrize("exists", [True, False])
def test_a_directory_without_a_database_is_unchanged(tmp_path: Path, *, exists: bool) -> None:
    folder = tmp_path / "data"
    if exists:
        folder.mkdir()
    result = run_command("users", "reset-password", "--data", str(folder), "ada")
    assert (result.exit_code, "there is no database" in result.stderr) == (1, True)
    assert list(tmp_path.rglob("*")) == ([folder] if exists else [])


def test_a_database_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    (tmp_path / "meshfleet.sqlite").mkdir()
    result = run_command("users", "reset-password", "--data", str(tmp_path), "ada")
    assert (result.exit_code, "Is a directory" in result.stderr) == (1, True)


def test_a_missing_user_name_is_wrong_usage() -> None:
    assert run_command("users", "reset-password").exit_code == 2
