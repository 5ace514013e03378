"""The data directory is private and locked by one service at a time."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.startup import UnusableDataFolder
from meshfleet.service.locks import lock_data_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

UNPRIVILEGED_ID = 65534

IS_ROOT = os.geteuid() == 0
"""Root can change owners and write everywhere; other users test with a directory of root."""


@pytest.fixture(autouse=True)
def default_umask() -> Iterator[None]:
    """Set the umask that most systems use."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def get_mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def get_refusal(folder: Path) -> str:
    with pytest.raises(UnusableDataFolder) as raised, lock_data_folder(folder):
        raise AssertionError("the directory was accepted")
    return str(raised.value)


# --- Private to its owner ---


@pytest.mark.rule("rest-170")
def test_a_new_directory_and_its_files_are_accessible_only_to_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with lock_data_folder(folder):
        assert get_mode(folder) == 0o700
        assert {get_mode(each) for each in folder.iterdir()} == {0o600}


def test_missing_parent_directories_are_created_with_default_permissions(tmp_path: Path) -> None:
    folder = tmp_path / "var" / "lib" / "data"
    with lock_data_folder(folder):
        assert (get_mode(tmp_path / "var" / "lib"), get_mode(folder)) == (0o755, 0o700)


@pytest.mark.parametrize("names", [(), ("meshfleet.sqlite", "other"), ("meshfleet.lock",)])
def test_an_accessible_directory_that_is_empty_or_ours_becomes_private(
    names: tuple[str, ...], tmp_path: Path
) -> None:
    folder = tmp_path / "data"
    folder.mkdir(0o755)
    for name in names:
        (folder / name).touch()
    with lock_data_folder(folder):
        assert get_mode(folder) == 0o700


def test_an_accessible_directory_with_foreign_files_is_refused_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir(0o755)
    (folder / "notes.txt").touch()
    assert f"chmod 700 {folder}" in get_refusal(folder)
    assert (get_mode(folder), [each.name for each in folder.iterdir()]) == (0o755, ["notes.txt"])


def test_a_private_directory_with_foreign_files_is_accepted(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(0o700)
    (folder / "cert.pem").touch()
    with lock_data_folder(folder):
        assert (folder / "cert.pem").exists()


def test_an_accessible_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = Path("/usr")
    if IS_ROOT:
        folder = tmp_path / "data"
        folder.mkdir(0o755)
        os.chown(folder, UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    assert "belongs to another user" in get_refusal(folder)
    assert get_mode(folder) == 0o755


# --- Usable directories ---


def test_a_link_to_a_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(0o755)
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    with lock_data_folder(tmp_path / "data"):
        assert get_mode(tmp_path / "disk") == 0o700


def test_a_path_that_is_not_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    for name in ("file", "nowhere"):
        assert (
            get_refusal(tmp_path / name)
            == f"{tmp_path / name} is not a directory; choose another one with --data"
        )


def test_a_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in get_refusal(tmp_path / "file" / "data")


_HOLD_WITHOUT_ROOT = f"""
import os
from pathlib import Path
from meshfleet.service.locks import lock_data_folder
if os.geteuid() == 0:
    os.setuid({UNPRIVILEGED_ID})
with lock_data_folder(Path("data")):
    print("locked")
"""


@pytest.mark.parametrize("permissions", [None, 0o500, 0o000])
def test_a_directory_that_cannot_be_written_is_refused(permissions: int | None, tmp_path: Path) -> None:
    if permissions is not None:
        (tmp_path / "data").mkdir(permissions)
        if IS_ROOT:
            os.chown(tmp_path / "data", UNPRIVILEGED_ID, UNPRIVILEGED_ID)
    tmp_path.chmod(0o555)
    result = subprocess.run(
        [sys.executable, "-c", _HOLD_WITHOUT_ROOT], cwd=tmp_path, capture_output=True, check=False, text=True
    )
    tmp_path.chmod(0o755)
    assert "UnusableDataFolder: the data directory data cannot be used: Permission denied" in result.stderr


# --- One service at a time ---


def test_a_locked_directory_is_refused_until_it_is_released(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with lock_data_folder(folder):
        assert "in use by another meshfleet serve; stop that service" in get_refusal(folder)
        assert "in use" in get_refusal(folder)  # a refused attempt does not release the lock
    with lock_data_folder(folder):
        pass


def test_an_error_inside_the_block_releases_the_directory(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), lock_data_folder(tmp_path):
        raise ZeroDivisionError
    with lock_data_folder(tmp_path):
        pass


_HOLDER = """
import sys
from pathlib import Path
from meshfleet.service.locks import lock_data_folder
with lock_data_folder(Path(sys.argv[1])):
    print("locked", flush=True)
    sys.stdin.read()
"""


def test_a_killed_process_releases_its_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        assert "in use" in get_refusal(tmp_path)
        holder.kill()
        holder.wait()
        with lock_data_folder(tmp_path):
            pass
