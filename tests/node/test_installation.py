"""The packages that tests run in Node are installed once, completely, and as their lock says."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.external_tools import ASYNCAPI_PARSER, MQTTJS, NodePackage, require

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("part", [MQTTJS, ASYNCAPI_PARSER], ids=lambda part: part.package)
def test_the_installed_version_is_the_one_of_the_lock(part: NodePackage) -> None:
    installed = json.loads((require(part) / "package.json").read_text())
    lock = json.loads((part.folder / "package-lock.json").read_text())
    assert installed["version"] == lock["packages"][f"node_modules/{part.package}"]["version"]


def test_a_second_run_does_not_install_it_again() -> None:
    require(MQTTJS)
    make = shutil.which("make")
    assert make
    run = subprocess.run([make, "--dry-run", "test"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert "scripts/node" not in run.stdout


def test_half_an_installation_counts_as_nothing(tmp_path: Path) -> None:
    part = MQTTJS._replace(folder=tmp_path)
    (tmp_path / "node_modules" / "mqtt").mkdir(parents=True)
    assert part.find() is None
    (tmp_path / "node_modules" / ".package-lock.json").touch()
    assert part.find() == tmp_path / "node_modules" / "mqtt"
    assert ASYNCAPI_PARSER._replace(folder=tmp_path).find() is None
