"""Logs of the programs that tests have started, shown when a test fails."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

_MAX_CHARACTERS: Final = 6000
"""Characters of each log that are shown, from its end."""

_logs: dict[Path, str] = {}
_start_sizes: dict[Path, int] = {}


def register_log(program: str, file: Path) -> Path:
    """Show what this program writes into this file when a test fails."""
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
        report.sections.extend(_collect_sections())
    return report


def _collect_sections() -> list[tuple[str, str]]:
    """Return the output of each program since the start of the test, with titles."""
    sections = []
    for file, program in _logs.items():
        try:
            with file.open("rb") as log:
                log.seek(_start_sizes.get(file, 0))
                text = log.read().decode(errors="replace")
        except FileNotFoundError:
            continue
        if text.strip():
            sections.append((f"log of {program}", text[-_MAX_CHARACTERS:]))
    return sections
