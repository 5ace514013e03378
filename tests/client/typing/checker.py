"""A type checker in strict mode, as a user of the installed package runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_LONGEST = 300
"""Seconds for mypy, which may have to read the whole package anew; reached only when it hangs."""

_KNOWN = Path(__file__).parents[3] / ".mypy_cache" / "programs"
"""What it has read of the package, for the next time."""


def mistakes(folder: Path, programs: Mapping[str, str]) -> dict[str, list[str]]:
    """What is wrong with each program, in the codes of mypy, without any settings of this repository."""
    files = {f"program_{number}.py": name for number, name in enumerate(programs)}
    for file, name in files.items():
        (folder / file).write_text(programs[name], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={_KNOWN}", *files],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        timeout=_LONGEST,
    )
    assert (done.returncode in {0, 1}, done.stderr) == (True, ""), done.stdout
    found: dict[str, list[str]] = {name: [] for name in programs}
    for file, code in re.findall(r"^([^:]+):\d+: error: .*\[([a-z-]+)\]$", done.stdout, re.MULTILINE):
        found[files[file]].append(code)  # elsewhere than in a program there is nothing to be found
    assert sum(map(len, found.values())) == done.stdout.count(": error: "), done.stdout
    return found
