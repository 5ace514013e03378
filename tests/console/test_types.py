"""Test that the type check of the console finds errors, also against the generated API types."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.external_tools import NodePackage, require
from tests.node import NODE

CONSOLE = Path(__file__).parents[2] / "console"

VALID_COMPONENT = """<script lang="ts">
  import type { components } from "./generated/schema";

  const { device }: { device: components["schemas"]["Device"] } = $props();
</script>

<p>{device.id}</p>
"""
COMPONENTS = {
    "Sound": VALID_COMPONENT,
    "WrongField": VALID_COMPONENT.replace("device.id", "device.noSuchField"),
    "WrongWarning": VALID_COMPONENT.replace("<p>{device.id}</p>", "<img src={device.id}>"),
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory set up like the console, with components that contain errors."""
    require(NodePackage("svelte-check", CONSOLE, installer="scripts/build_console.py"))
    for name in ("node_modules", "package.json", "svelte.config.js"):
        (tmp_path / name).symlink_to(CONSOLE / name)
    (tmp_path / "generated").mkdir()
    document = tmp_path / "generated" / "openapi.json"
    document.write_bytes(subprocess.check_output([sys.executable, "-m", "meshfleet", "openapi"]))
    generator = CONSOLE / "node_modules" / "openapi-typescript" / "bin" / "cli.js"
    types = tmp_path / "generated" / "schema.d.ts"
    subprocess.run([NODE, generator, document, "--output", types], check=True, capture_output=True)
    settings = json.loads((CONSOLE / "tsconfig.json").read_text())
    (tmp_path / "tsconfig.json").write_text(json.dumps({**settings, "include": ["*.svelte"]}))
    for name, text in COMPONENTS.items():
        (tmp_path / f"{name}.svelte").write_text(text)
    return tmp_path


@pytest.mark.part("long")  # starts the whole compiler
def test_planted_errors_are_found_and_nothing_else(project: Path) -> None:
    words = json.loads((CONSOLE / "package.json").read_text())["scripts"]["check"].split()
    assert "--fail-on-warnings" in words
    program = CONSOLE / "node_modules" / words[0] / "bin" / words[0]
    checked = subprocess.run(
        [NODE, program, *words[1:], "--output", "machine"],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.returncode != 0
    found = set(re.findall(r'(ERROR|WARNING) "(\w+)\.svelte"', checked.stdout))
    assert found == {("ERROR", "WrongField"), ("WARNING", "WrongWarning")}, checked.stdout
    assert "noSuchField" in checked.stdout
