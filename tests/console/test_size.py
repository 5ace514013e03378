"""What a browser has to fetch before the first page is seen is little."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.external_tools import CONSOLE, require

if TYPE_CHECKING:
    from pathlib import Path

MOST_SCRIPT = 120_000
MOST_STYLE = 15_000
"""Bytes on the wire."""
MOST_FILES = 8
"""The start, what all pages share, the overview, and what each of them looks like."""

_CHART = "u-over"
"""A word that is in the code of every chart, and nowhere else."""

_REFERENCE = "dangerouslySetInnerHTML"
"""The same of React, which the reference of the REST interface brings along: the largest of all."""


@pytest.fixture(scope="module")
def site() -> Path:
    return require(CONSOLE).parent


@pytest.fixture(scope="module")
def first(site: Path) -> set[Path]:
    """What the start page names, the overview, and all that these import without being asked."""
    start = (site / "index.html").read_text()
    named = {site / name[1:] for name in re.findall(r'(?:src|href)="(/[^"]+\.(?:js|css))"', start)}
    waiting = (
        named | set((site / "assets").glob("Overview-*.js")) | set((site / "assets").glob("Overview-*.css"))
    )
    found: set[Path] = set()
    while waiting:
        path = waiting.pop()
        found.add(path)
        if path.suffix == ".js":
            imports = re.findall(r'(?:from|import)\s*"(\./[^"]+)"', path.read_text())
            waiting |= {(path.parent / name).resolve() for name in imports} - found
    return found


def test_the_first_page_needs_little(first: set[Path]) -> None:
    sizes = {
        kind: sum(_on_the_wire(path) for path in first if path.suffix == kind) for kind in (".js", ".css")
    }
    assert 20_000 < sizes[".js"] <= MOST_SCRIPT
    assert 1_000 < sizes[".css"] <= MOST_STYLE


def test_the_first_page_comes_in_few_pieces(first: set[Path]) -> None:
    assert 3 < len(first) <= MOST_FILES


def test_charts_come_later(first: set[Path]) -> None:
    assert any(path.name.startswith("Overview-") for path in first)
    assert [path.name for path in first if _CHART in path.read_text()] == []


def test_the_reference_comes_when_somebody_opens_it(first: set[Path], site: Path) -> None:
    having = {path for path in (site / "assets").glob("*.js") if _REFERENCE in path.read_text()}
    assert len(having) == 1  # in a chunk of its own: pages are fetched soon, it is not
    assert not having & first


def _on_the_wire(path: Path) -> int:
    return path.with_name(f"{path.name}.gz").stat().st_size
