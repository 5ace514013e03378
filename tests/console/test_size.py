"""Tests of the size of the first page."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.external_tools import CONSOLE, require

if TYPE_CHECKING:
    from pathlib import Path

MAX_SCRIPT_BYTES = 120_000
MAX_STYLE_BYTES = 15_000
"""Maximum compressed size in bytes."""
MAX_FILES = 8
"""Maximum number of files: the entry, shared code, the overview, and their styles."""

_CHART_MARKER = "u-over"
"""Text in the code of every chart, and nowhere else."""

_REFERENCE_MARKER = "dangerouslySetInnerHTML"
"""Text in the code of React, which only the REST reference uses, the largest part."""


@pytest.fixture(scope="module")
def site() -> Path:
    return require(CONSOLE).parent


@pytest.fixture(scope="module")
def first_files(site: Path) -> set[Path]:
    """Return the files that the start page loads: its entry, the overview, and their static imports."""
    start = (site / "index.html").read_text()
    named = {site / name[1:] for name in re.findall(r'(?:src|href)="(/[^"]+\.(?:js|css))"', start)}
    pending = (
        named | set((site / "assets").glob("Overview-*.js")) | set((site / "assets").glob("Overview-*.css"))
    )
    found: set[Path] = set()
    while pending:
        path = pending.pop()
        found.add(path)
        if path.suffix == ".js":
            imports = re.findall(r'(?:from|import)\s*"(\./[^"]+)"', path.read_text())
            pending |= {(path.parent / name).resolve() for name in imports} - found
    return found


def test_the_first_page_is_small(first_files: set[Path]) -> None:
    sizes = {
        kind: sum(_compressed_size(path) for path in first_files if path.suffix == kind)
        for kind in (".js", ".css")
    }
    assert 20_000 < sizes[".js"] <= MAX_SCRIPT_BYTES
    assert 1_000 < sizes[".css"] <= MAX_STYLE_BYTES


def test_the_first_page_needs_few_files(first_files: set[Path]) -> None:
    assert 3 < len(first_files) <= MAX_FILES


def test_the_first_page_contains_no_charts(first_files: set[Path]) -> None:
    assert any(path.name.startswith("Overview-") for path in first_files)
    assert [path.name for path in first_files if _CHART_MARKER in path.read_text()] == []


def test_the_reference_is_loaded_on_demand(first_files: set[Path], site: Path) -> None:
    chunks = {path for path in (site / "assets").glob("*.js") if _REFERENCE_MARKER in path.read_text()}
    assert len(chunks) == 1  # a chunk of its own, which is not prefetched like pages
    assert not chunks & first_files


def _compressed_size(path: Path) -> int:
    return path.with_name(f"{path.name}.gz").stat().st_size
