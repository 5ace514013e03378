"""Restores of hostile or inconsistent backups, and restores that fail: no data is lost."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from signal import SIGTERM
from typing import TYPE_CHECKING

import msgspec
import psycopg
import pytest

from meshfleet.service.backup.archive import ArchiveReader, BackupDescription
from meshfleet.service.backup.restore import restore_backup
from meshfleet.settings import load_settings
from tests.cli.backup_data import (
    IMAGE,
    SEGMENT,
    back_up,
    build_archive,
    count_rows,
    describe,
    list_files,
    restore,
)
from tests.cli.programs import Program, run_command
from tests.databases import create_database, create_empty_database
from tests.eventually import eventually

if TYPE_CHECKING:
    from pathlib import Path


def load_members(file: Path) -> tuple[BackupDescription, dict[str, bytes]]:
    """Return the description of a backup, and the contents of its other members."""
    with file.open("rb") as content:
        archive = ArchiveReader(content)
        archive.check()
        members = {
            member.path: b"".join(archive.read_member(member)) for member in archive.manifest.members[1:]
        }
    return archive.description, members


def list_names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()] if folder.exists() else []


def test_a_backup_whose_parts_contradict_each_other_is_refused(data: Path, tmp_path: Path) -> None:
    file, restored = tmp_path / "backup.tar", tmp_path / "restored"
    back_up(data, file)
    description, members = load_members(file)
    database = members["meshfleet.sqlite"]
    for changes, message in (
        ({f"samples/{SEGMENT}": None}, f"samples/{SEGMENT}: the database of the backup refers to it, but"),
        ({f"images/{IMAGE}": None}, f"images/{IMAGE}: the database of the backup refers to it, but"),
        ({"meshfleet.sqlite": database[:4096] + bytes(len(database) - 4096)}, "Error: meshfleet.sqlite: "),
        ({"meshfleet.sqlite": database[: len(database) // 2]}, "Error: meshfleet.sqlite: "),
    ):
        changed = {path: content for path, content in (members | changes).items() if content is not None}
        result = restore(build_archive(file, description, changed), restored)
        assert (result.exit_code, message in result.stderr) == (1, True), (message, result.output)
        assert isinstance(result.exception, SystemExit), "it shows a traceback"
        assert list_names(restored) == ["meshfleet.lock"]


def test_a_backup_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    class NewerDescription(BackupDescription, frozen=True, kw_only=True, rename="camel"):
        format: int = 2  # type: ignore[assignment]

    newer = msgspec.convert(msgspec.to_builtins(describe()) | {"format": 2}, NewerDescription)
    result = restore(build_archive(tmp_path / "backup.tar", newer, {}), tmp_path / "restored")
    message = "Error: this backup was made by a newer Meshfleet (format 2; this one knows format 1)\n"
    assert (result.exit_code, result.stderr) == (1, message)


def test_tables_with_missing_or_additional_rows_are_named(postgresql_server: str, tmp_path: Path) -> None:
    url, empty = (
        create_database(postgresql_server, "counted"),
        create_empty_database(postgresql_server, "counted_restored"),
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("INSERT INTO account VALUES (E'anna\n', 'hash', 'admin', 0, NULL)")
        connection.execute("INSERT INTO account VALUES ('otto', 'hash', 'admin', 0, NULL)")
    file = tmp_path / "backup.tar"
    assert run_command("backup", str(file), "--database", url).exit_code == 0
    description, members = load_members(file)
    accounts = "tables/account/000000.copy"
    rows = members[accounts]
    for changes, message in (
        ({accounts: rows[: rows.index(b"\n") + 1]}, "Error: tables/account/: it has 1 rows instead of 2"),
        ({accounts: b"\\.\n" + rows}, "Error: tables/account/: it has 0 rows instead of 2"),
        ({accounts: None}, "Error: tables/account/: it has 0 rows instead of 2"),
        ({"tables/account/000002.copy": rows}, "tables/account/000002.copy: a backup of PostgreSQL has no"),
        ({"tables/other/000000.copy": b""}, "tables/other/000000.copy: a backup of PostgreSQL has no"),
        ({"../evil": b""}, "../evil: a backup of PostgreSQL has no"),
    ):
        changed = {path: content for path, content in (members | changes).items() if content is not None}
        build_archive(file, description, changed)
        result = run_command("restore", str(file), "--database", empty)
        assert (result.exit_code, message in result.stderr) == (1, True), (message, result.output)
    del members["row-counts.json"]  # as in files of an older version
    build_archive(file, description, members)
    result = run_command("restore", str(file), "--database", empty)
    assert result.exit_code == 0, result.stderr
    with psycopg.connect(empty) as connection:
        assert connection.execute("SELECT count(*) FROM account").fetchone() == (2,)


def test_old_files_of_two_restores_are_kept_apart(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    back_up(data, file)
    settings = load_settings({"data": str(data)}, {})
    contents = []
    for number in range(3):  # as if all were in the same second
        (data / "samples" / SEGMENT).write_bytes(b"%d" % number)
        contents.append(list_files(data / "samples"))
        with file.open("rb") as content:
            archive = ArchiveReader(content)
            archive.check()
            restore_backup(archive, settings, replace="before-X", as_copy=False)
    kept = [list_files(path / "samples") for path in sorted(data.glob("before-X*"))]
    assert kept == contents


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to other users")
def test_root_does_not_give_away_files_behind_links(data: Path, tmp_path: Path) -> None:
    file, foreign = tmp_path / "backup.tar", tmp_path / "foreign"
    back_up(data, file, "--without-samples")
    foreign.write_text("precious")
    (data / "meshfleet.lock").symlink_to(foreign)
    (data / "samples" / SEGMENT).unlink()
    (data / "samples" / SEGMENT).symlink_to(foreign)
    os.chown(data, 12345, 12345)
    refused = restore(file, data, "--replace")
    assert (refused.exit_code, "meshfleet.lock" in refused.output) == (1, True), refused.output
    (data / "meshfleet.lock").unlink()
    assert restore(file, data, "--replace").exit_code == 0
    assert (data / "meshfleet.sqlite").stat().st_uid == 12345
    assert list_names(data / "samples") == []
    assert (foreign.stat().st_uid, foreign.read_text()) == (0, "precious")


def test_a_restore_to_a_full_disk_changes_nothing(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    back_up(data, file)
    before = list_files(data)
    with Program("restore", str(file), "--data", str(data), "--replace", before="ulimit -f 8") as program:
        code, _, errors = program.wait_for_exit()
    assert (code, list_files(data)) == (1, before), errors
    assert "cannot be used: File too large" in errors
    assert count_rows(data, "account") == 1


def test_other_commands_do_not_use_a_half_restored_directory(data: Path, tmp_path: Path) -> None:
    (data / "restore.unfinished").touch()
    result = run_command("backup", str(tmp_path / "backup.tar"), "--data", str(data))
    assert (result.exit_code, "run `meshfleet restore --replace` again" in result.stderr) == (1, True)


def test_a_backup_that_is_stopped_removes_its_files(data: Path) -> None:
    with closing(sqlite3.connect(data / "meshfleet.sqlite")) as database, database:
        database.execute("CREATE TABLE filler AS SELECT zeroblob(4000000) AS content")
    with Program("backup", "-", "--data", str(data)) as program:  # blocks: its output is not read
        eventually(lambda: list(data.glob("backup-staging-*/meshfleet.sqlite")), "that it has copied files")
        code, *_ = program.wait_for_exit(SIGTERM)
    assert code == 128 + SIGTERM
    assert not list(data.glob("backup-staging-*"))


def test_a_restore_moves_nothing_outside_of_the_data_directory(data: Path, tmp_path: Path) -> None:
    """Let the user of the service, who can write to the data directory, mislead a restore by root."""
    file, other = tmp_path / "backup.tar", tmp_path / "other"
    back_up(data, file)
    other.mkdir()
    (data / "before-link").symlink_to(other)
    marker = data / "restore.unfinished"
    for name in (str(other), "../other", "before-link", "before-../../other"):
        marker.write_text(name)
        result = run_command("restore", str(file), "--data", str(data), "--replace")
        assert (result.exit_code, "does not name a directory inside" in result.output) == (1, True), name
        assert list_names(other) == []
    marker.unlink()
    (data / "restore.new").symlink_to(other / "written")
    assert run_command("restore", str(file), "--data", str(data), "--replace").exit_code == 0
    assert list_names(other) == []
