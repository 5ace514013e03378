"""Records of backups in the database, and the installation that a backup names."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import psycopg
import pytest
from click.testing import CliRunner

from meshfleet.cli import main
from meshfleet.db import connect_database
from meshfleet.db.schema import run_migrations
from meshfleet.protocol.times import parse_millis
from tests.cli.backup_data import back_up, build_archive, count_rows, describe, restore
from tests.cli.programs import run_command
from tests.databases import create_database, create_empty_database

if TYPE_CHECKING:
    from pathlib import Path


def load_records(data: Path) -> list[tuple[int, int, bool]]:
    with closing(sqlite3.connect(data / "meshfleet.sqlite")) as database:
        return database.execute(
            "SELECT moment, size, has_samples FROM backup ORDER BY finished_at"
        ).fetchall()


def test_finished_backups_are_recorded_and_only_the_newest_records_are_kept(
    data: Path, tmp_path: Path
) -> None:
    with closing(sqlite3.connect(data / "meshfleet.sqlite")) as database, database:
        database.executemany("INSERT INTO backup VALUES (?, 0, 0, 1)", [(each,) for each in range(100)])
    written = [
        json.loads(back_up(data, tmp_path / name, "--json", *options).stdout)
        for name, options in (("a.tar", []), ("b.tar", ["--without-samples"]))
    ]
    records = load_records(data)
    assert len(records) == 100
    assert records[-2:] == [
        (parse_millis(each["moment"]), each["size"], each["hasSamples"]) for each in written
    ]
    assert [each["hasSamples"] for each in written] == [True, False]


def test_a_backup_to_a_pipe_is_not_recorded_and_can_print_json(data: Path) -> None:
    result = CliRunner().invoke(main, ["backup", "-", "--data", str(data), "--json"])
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stderr)["size"] == len(result.stdout_bytes)
    assert load_records(data) == []


def test_a_database_without_the_table_is_backed_up_with_a_warning(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    with closing(connect_database("sqlite", folder)) as database:
        database.write_now(run_migrations, "0012")
    result = back_up(folder, tmp_path / "backup.tar", "--quiet")
    assert result.stdout == ""
    (warning,) = result.stderr.splitlines()
    assert warning.startswith(
        "Warning: the backup is complete, but the database has no record of it: its schema"
    )
    with closing(sqlite3.connect(folder / "meshfleet.sqlite")) as file:
        assert file.execute("SELECT version_num FROM alembic_version").fetchone() == ("0012",)


def test_a_database_that_only_allows_reading_is_backed_up_with_a_warning(
    postgresql_server: str, tmp_path: Path
) -> None:
    url = create_database(postgresql_server, "read_only")
    assert run_command("backup", str(tmp_path / "first.tar"), "--database", url, "--quiet").output == ""
    with psycopg.connect(url, autocommit=True) as connection:
        assert connection.execute("SELECT count(*) FROM backup WHERE has_samples").fetchone() == (1,)
        connection.execute("ALTER DATABASE read_only SET default_transaction_read_only = on")
    result = run_command("backup", str(tmp_path / "second.tar"), "--database", url, "--quiet")
    assert (result.exit_code, (tmp_path / "second.tar").exists()) == (0, True), result.output
    assert "the database has no record of it" in result.stderr
    assert "read-only transaction" in result.stderr


def test_a_restore_names_the_installation_and_a_copy_is_another_one(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    instance = json.loads(back_up(data, file, "--json").stdout)["instance"]
    assert len(instance) == 32
    assert f" of installation {instance}." in restore(file, data, "--check").stdout
    for name, options, expected in (("same", [], instance), ("copy", ["--as-copy"], None)):
        assert restore(file, tmp_path / name, *options).exit_code == 0
        again = back_up(tmp_path / name, tmp_path / f"{name}.tar", "--json")
        assert json.loads(again.stdout)["instance"] == expected


@pytest.mark.both_databases
def test_a_backup_of_a_version_that_named_no_installation_is_restored(
    request: pytest.FixtureRequest, database_kind: str, data: Path, tmp_path: Path
) -> None:
    file, target = tmp_path / "backup.tar", tmp_path / "restored"
    if database_kind == "sqlite":
        content = {"meshfleet.sqlite": (data / "meshfleet.sqlite").read_bytes()}
        for folder in ("samples", "images"):
            content |= {f"{folder}/{each.name}": each.read_bytes() for each in (data / folder).iterdir()}
        build_archive(file, describe(), content)
        result = restore(file, target, "--json")
        assert json.loads(result.stdout)["instance"] is None
        assert count_rows(target, "account") == 1
        return
    server = request.getfixturevalue("postgresql_server")
    url = create_database(server, "unnamed")
    assert (
        json.loads(run_command("backup", str(file), "--database", url, "--json").stdout)["instance"] is None
    )
    empty = create_empty_database(server, "unnamed_restored")
    assert run_command("restore", str(file), "--database", empty, "--quiet").output == ""
