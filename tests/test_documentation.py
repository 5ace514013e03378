"""The documentation site, built as `make docs` builds it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.part("documentation")

ROOT = Path(__file__).parent.parent

_LOADED = re.compile(r"""<(?:script|img|iframe|source)\b[^>]*\bsrc="([^"]+)"|<link\b[^>]*\bhref="([^"]+)\"""")
"""Addresses that a browser loads with a page, without a click."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the site. Broken links and pages that are not in the navigation are errors."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


def test_pages_load_nothing_from_other_servers(site: Path) -> None:
    loaded = {
        address: page.relative_to(site)
        for page in site.rglob("*.html")
        for addresses in _LOADED.findall(page.read_text())
        for address in addresses
        if "//" in address
    }
    assert loaded == {}


def test_marks_for_tests_are_not_shown(site: Path) -> None:
    assert [page.name for page in site.rglob("*.html") if "sh tested\n" in page.read_text()] == []


def test_the_reference_is_generated_from_the_program(site: Path) -> None:
    expected = {
        "cli": "--without-samples",
        "errors": "gateway-too-old",
        "metrics": "meshfleet_rejects",
        "sdk": "fleet.devices",
        "settings": "backup-before-migration",
    }
    pages = {name: (site / "reference" / f"{name}.html").read_text() for name in expected}
    assert [name for name, text in expected.items() if text not in pages[name]] == []
