"""Whoever installs the package gets the console, without Node, npm, git or a network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.external_tools import CONSOLE, require

ROOT = Path(__file__).parents[2]
SITE = "meshfleet/service/console/site"


@pytest.fixture(scope="module")
def site() -> dict[str, bytes]:
    """Every file that was built."""
    folder = require(CONSOLE).parent
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def unpacked(site: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sources as they are published."""
    assert site
    folder = tmp_path_factory.mktemp("packed")
    _pack(ROOT, "sdist", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder / "unpacked", filter="data")
    (found,) = (folder / "unpacked").iterdir()
    return found


@pytest.mark.part("long")
def test_published_sources_have_the_console_and_what_it_is_built_from(
    unpacked: Path, site: dict[str, bytes]
) -> None:
    assert _inside(unpacked / "src" / SITE) == site
    there = set(_inside(unpacked / "console"))
    assert {"package.json", "package-lock.json", ".npmrc", "index.html", "src/main.ts"} <= there
    assert [name for name in there if name.startswith(("node_modules", "generated"))] == []
    assert {path.name for path in unpacked.iterdir() if path.is_dir()} == {"console", "scripts", "src"}


@pytest.mark.part("long")
def test_they_are_installed_without_building_the_console_again(
    unpacked: Path, site: dict[str, bytes], tmp_path: Path
) -> None:
    _pack(unpacked, "wheel", tmp_path, PATH="", npm_config_registry="http://127.0.0.1:9")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if name.startswith(f"{SITE}/")]
        packed = {name.removeprefix(f"{SITE}/"): file.read(name) for name in names}
        others = [name for name in file.namelist() if not name.startswith(("meshfleet/", "meshfleet-"))]
    assert packed == site
    assert others == []
    assert not (unpacked / "console" / "node_modules").exists()


def test_what_others_wrote_comes_with_their_licences(site: dict[str, bytes]) -> None:
    used = json.loads((ROOT / "console" / "package.json").read_text("utf-8"))["dependencies"]
    told = site["licenses.md"].decode()
    for name in [*used, "svelte"]:  # which is compiled into every page
        if name.startswith("@fontsource-variable/"):
            assert b"SIL OPEN FONT LICENSE" in site[f"license-{name.rpartition('/')[2]}.txt"]
        else:
            _, _, text = told.partition(f"\n## {name} - ")
            assert "copyright" in text.partition("\n## ")[0].lower(), name
    # The component is a bundle itself: of these nobody else tells.
    assert b"@license React" in site["license-swagger-ui-bundle.txt"]


def _pack(root: Path, target: str, into: Path, **variables: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)]
    subprocess.run(command, cwd=root, env={**os.environ, **variables}, check=True, capture_output=True)


def _inside(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
