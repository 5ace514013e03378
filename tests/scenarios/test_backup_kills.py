"""Kills of backups and restores at any moment: files are complete or absent, and the next run cleans up."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing
from signal import SIGKILL
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.startup import UnusableDataFolder
from meshfleet.service.backup.archive import ArchiveReader
from meshfleet.service.backup.restore import check_restore_finished
from tests.cli.backup_data import create_data, list_files
from tests.cli.programs import Program, run_command
from tests.eventually import eventually
from tests.scenarios.service_process import ServiceProcess, loopback_options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.part("long")

KILLS = 20
DATABASE_BYTES = 60_000_000
"""Size of a database for which a backup takes much longer than starting the program."""

OTHER_FILES = 1_000
"""Files in a data directory, so that moving them takes some time."""


def enlarge_database(data: Path) -> None:
    with closing(sqlite3.connect(data / "meshfleet.sqlite")) as database, database:
        database.execute("CREATE TABLE filler (content BLOB)")
        for _ in range(DATABASE_BYTES // 1_000_000):
            database.execute("INSERT INTO filler VALUES (randomblob(1000000))")


def kill_at_moments(build_command: Callable[[int], list[str]], check: Callable[[int], None]) -> int:
    """Kill commands after equal shares of the time that one takes. Return how many were finished before."""
    started = time.monotonic()
    with Program(*build_command(KILLS)) as program:
        code, _, errors = program.wait_for_exit()
    assert code == 0, errors
    duration = time.monotonic() - started
    finished_count = 0
    for number in range(KILLS):
        with Program(*build_command(number)) as program:
            time.sleep(duration * number / KILLS)  # the moment is arbitrary
            code, _, errors = program.wait_for_exit(SIGKILL)
        assert code in {0, -SIGKILL}, errors
        finished_count += code == 0
        check(number)
    return finished_count


def find_leftovers(*folders: Path) -> list[str]:
    patterns = ("backup-staging-*", "restore-staging-*", ".meshfleet-backup-*", "restore.*")
    return [path.name for folder in folders for pattern in patterns for path in folder.glob(pattern)]


def test_a_backup_that_is_killed_leaves_no_incomplete_file_and_does_not_disturb_the_service(
    tmp_path: Path,
) -> None:
    target = tmp_path / "backups"
    target.mkdir()
    with ServiceProcess(tmp_path, *loopback_options("--mqtt")) as service:
        service.stop()
        enlarge_database(service.data)
        service.start()

        def build_command(number: int) -> list[str]:
            return ["backup", str(target / f"{number}.tar"), "--data", str(service.data)]

        def check(number: int) -> None:
            file = target / f"{number}.tar"
            if file.exists():
                with file.open("rb") as content:
                    ArchiveReader(content).check()
                file.unlink()
            assert service.is_ready()

        assert kill_at_moments(build_command, check) < KILLS // 2
        result = run_command("backup", str(target / "last.tar"), "--data", str(service.data))
        assert result.exit_code == 0, result.output
        assert find_leftovers(target, service.data) == []

        with Program("backup", "-", "--data", str(service.data)) as program:  # blocks: its output is not read
            eventually(lambda: find_leftovers(service.data), "that it has created files")
            program.wait_for_exit(SIGKILL)
        assert find_leftovers(service.data)
        service.stop()
        service.start()
        assert find_leftovers(service.data) == []


def test_a_restore_that_is_killed_can_be_repeated_and_keeps_the_old_files(tmp_path: Path) -> None:
    source = create_data(tmp_path / "source")
    enlarge_database(source)
    file = tmp_path / "backup.tar"
    assert run_command("backup", str(file), "--data", str(source)).exit_code == 0
    old = create_data(tmp_path / "old")
    (old / "samples" / "00000007.samples").write_bytes(b"older")
    for number in range(OTHER_FILES):
        (old / f"{number:04d}").touch()
    restored_files, old_files = list_files(source), list_files(old)

    def prepare_target(number: int) -> Path:
        target = tmp_path / f"target-{number}"
        if number % 2:
            shutil.copytree(old, target)
        return target

    def build_command(number: int) -> list[str]:
        return ["restore", str(file), "--data", str(prepare_target(number)), "--replace"]

    def list_current_files(target: Path) -> dict[str, bytes]:
        kept = ("before-", "restore-staging-")
        return {path: content for path, content in list_files(target).items() if not path.startswith(kept)}

    def check(number: int) -> None:
        target = tmp_path / f"target-{number}"
        if target.exists() and _is_usable(target) and (target / "meshfleet.sqlite").exists():
            assert list_current_files(target) in (restored_files, old_files)
        result = run_command("restore", str(file), "--data", str(target), "--replace")
        assert result.exit_code == 0, result.output
        assert list_current_files(target) == restored_files
        if number % 2:
            assert old_files in [list_files(path) for path in target.glob("before-*")]
        assert find_leftovers(target) == []
        shutil.rmtree(target)

    assert kill_at_moments(build_command, check) < KILLS // 2


def _is_usable(data: Path) -> bool:
    """Return whether the service would start with a directory."""
    try:
        check_restore_finished(data)
    except UnusableDataFolder:
        return False
    return True
