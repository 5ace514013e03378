"""What programs that tests have started log: a failing test shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_MAX_CHARACTERS: Final = 6000
"""Characters of each program's log, from its end."""

_logs: dict[Path, str] = {}
_start_sizes: dict[Path, int] = {}


def register_log(program: str, file: Path) -> Path:
    """Let tests that fail from now on show what this program writes into this file."""
    _logs[file] = program
    return file


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logstart() -> None:
    _start_sizes.clear()
    for file in list(_logs):
        try:
            _start_sizes[file] = file.stat().st_size
        except FileNotFoundError:
            del _logs[file]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        report.sections.extend(_log_sections())
    return report


def _log_sections() -> list[tuple[str, str]]:
    """What each program has written since the test began."""
    sections = []
    for file, program in _logs.items():
        try:
            with file.open("rb") as log:
                log.seek(_start_sizes.get(file, 0))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            continue
        if text.strip():
            sections.append((f"what {program} logged", text[-_MAX_CHARACTERS:]))
    return sections
