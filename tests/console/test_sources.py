"""Rules for all sources of the console."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAX_LINES = 400
"""Maximum number of lines; half of it is better."""

NAMESPACE_URLS = {"http://www.w3.org/2000/svg"}
"""URLs that are only names and are never requested."""

FORBIDDEN = {
    "style in an attribute, against the policy": (r"\bstyle=", '<p style="color: red">'),
    "handler in an attribute, against the policy": (r"<[^>{]*\son[a-z]+=\"", '<button onclick="go()">'),
    "markup from a string": (r"\{@html|innerHTML|insertAdjacentHTML|document\.write", "{@html name}"),
    "code from a string": (r"\beval\(|new Function\(", "eval(text)"),
    "side of a box, another one in other scripts": (
        r"(?:margin|padding|border|inset)-(?:left|right)\b",
        "p { margin-left: 1px }",
    ),
    "side of a place": (r"(?m)^\s*(?:left|right): .*;$", "p {\n  left: 0;\n}"),
    "side of a text": (r"(?:text-align|float): (?:left|right)", "p { text-align: right }"),
}
"""Forbidden patterns, each with an example that it must match."""


def _list_tracked_files(*patterns: str) -> list[Path]:
    git = shutil.which("git")
    assert git
    found = subprocess.run(
        [git, "ls-files", "-z", *patterns], cwd=ROOT, check=True, capture_output=True, text=True
    )
    return [ROOT / name for name in found.stdout.split("\0") if name]


def _read_sources() -> dict[str, str]:
    paths = _list_tracked_files("console/src", "console/public", "console/index.html", "console/*.ts")
    return {str(path.relative_to(ROOT)): path.read_text("utf-8") for path in paths}


@pytest.mark.parametrize(("pattern", "example"), list(FORBIDDEN.values()), ids=FORBIDDEN)
def test_no_source_contains_a_forbidden_pattern(pattern: str, example: str) -> None:
    assert re.search(pattern, example)
    assert [name for name, text in _read_sources().items() if re.search(pattern, text)] == []


def test_no_source_refers_to_another_host() -> None:
    named = {
        (name, address)
        for name, text in _read_sources().items()
        if name != "console/vite.config.ts"  # names the service on this machine
        for address in re.findall(r"(?:https?|wss?)://[^\s\"'`<>)]*", text)
    }
    assert {each for each in named if each[1] not in NAMESPACE_URLS} == set()


def test_no_source_is_long() -> None:
    sources = _read_sources()
    assert sources
    assert [name for name, text in sources.items() if text.count("\n") > MAX_LINES] == []


def test_no_built_or_third_party_files_are_tracked() -> None:
    scripts = _list_tracked_files("*.js", "*.mjs", "*.cjs", "*.css", "*.map", "*.gz", "*.woff2", "*.d.ts")
    folders = {path.relative_to(ROOT).as_posix() for path in scripts}
    ours = ("console/src/", "console/public/theme.js", "console/svelte.config.js", "tests/node/")
    assert [name for name in folders if not name.startswith(ours)] == []
    assert (
        _list_tracked_files("src/meshfleet/service/console/site", "console/generated", "*node_modules*") == []
    )
