"""Upgrades: the service starts on the data of every release, and returns what that release returned."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from tests.release_data import DATABASES, FOLDER, find_differences, load_answers, run_release
from tests.row_tables import each_row

if TYPE_CHECKING:
    from pathlib import Path

CHANGELOG = FOLDER.parent.parent / "CHANGELOG.md"
RELEASED = re.findall(r"^## (\d+\.\d+\.\d+) \(\d{4}-\d\d-\d\d\)$", CHANGELOG.read_text(), re.MULTILINE)
KEPT = sorted(path for path in FOLDER.glob("*") if path.is_dir())


def test_the_data_of_every_release_is_kept() -> None:
    """Fails from the moment on at which the changelog has the date of a version."""
    files = {f"{name}.{kind}" for name in DATABASES for kind in ("tar.xz", "json")}
    incomplete = [each for each in RELEASED if {path.name for path in (FOLDER / each).glob("*")} != files]
    assert incomplete == [], "run make release-data at the commit of the release"


@pytest.mark.parametrize(
    "database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.part("databases"))]
)
def test_the_data_of_each_release_is_upgraded(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    server = request.getfixturevalue("postgresql_server") if database == "postgresql" else None
    differences = {}
    for release in KEPT:
        expected = json.loads((release / f"{database}.json").read_text())
        source = release / f"{database}.tar.xz"
        with run_release(tmp_path / release.name, database, server, source, "--mqtt", "off") as service:
            differences[release.name] = find_differences(expected, load_answers(service, list(expected)))
    assert differences == {release.name: [] for release in KEPT}


_SAMPLE = {"time": "2026-11-15T10:00:00Z", "value": 4.25}


@each_row(
    ("expected", "found", "differences"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, []),
        ({"a": 1}, {"b": 2}, [".a"]),
        ({"a": {"b": 1}}, {"a": {"b": 2}}, [".a.b: 2, not 1"]),
        ([1, 3], [1, 3], []),
        ([3, 1], [1, 3], ["[0]: 1, not 3", "[1]: 3, not 1"]),
        ([1, 3], [1, 2, 3], [": 3 items, not 2"]),
        ([1, 2, 3], [1, 3], [": 2 items, not 3"]),
        ({"items": [_SAMPLE]}, {"items": [_SAMPLE, _SAMPLE]}, [".items: 2 items, not 1"]),
        ([{"a": 1}], [{"a": 1, "b": 0}], []),
        ([{"a": 1}], [{"a": 2}], ["[0].a: 2, not 1"]),
        ([1], None, [": None, not [1]"]),
    ],
)
def test_a_missing_different_or_doubled_value_is_found(
    expected: object, found: object, differences: list[str]
) -> None:
    assert find_differences(expected, found) == differences
