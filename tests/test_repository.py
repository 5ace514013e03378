"""What every file of the repository holds to."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def _run(*command: str) -> str:
    program = shutil.which(command[0])
    assert program
    return subprocess.run(
        [program, *command[1:]], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout


def _tracked(pattern: str) -> list[Path]:
    return [ROOT / name for name in _run("git", "ls-files", "-z", pattern).split("\0") if name]


def test_no_lock_names_an_address() -> None:
    locks = [*_tracked("*.lock"), *_tracked("*package-lock.json")]
    assert {lock.suffix for lock in locks} == {".lock", ".json"}
    assert [lock.name for lock in locks if "://" in lock.read_text()] == []


def test_every_locked_package_has_hashes() -> None:
    for lock in _tracked("*.lock"):
        text = lock.read_text()
        named = re.findall(r"^[a-z0-9][^ ]*==", text, re.MULTILINE)
        hashed = re.findall(r"^[a-z0-9][^ ]*==.*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
        assert len(hashed) == len(named) > 0, lock.name


def test_every_locked_package_of_npm_has_a_hash() -> None:
    for lock in _tracked("*package-lock.json"):
        packages = json.loads(lock.read_text())["packages"]
        del packages[""]  # the folder itself
        assert packages
        assert [name for name, package in packages.items() if "integrity" not in package] == []


def test_a_second_run_does_no_set_up_again() -> None:
    assert "scripts/venv" not in _run("make", "--dry-run", "test")


def test_no_file_is_larger_than_a_mebibyte() -> None:
    assert [path.name for path in _tracked("*") if path.stat().st_size > 1 << 20] == []
