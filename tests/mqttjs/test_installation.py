"""mqtt.js is installed once, whole, and as its lock says."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from tests.parts import MQTTJS, need

ROOT = Path(__file__).parents[2]


def test_the_installed_version_is_the_one_of_the_lock() -> None:
    installed = json.loads((need(MQTTJS) / "package.json").read_text())
    lock = json.loads((MQTTJS.folder / "package-lock.json").read_text())
    assert installed["version"] == lock["packages"]["node_modules/mqtt"]["version"]


def test_a_second_run_does_not_install_it_again() -> None:
    need(MQTTJS)
    make = shutil.which("make")
    assert make
    run = subprocess.run([make, "--dry-run", "test"], cwd=ROOT, check=True, capture_output=True, text=True)
    assert "scripts/mqttjs" not in run.stdout


def test_half_an_installation_counts_as_nothing(tmp_path: Path) -> None:
    part = MQTTJS._replace(folder=tmp_path)
    (tmp_path / "node_modules" / "mqtt").mkdir(parents=True)
    assert part.find() is None
    (tmp_path / "node_modules" / ".package-lock.json").touch()
    assert part.find() == tmp_path / "node_modules" / "mqtt"
