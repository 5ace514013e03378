"""Type checker in strict mode, as a user of the installed package runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_TIMEOUT = 300
"""Seconds for mypy, which may have to read the whole package again; only reached when it hangs."""

_CACHE = Path(__file__).parents[3] / ".mypy_cache" / "programs"
"""Results of mypy for the package, for the next run."""


def check_programs(directory: Path, programs: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the mypy error codes of each program, without the settings of this repository."""
    files = {f"program_{number}.py": name for number, name in enumerate(programs)}
    for file, name in files.items():
        (directory / file).write_text(programs[name], encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file=", f"--cache-dir={_CACHE}", *files],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        timeout=_TIMEOUT,
    )
    assert (result.returncode in {0, 1}, result.stderr) == (True, ""), result.stdout
    errors: dict[str, list[str]] = {name: [] for name in programs}
    for file, code in re.findall(r"^([^:]+):\d+: error: .*\[([a-z-]+)\]$", result.stdout, re.MULTILINE):
        errors[files[file]].append(code)  # mypy reports errors of the programs only
    assert sum(map(len, errors.values())) == result.stdout.count(": error: "), result.stdout
    return errors
