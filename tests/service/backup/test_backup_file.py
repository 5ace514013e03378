"""Names of backup files: none is replaced, and only files of killed backups are removed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from errno import EPERM
from typing import TYPE_CHECKING

import pytest

from meshfleet.service.backup.backup_file import create_unfinished_file, rename_finished_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def refuse_link(_source: Path, _target: Path) -> None:
    """Fail like a file system without hard links."""
    raise PermissionError(EPERM, os.strerror(EPERM))


def test_a_file_gets_its_name_also_without_hard_links_and_replaces_none(tmp_path: Path) -> None:
    links: tuple[Callable[[Path, Path], None], ...] = (os.link, refuse_link)
    for number, link in enumerate(links):
        target = tmp_path / f"{number}.tar"
        for content in (b"first", b"second"):
            with create_unfinished_file(tmp_path) as unfinished:
                unfinished.file.write(content)
                unfinished.file.flush()
                if content == b"first":
                    rename_finished_file(unfinished.path, target, link=link)
                else:
                    with pytest.raises(FileExistsError):
                        rename_finished_file(unfinished.path, target, link=link)
        assert target.read_bytes() == b"first"
        assert target.stat().st_mode & 0o777 == 0o600
    assert len(list(tmp_path.iterdir())) == 2


def test_what_is_no_file_of_a_killed_backup_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".meshfleet-backup-pipe")
    (tmp_path / ".meshfleet-backup-link").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").touch()
    (tmp_path / ".meshfleet-backup-killed").touch()
    before = set(tmp_path.iterdir())
    with create_unfinished_file(tmp_path) as unfinished, create_unfinished_file(tmp_path):
        assert unfinished.path.exists()
    assert before - set(tmp_path.iterdir()) == {tmp_path / ".meshfleet-backup-killed"}


def test_backups_to_one_directory_leave_the_files_of_each_other(tmp_path: Path) -> None:
    def create_files(_: int) -> bool:
        with create_unfinished_file(tmp_path) as unfinished:
            return unfinished.path.exists()

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(create_files, range(400)))
    assert list(tmp_path.iterdir()) == []
