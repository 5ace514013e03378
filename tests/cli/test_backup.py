"""`meshfleet backup` and `meshfleet restore`."""

from __future__ import annotations

import io
import json
import os
import shutil
import sqlite3
import subprocess
import tarfile
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event

import psycopg
import pytest
from click.testing import CliRunner

from meshfleet.cli import main
from meshfleet.db.schema import list_revisions
from meshfleet.errors.startup import UnusableDataFolder
from meshfleet.service.backup.archive import ArchiveReader
from meshfleet.service.backup.restore import check_restore_finished
from meshfleet.service.backup.sqlite_backup import remove_stale_staging, stage_files
from meshfleet.service.locks import lock_data_folder
from tests.cli.backup_data import (
    IMAGE,
    INSTANCE,
    SEGMENT,
    back_up,
    build_archive,
    count_rows,
    describe,
    list_files,
    restore,
)
from tests.cli.programs import MESHFLEET, Program, run_command
from tests.databases import create_database, create_empty_database
from tests.row_tables import each_row


def test_a_backup_is_restored_to_another_directory(data: Path, tmp_path: Path) -> None:
    file, restored = tmp_path / "backup.tar", tmp_path / "restored"
    written = back_up(data, file)
    header, sizes, size, moment = written.stdout.splitlines()
    assert header == f"Backing up {data} (SQLite, schema {list_revisions()[-1]}) while the service is stopped"
    assert sizes.endswith(" · samples 7 bytes in 1 files · firmware 1 images, 5 bytes")
    assert size.startswith(f"Written {file} (")
    assert moment.startswith("Holds everything acknowledged before 20")
    assert file.stat().st_mode & 0o777 == 0o600
    result = restore(file, restored)
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        0,
        f"Gateways and users can log in as before; start the service{_describe_start(restored)}",
    )
    assert list_files(restored) == list_files(data)
    assert [count_rows(restored, table) for table in ("account", "session", "secret")] == [1, 1, 2]
    assert {path.stat().st_mode & 0o077 for path in (restored, *restored.rglob("*"))} == {0}


def _describe_start(data: Path) -> str:
    """Return how to start a restored service: not as root, whose files the service could not use."""
    if os.geteuid() == 0:
        return " again, for example with: systemctl start meshfleet"
    return f": meshfleet serve --data {data}"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs programs as other users")
def test_the_owner_of_the_data_is_told_to_start_the_service(data: Path) -> None:
    with TemporaryDirectory() as folder:  # as other users cannot enter `tmp_path`
        file, restored = Path(folder, "backup.tar"), Path(folder, "restored")
        back_up(data, file)
        for path in (Path(folder), file):
            os.chown(path, 65534, 65534)
        command = ["setpriv", "--reuid=65534", "--clear-groups", str(MESHFLEET), "restore", str(file)]
        result = subprocess.run(
            [*command, "--data", str(restored)], capture_output=True, text=True, check=False, cwd=folder
        )
    assert (result.returncode, result.stdout.splitlines()[-1:]) == (
        0,
        [f"Gateways and users can log in as before; start the service: meshfleet serve --data {restored}"],
    ), result.stderr


def test_a_file_that_exists_is_not_overwritten(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    file.write_text("precious")
    result = run_command("backup", str(file), "--data", str(data))
    assert (result.exit_code, file.read_text()) == (1, "precious")
    assert "exists; choose another name" in result.stderr


@each_row(
    ("target", "message"),
    [
        ("", "TARGET is empty: give a file, a directory, or - for a pipe"),
        ("missing/", "the directory missing does not exist"),
        ("missing/backup.tar", "the directory missing does not exist"),
        (f"data/{'x' * 300}/", f"data/{'x' * 300} cannot be used: File name too long"),
        ("/proc/backup.tar", "/proc cannot be used: No such file or directory"),
        ("link", "link exists; choose another name, or a directory"),
        ("data/meshfleet.sqlite/backup.tar", "the directory data/meshfleet.sqlite does not exist"),
    ],
)
def test_a_target_that_cannot_be_is_named(
    data: Path, monkeypatch: pytest.MonkeyPatch, target: str, message: str
) -> None:
    monkeypatch.chdir(data.parent)
    link = Path("link")
    link.unlink(missing_ok=True)
    link.symlink_to("nowhere")
    result = run_command("backup", target, "--data", "data")
    assert isinstance(result.exception, SystemExit), "it shows a traceback"
    assert (result.exit_code in {1, 2}, result.stderr.splitlines()[-1]) == (True, f"Error: {message}")
    assert {each.name for each in data.parent.iterdir()} == {"data", "link"}


def test_a_data_directory_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    data = tmp_path / ("x" * 300)
    for command in (("backup", "backup.tar"), ("users", "reset-password", "anna"), ("upgrade-check",)):
        result = run_command(*command, "--data", str(data))
        message = f"Error: the database in {data} cannot be used: File name too long\n"
        assert (result.exit_code, result.stderr) == (1, message)
    empty = run_command("restore", "", "--data", str(tmp_path))
    assert (empty.exit_code, "SOURCE is empty" in empty.stderr) == (2, True)


def test_a_database_that_was_never_used_is_refused(postgresql_server: str, tmp_path: Path) -> None:
    (tmp_path / "meshfleet.sqlite").touch()
    url = create_empty_database(postgresql_server, "unused")
    for place in (("--data", str(tmp_path)), ("--database", url)):
        result = run_command("backup", str(tmp_path / "backup.tar"), *place)
        assert (result.exit_code, "has no tables of Meshfleet" in result.stderr) == (1, True), result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["meshfleet.sqlite"]


def test_in_a_directory_backups_are_named_by_time_and_only_the_newest_are_kept(
    data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    own = describe(instance=INSTANCE)
    for day in ("20010101", "20010102", "29990101"):  # the last one by a clock that was wrong
        build_archive(folder / f"meshfleet-{day}T000000Z.tar", own, {})
    for other in ("meshfleet-old.tar", "other.tar", ".meshfleet-backup-killed"):
        build_archive(folder / other, own, {})
    name = json.loads(back_up(data, folder, "--keep", "2", "--json").stdout)["path"]
    kept = ("meshfleet-29990101T000000Z.tar", "meshfleet-old.tar", "other.tar")
    assert set(map(str, folder.iterdir())) == {name, *(str(folder / each) for each in kept)}


def test_backups_are_only_deleted_beyond_the_number_to_keep(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    for keep in (1, 2, 5, 9):
        for day in range(1, 6):
            build_archive(folder / f"meshfleet-2001010{day}T000000Z.tar", describe(instance=INSTANCE), {})
        newest = back_up(data, folder, "--keep", str(keep), "--json").stdout
        assert len(list(folder.iterdir())) == min(6, keep)
        Path(json.loads(newest)["path"]).unlink()


def test_files_that_are_no_backups_of_this_installation_are_neither_counted_nor_deleted(
    data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    days = (f"meshfleet-2001010{day}T000000Z.tar" for day in range(1, 8))
    build_archive(folder / next(days), describe(instance="0" * 32), {})
    build_archive(folder / next(days), describe(), {})  # of a version that named no installation
    cut = build_archive(folder / next(days), describe(instance=INSTANCE), {})
    cut.write_bytes(cut.read_bytes()[:-10_000])
    (folder / next(days)).write_bytes(b"no backup" * 1000)
    (folder / next(days)).mkdir()
    os.mkfifo(folder / next(days))
    left_alone = set(folder.iterdir())
    build_archive(folder / next(days), describe(instance=INSTANCE), {})
    newest = json.loads(back_up(data, folder, "--keep", "1", "--json").stdout)["path"]
    assert set(folder.iterdir()) == {*left_alone, Path(newest)}
    with closing(sqlite3.connect(data / "meshfleet.sqlite")) as database, database:
        database.execute("DELETE FROM secret")
    Path(newest).rename(folder / "meshfleet-20010109T000000Z.tar")
    back_up(data, folder, "--keep", "1")
    assert len(list(folder.iterdir())) == len(left_alone) + 2, "an installation without id deletes nothing"


def test_a_backup_passes_through_pipes(data: Path, tmp_path: Path) -> None:
    written = CliRunner().invoke(main, ["backup", "-", "--data", str(data)])
    assert written.exit_code == 0, written.stderr
    ArchiveReader(io.BytesIO(written.stdout_bytes)).check()
    restored = tmp_path / "restored"
    result = CliRunner().invoke(main, ["restore", "-", "--data", str(restored)], input=written.stdout_bytes)
    assert result.exit_code == 0, result.stderr
    assert list_files(restored) == list_files(data)


def test_segments_of_another_service_are_not_taken_for_those_of_a_backup(data: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "backup.tar", tmp_path / "other"
    back_up(data, file, "--without-samples")
    shutil.copytree(data, other)
    with closing(sqlite3.connect(other / "meshfleet.sqlite")) as database, database:
        database.execute("UPDATE sample_segment SET samples = 2")
    result = restore(file, other, "--replace")
    assert "1 files with samples no longer exist, or are not those of this backup." in result.stdout
    assert "everything but older samples" in result.stdout
    assert (count_rows(other, "sample_segment"), list((other / "samples").iterdir())) == (0, [])


def test_a_restore_that_was_interrupted_keeps_all_old_files_together(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    back_up(data, file, "--without-samples")
    before = list_files(data)
    # Killed after one old directory was moved aside, and its restored one was put in place.
    (data / "before-X").mkdir()
    (data / "images").rename(data / "before-X" / "images")
    (data / "images").mkdir()
    (data / "restore.unfinished").write_text("before-X")
    assert restore(file, data, "--replace").exit_code == 0
    assert list_files(data / "before-X") == before
    assert (data / "before-X" / "meshfleet.sqlite").exists()
    assert (data / "samples" / SEGMENT).exists()
    assert not (data / "restore.unfinished").exists()


def test_a_missing_file_is_named(data: Path, tmp_path: Path) -> None:
    (data / "images" / IMAGE).unlink()
    result = run_command("backup", str(tmp_path / "backup.tar"), "--data", str(data))
    assert f"images/{IMAGE} is missing in {data}" in result.stderr


def test_a_backup_without_samples_uses_segments_that_are_still_there(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    back_up(data, file, "--without-samples")
    with tarfile.open(file) as archive:
        assert f"samples/{SEGMENT}" not in archive.getnames()
    elsewhere = tmp_path / "elsewhere"
    result = restore(file, elsewhere, "--replace")
    assert (result.exit_code, "The files that were there" in result.stdout) == (0, False), result.output
    assert count_rows(elsewhere, "sample_segment") == 0
    assert restore(file, data, "--replace").exit_code == 0
    assert count_rows(data, "sample_segment") == 1
    assert (data / "samples" / SEGMENT).read_bytes() == b"samples"


def test_existing_data_is_refused_or_moved_aside(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    back_up(data, file)
    (data / "samples" / "00000008.samples").write_bytes(b"newer")
    before = list_files(data)
    refused = restore(file, data)
    assert refused.exit_code == 1
    assert "is not empty: it contains images; choose another directory" in refused.stderr
    assert list_files(data) == before
    assert restore(file, data, "--replace").exit_code == 0
    (aside,) = data.glob("before-*")
    assert list_files(aside) == before
    assert (aside / "meshfleet.sqlite").exists()
    assert not (data / "samples" / "00000008.samples").exists()


def test_a_copy_has_neither_the_logins_nor_the_secrets_of_the_original(data: Path, tmp_path: Path) -> None:
    file, copy = tmp_path / "backup.tar", tmp_path / "copy"
    with closing(sqlite3.connect(data / "meshfleet.sqlite")) as database, database:
        database.execute(
            "INSERT INTO channel (name, kind, enabled, target, secret, created_at, failures, version)"
            """ VALUES ('Office', 'webhook', 1, '{"url":"https://h.example/s-1"}', 'whsec_s-1', 0, 0, 1)"""
        )
        database.execute("INSERT INTO notification_route VALUES (0, '{}')")
        database.execute(
            "INSERT INTO notification (channel, kind, state, created_at, due, attempts)"
            " VALUES (1, 'opened', 'waiting', 0, 0, 0)"
        )
    back_up(data, file)
    assert restore(file, tmp_path / "restored").exit_code == 0
    messages = ("channel", "notification_route", "notification")
    assert [count_rows(tmp_path / "restored", table) for table in messages] == [1, 1, 1]
    result = restore(file, copy, "--as-copy")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (
        0,
        (
            "Passwords are as before; start the copy without MQTT: "
            f"meshfleet serve --data {copy} --http 127.0.0.1:8090 --broker embedded --mqtt off"
        ),
    )
    assert [count_rows(copy, table) for table in ("account", "session", "secret")] == [1, 0, 0]
    assert [count_rows(copy, table) for table in messages] == [0, 0, 0]
    assert b"s-1" not in (copy / "meshfleet.sqlite").read_bytes()


def test_settings_that_a_backup_does_not_need_may_be_unusable(data: Path, tmp_path: Path) -> None:
    settings = tmp_path / "meshfleet.toml"
    settings.write_text(
        f'data = "{data}"\nmqtt-tls = "127.0.0.1:0"\ntls-cert = "/nowhere/chain.pem"\n'
        'tls-key = "/nowhere/key.pem"\nbroker-file = "/nowhere/broker"\n'
        'influx.url = "http://127.0.0.1:1"\ninflux.token-file = "/nowhere/token"\n'
    )
    config = ("--config", str(settings))
    (tmp_path / "credentials" / "meshfleet.homeassistant.broker").mkdir(parents=True)
    variables = {
        "CREDENTIALS_DIRECTORY": str(tmp_path / "credentials"),
        "MESHFLEET_BROKER_FILE": "/nowhere/broker",
    }
    assert run_command("serve", *config, **variables).exit_code == 2
    file = str(tmp_path / "backup.tar")
    for command, expected in (
        (("backup", file), 0),
        (("restore", file, "--check"), 0),
        (("users", "reset-password", "anna"), 0),
        (("upgrade-check",), 1),
        (("doctor",), 1),
    ):
        result = run_command(*command, *config, **variables)
        assert result.exit_code == expected, result.output
        if expected:
            assert (
                f"fail  settings            {settings}: broker-file: /nowhere/broker cannot be"
                in result.output
            )
            assert "ok    database " in result.output
    settings.write_text(f'data = "{data}"\nbroker-flie = "/nowhere/broker"\n')
    assert "broker-flie: unknown setting" in run_command("backup", file, *config).stderr


def test_a_directory_in_use_by_a_service_is_refused(data: Path, tmp_path: Path) -> None:
    file = tmp_path / "backup.tar"
    with lock_data_folder(data):
        back_up(data, file)  # a backup is possible meanwhile
        result = restore(file, data, "--replace")
    assert result.exit_code == 1
    assert "is in use by another meshfleet serve" in result.stderr


def test_a_damaged_backup_is_named_and_nothing_is_written(data: Path, tmp_path: Path) -> None:
    file, restored = tmp_path / "backup.tar", tmp_path / "restored"
    back_up(data, file)
    content = bytearray(file.read_bytes())
    content[content.index(b"samples" + bytes(505))] ^= 1  # the content of the segment, a full block
    file.write_bytes(content)
    result = restore(file, restored)
    assert (result.exit_code, result.stderr) == (
        1,
        f"Error: samples/{SEGMENT}: the checksum does not match\n",
    )
    assert not restored.exists()


def test_backups_that_do_not_fit_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    file, restored = tmp_path / "backup.tar", tmp_path / "restored"
    for description, members, message in (
        (describe(schema="9999"), [], "made by a newer Meshfleet (9.0.0, schema 9999;"),
        (describe(database="postgresql"), [], "the backup is of a postgresql database, but the settings"),
        (describe(), ["meshfleet.sqlite", "../evil"], "../evil: a backup of SQLite has no such file"),
        (describe(), ["/etc/evil"], "/etc/evil: a backup of SQLite has no such file"),
        (describe(), [], "meshfleet.sqlite: it is missing"),
        (describe(), ["meshfleet.sqlite"], "meshfleet.sqlite: no such table: alembic_version"),
    ):
        result = restore(build_archive(file, description, dict.fromkeys(members, b"")), restored)
        assert (result.exit_code, message in result.stderr) == (1, True), result.stderr
        assert not restored.exists() or [path.name for path in restored.iterdir()] == ["meshfleet.lock"]
    missing = restore(tmp_path / "missing.tar", restored)
    assert "missing.tar cannot be read: No such file" in missing.stderr


def test_a_database_with_tables_is_refused(postgresql_server: str, tmp_path: Path) -> None:
    url = create_database(postgresql_server, "occupied")
    file = tmp_path / "backup.tar"
    assert run_command("backup", str(file), "--database", url).exit_code == 0
    for options, message in (
        ([], "the database is not empty: it has"),
        (["--replace"], "is for SQLite only"),
    ):
        result = run_command("restore", str(file), "--database", url, *options)
        assert (result.exit_code, message in result.stderr) == (1, True), result.stderr


def test_tables_of_other_programs_in_the_database_are_ignored(postgresql_server: str, tmp_path: Path) -> None:
    url, empty = (
        create_database(postgresql_server, "shared"),
        create_empty_database(postgresql_server, "unshared"),
    )
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute('CREATE TABLE "My Notes" (id serial PRIMARY KEY)')
        connection.execute('INSERT INTO "My Notes" DEFAULT VALUES')
    file = tmp_path / "backup.tar"
    assert run_command("backup", str(file), "--database", url).exit_code == 0
    result = run_command("restore", str(file), "--database", empty)
    assert result.exit_code == 0, result.stderr


def test_a_full_disk_ends_a_backup_of_postgresql(postgresql_server: str, tmp_path: Path) -> None:
    url = create_database(postgresql_server, "large")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "INSERT INTO audit (time, actor, action, target, detail)"
            " SELECT 0, 'a', 'b', 'c', repeat('x', 1000) FROM generate_series(1, 20000)"
        )
    folder = tmp_path / "full"
    folder.mkdir()
    with Program("backup", str(folder), "--database", url, before="ulimit -f 1000") as program:
        code, _, errors = program.wait_for_exit()
    assert (code, list(folder.iterdir())) == (1, []), errors
    assert "cannot be used: File too large" in errors


def test_an_interrupted_restore_keeps_the_service_from_starting(data: Path) -> None:
    (data / "restore.unfinished").touch()
    with pytest.raises(UnusableDataFolder, match="run `meshfleet restore --replace` again"):
        check_restore_finished(data)


def test_files_of_a_killed_backup_are_removed_and_those_of_a_running_one_stay(data: Path) -> None:
    killed = data / "backup-staging-killed"
    killed.mkdir()
    with stage_files(data, lambda: 0, Event(), with_samples=True) as staged:
        remove_stale_staging(data)
        assert not killed.exists()
        assert staged.database.exists()
    assert not staged.database.parent.exists()


def test_a_full_disk_is_reported_and_leaves_nothing(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    folder.mkdir()
    with Program("backup", str(folder), "--data", str(data), before="ulimit -f 8") as program:
        code, _, errors = program.wait_for_exit()
    assert (code, list(folder.iterdir())) == (1, []), errors
    assert "Error: " in errors
    assert {path.name for path in data.iterdir()} >= {"images", "samples", "meshfleet.sqlite"}
    assert not list(data.glob("backup-staging-*"))
    assert [path.name for path in (data / "samples").iterdir()] == [SEGMENT]
