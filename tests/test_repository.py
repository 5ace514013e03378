"""Rules that all files of the repository follow."""

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


def _list_tracked(pattern: str) -> list[Path]:
    return [ROOT / name for name in _run("git", "ls-files", "-z", pattern).split("\0") if name]


def test_lock_files_contain_no_urls() -> None:
    locks = [*_list_tracked("*.lock"), *_list_tracked("*package-lock.json")]
    assert {lock.suffix for lock in locks} == {".lock", ".json"}
    assert [lock.name for lock in locks if "://" in lock.read_text()] == []


def test_every_locked_python_package_has_hashes() -> None:
    for lock in _list_tracked("*.lock"):
        text = lock.read_text()
        named = re.findall(r"^[a-z0-9][^ ]*==", text, re.MULTILINE)
        hashed = re.findall(r"^[a-z0-9][^ ]*==.*\\\n    --hash=sha256:[0-9a-f]{64}", text, re.MULTILINE)
        assert len(hashed) == len(named) > 0, lock.name


def test_every_locked_npm_package_has_a_hash() -> None:
    for lock in _list_tracked("*package-lock.json"):
        packages = json.loads(lock.read_text())["packages"]
        del packages[""]  # the directory itself
        assert packages
        # A bundled package is part of another one, and of its hash.
        separate = {name: package for name, package in packages.items() if not package.get("inBundle")}
        assert [name for name, package in separate.items() if "integrity" not in package] == []


def test_a_second_run_does_not_repeat_the_setup() -> None:
    assert "scripts/venv" not in _run("make", "--dry-run", "test")


def test_no_file_is_larger_than_one_mebibyte() -> None:
    assert [path.name for path in _list_tracked("*") if path.stat().st_size > 1 << 20] == []
