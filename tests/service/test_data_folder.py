"""The data directory: private, and held by one service at a time."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from meshfleet.errors.startup import UnusableFolder
from meshfleet.service.locks import hold_data_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534

IS_ROOT = os.geteuid() == 0
"""Root can give files away, and write everywhere; other users find something of root's, and cannot."""


@pytest.fixture(autouse=True)
def usual_umask() -> Iterator[None]:
    """What most systems let others do with new files."""
    before = os.umask(0o022)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refusal(folder: Path) -> str:
    with pytest.raises(UnusableFolder) as raised, hold_data_folder(folder):
        raise AssertionError("it was taken")
    return str(raised.value)


# --- Nobody else reads it ---


@pytest.mark.rule("rest-170")
def test_a_new_directory_and_what_lies_in_it_are_for_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with hold_data_folder(folder):
        assert mode(folder) == 0o700
        assert {mode(each) for each in folder.iterdir()} == {0o600}


def test_what_is_missing_above_it_is_made_as_usual(tmp_path: Path) -> None:
    folder = tmp_path / "var" / "lib" / "data"
    with hold_data_folder(folder):
        assert (mode(tmp_path / "var" / "lib"), mode(folder)) == (0o755, 0o700)


@pytest.mark.parametrize("found", [(), ("meshfleet.sqlite", "other"), ("meshfleet.lock",)])
def test_an_open_directory_that_is_empty_or_ours_is_shut(found: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(0o755)
    for name in found:
        (folder / name).touch()
    with hold_data_folder(folder):
        assert mode(folder) == 0o700


def test_an_open_directory_with_other_things_is_left_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "home"
    folder.mkdir(0o755)
    (folder / "letters.txt").touch()
    assert f"chmod 700 {folder}" in refusal(folder)
    assert (mode(folder), [each.name for each in folder.iterdir()]) == (0o755, ["letters.txt"])


def test_a_private_directory_with_other_things_is_taken(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir(0o700)
    (folder / "cert.pem").touch()
    with hold_data_folder(folder):
        assert (folder / "cert.pem").exists()


def test_an_open_directory_of_somebody_else_is_refused(tmp_path: Path) -> None:
    folder = Path("/usr")
    if IS_ROOT:
        folder = tmp_path / "data"
        folder.mkdir(0o755)
        os.chown(folder, NOBODY, NOBODY)
    assert "belongs to another user" in refusal(folder)
    assert mode(folder) == 0o755


# --- It must be one that can be used ---


def test_a_link_to_a_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir(0o755)
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    with hold_data_folder(tmp_path / "data"):
        assert mode(tmp_path / "disk") == 0o700


def test_what_is_no_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    for name in ("file", "nowhere"):
        assert refusal(tmp_path / name) == f"{tmp_path / name} is not a directory; choose another one with --data"


def test_a_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert str(tmp_path / "file") in refusal(tmp_path / "file" / "data")


_NOT_AS_ROOT = f"""
import os
from pathlib import Path
from meshfleet.service.locks import hold_data_folder
if os.geteuid() == 0:
    os.setuid({NOBODY})
with hold_data_folder(Path("data")):
    print("taken")
"""


@pytest.mark.parametrize("itself", [None, 0o500, 0o000])
def test_a_directory_that_cannot_be_written_is_refused(itself: int | None, tmp_path: Path) -> None:
    if itself is not None:
        (tmp_path / "data").mkdir(itself)
        if IS_ROOT:
            os.chown(tmp_path / "data", NOBODY, NOBODY)
    tmp_path.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", _NOT_AS_ROOT], cwd=tmp_path, capture_output=True, check=False, text=True
    )
    tmp_path.chmod(0o755)
    assert "UnusableFolder: the data directory data cannot be used: Permission denied" in done.stderr


# --- One service at a time ---


def test_a_directory_in_use_is_refused_until_it_is_free(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with hold_data_folder(folder):
        assert "in use by another meshfleet serve; stop that one" in refusal(folder)
        assert "in use" in refusal(folder)  # the refused one did not take the lock away
    with hold_data_folder(folder):
        pass


def test_an_error_inside_frees_the_directory(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), hold_data_folder(tmp_path):
        raise ZeroDivisionError
    with hold_data_folder(tmp_path):
        pass


_HOLDER = """
import sys
from pathlib import Path
from meshfleet.service.locks import hold_data_folder
with hold_data_folder(Path(sys.argv[1])):
    print("taken", flush=True)
    sys.stdin.read()
"""


def test_a_process_that_is_killed_frees_its_directory(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"taken\n"
        assert "in use" in refusal(tmp_path)
        holder.kill()
        holder.wait()
        with hold_data_folder(tmp_path):
            pass
