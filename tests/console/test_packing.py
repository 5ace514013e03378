"""Tests that the installed package contains the console, without Node, npm, git or a network."""

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
    """Return the built files by path."""
    folder = require(CONSOLE).parent
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture(scope="module")
def unpacked(site: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the unpacked source distribution."""
    assert site
    folder = tmp_path_factory.mktemp("packed")
    _pack(ROOT, "sdist", folder)
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(folder / "unpacked", filter="data")
    (found,) = (folder / "unpacked").iterdir()
    return found


@pytest.mark.part("long")
def test_the_source_distribution_contains_the_console_and_its_sources(
    unpacked: Path, site: dict[str, bytes]
) -> None:
    assert _read_files(unpacked / "src" / SITE) == site
    files = set(_read_files(unpacked / "console"))
    assert {"package.json", "package-lock.json", ".npmrc", "index.html", "src/main.ts"} <= files
    assert [name for name in files if name.startswith(("node_modules", "generated"))] == []
    assert {path.name for path in unpacked.iterdir() if path.is_dir()} == {
        "console",
        "docs",
        "scripts",
        "src",
    }


@pytest.mark.part("long")
def test_the_source_distribution_is_installed_without_another_build(
    unpacked: Path, site: dict[str, bytes], tmp_path: Path
) -> None:
    _pack(unpacked, "wheel", tmp_path, PATH="", npm_config_registry="http://127.0.0.1:9")
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as file:
        names = [name for name in file.namelist() if name.startswith(f"{SITE}/")]
        packed = {name.removeprefix(f"{SITE}/"): file.read(name) for name in names}
        others = [name for name in file.namelist() if not name.startswith(("meshfleet/", "meshfleet-"))]
        pages = [name for name in file.namelist() if name.endswith(".data/data/share/man/man1/meshfleet.1")]
        deployed = {name.split("/")[2] for name in file.namelist() if name.startswith("meshfleet/deploy/")}
    assert packed == site
    assert others == []
    assert len(pages) == 1
    kinds = {"caddy", "container", "grafana", "mosquitto", "nginx", "node-red", "prometheus", "systemd"}
    assert deployed == kinds
    assert not (unpacked / "console" / "node_modules").exists()


def test_a_wheel_that_lacks_a_file_cannot_be_released(tmp_path: Path) -> None:
    (tmp_path / "meshfleet-0.tar.gz").touch()
    with zipfile.ZipFile(tmp_path / "meshfleet-0.whl", "w") as wheel:
        wheel.writestr(f"{SITE}/index.html", "")
    command = [sys.executable, str(ROOT / "scripts" / "check_dist.py"), str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("meshfleet-0.whl has no meshfleet/deploy/systemd/meshfleet.service, ")
    assert result.stderr.endswith("man/man1/meshfleet.1\n")


def test_licenses_of_dependencies_are_included(site: dict[str, bytes]) -> None:
    used = json.loads((ROOT / "console" / "package.json").read_text("utf-8"))["dependencies"]
    licenses = site["licenses.md"].decode()
    for name in [*used, "svelte"]:  # Svelte is compiled into every page
        if name.startswith("@fontsource-variable/"):
            assert b"SIL OPEN FONT LICENSE" in site[f"license-{name.rpartition('/')[2]}.txt"]
        else:
            _, _, text = licenses.partition(f"\n## {name} - ")
            assert "copyright" in text.partition("\n## ")[0].lower(), name
    # Swagger UI is a bundle itself: its licenses are listed nowhere else.
    assert b"@license React" in site["license-swagger-ui-bundle.txt"]


def _pack(root: Path, target: str, into: Path, **variables: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(into)]
    subprocess.run(command, cwd=root, env={**os.environ, **variables}, check=True, capture_output=True)


def _read_files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }
