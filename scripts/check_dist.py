"""Checks the files of a release: installs the wheel in an empty environment, and runs the README there.

python scripts/check_dist.py dist
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).parent.parent
PASSWORD: Final = "correct-horse-battery"  # noqa: S105 # of a service that lives for seconds
TESTED_BLOCK: Final = re.compile(r"^```sh tested\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MUST_CONTAIN: Final = (
    "meshfleet/service/console/site/index.html",
    "meshfleet/deploy/systemd/meshfleet.service",
    "meshfleet/deploy/container/Containerfile",
    "meshfleet/deploy/nginx/meshfleet.conf",
    "meshfleet/deploy/caddy/Caddyfile",
    "meshfleet/deploy/prometheus/alerts.yml",
    "meshfleet/deploy/grafana/fleet.json",
    "meshfleet/deploy/grafana/provisioning/datasources/meshfleet.yaml",
    "meshfleet/py.typed",
    ".data/data/share/man/man1/meshfleet.1",
)
"""Ends of the names of files that a wheel must contain."""

NO_INDEX: Final = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "", "npm_config_registry": "http://127.0.0.1:9"}
"""Variables with which neither pip nor npm can download anything."""


def main() -> None:
    """Check the wheel and the source distribution in the given directory."""
    folder = Path(sys.argv[1]).resolve()
    (wheel,) = folder.glob("*.whl")
    (source,) = folder.glob("*.tar.gz")
    names = _check_contents(wheel)
    with TemporaryDirectory(prefix="meshfleet-dist-") as temporary:
        _check_source(source, names, Path(temporary) / "source")
        programs = _install(wheel, Path(temporary) / "environment")
        _run_readme(programs, Path(temporary))
    print(f"{wheel.name} and {source.name} can be released")


def _check_contents(wheel: Path) -> list[str]:
    """Return the names of all files in a wheel. Exit if one is missing."""
    with zipfile.ZipFile(wheel) as archive:
        names = sorted(archive.namelist())
    if missing := [end for end in MUST_CONTAIN if not any(name.endswith(end) for name in names)]:
        sys.exit(f"{wheel.name} has no {', '.join(missing)}")
    return names


def _check_source(source: Path, expected: list[str], folder: Path) -> None:
    """Build a wheel from the source distribution, without a network. It must contain the same files."""
    with tarfile.open(source) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    _run(*command, cwd=unpacked, **NO_INDEX)
    (built,) = folder.glob("*.whl")
    if different := set(_check_contents(built)) ^ set(expected):
        sys.exit(f"{source.name} builds another wheel: {', '.join(sorted(different))}")


def _install(wheel: Path, environment: Path) -> Path:
    """Install a wheel in an empty environment, as its users do. Return the directory of its programs."""
    uv = ROOT / ".tools" / "bin" / "uv"
    _run(
        str(uv) if uv.exists() else "uv",
        "venv",
        "--quiet",
        "--seed",
        "--python",
        sys.executable,
        str(environment),
    )
    programs = environment / "bin"
    _run(str(programs / "pip"), "install", "--quiet", str(wheel))
    _run(str(programs / "pip"), "check")
    return programs


def _run_readme(programs: Path, folder: Path) -> None:
    """Start a service as README.md does, and run its marked commands."""
    commands = "".join(TESTED_BLOCK.findall((ROOT / "README.md").read_text("utf-8")))
    if "meshfleet login" not in commands:
        sys.exit("README.md has no marked block of commands with meshfleet login")
    with _serve_demo(programs, folder) as url:
        is_connected = "meshfleet devices list --connected --json | grep -q ca5bda1a0004"
        wait = f"until {is_connected}; do sleep 1; done"
        login, _, others = commands.partition("\n")
        variables = {"URL": url, "XDG_CONFIG_HOME": str(folder), "MESHFLEET_PASSWORD": PASSWORD}
        path = f"{programs}:{os.environ['PATH']}"
        _run("bash", "-euxc", f"{login}\n{wait}\n{others}", cwd=folder, PATH=path, **variables)


@contextmanager
def _serve_demo(programs: Path, folder: Path) -> Iterator[str]:
    """Run `meshfleet serve --demo` on free ports. Yield its URL."""
    command = [str(programs / "meshfleet"), "serve", "--demo", "--json", "--http", "127.0.0.1:0"]
    variables = {**os.environ, "MESHFLEET_MQTT": "127.0.0.1:0", "MESHFLEET_ADMIN_PASSWORD": PASSWORD}
    with subprocess.Popen(command, cwd=folder, env=variables, stdout=subprocess.PIPE, text=True) as service:
        try:
            line = service.stdout.readline() if service.stdout else ""
            if not line:
                sys.exit("meshfleet serve --demo ended at once")
            yield json.loads(line)["url"]
        finally:
            service.terminate()


def _run(*command: str, cwd: Path | None = None, **variables: str) -> None:
    """Run a program. Exit if it fails."""
    result = subprocess.run(command, cwd=cwd, env={**os.environ, **variables}, check=False, timeout=900)
    if result.returncode:
        sys.exit(f"{' '.join(command[:4])} … failed with exit code {result.returncode}")


if __name__ == "__main__":
    main()
