"""Programs that tests use and pip cannot install: where they are, and which packages have them.

python -m tests.external_tools        prints the Debian packages of the programs that `make test` misses
python -m tests.external_tools all    also of those that only `make test-all` uses
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest


class SystemProgram(NamedTuple):
    """Program that tests start, or a file that such a program reads."""

    package: str
    commands: tuple[str, ...]
    folders: tuple[str, ...] = ()
    """Further directories, as patterns below the root. The newest of several versions is used."""
    access: int = os.X_OK
    """Required access: to execute it, or only to read it."""
    instead: str = ""
    """Package to install on systems that do not have the first one."""

    def find(self) -> Path | None:
        """Return the path of the program on this machine; None if it is missing."""
        for command in self.commands:
            if found := shutil.which(command):
                return Path(found)
            candidates = (path for folder in self.folders for path in Path("/").glob(f"{folder}/{command}"))
            if usable := [path for path in candidates if os.access(path, self.access)]:
                return max(usable, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))])
        return None

    @property
    def missing_message(self) -> str:
        """Message for a missing program, with the command to install it."""
        alternative = f", or {self.instead} where that does not exist" if self.instead else ""
        return f"{self.commands[0]} is not installed: apt-get install {self.package}{alternative}"


class NodePackage(NamedTuple):
    """npm package that tests run with Node, in a directory with its lock file."""

    package: str
    folder: Path = Path(__file__).parent / "node"
    installer: str = "scripts/node tests/node"

    def find(self) -> Path | None:
        """Return the path of the package in this clone; None if it is missing or incomplete.

        npm writes .package-lock.json last, so without it the installation is incomplete.
        """
        modules = self.folder / "node_modules"
        is_complete = (modules / ".package-lock.json").exists() and (modules / self.package).exists()
        return modules / self.package if is_complete else None

    @property
    def missing_message(self) -> str:
        """Message for a missing package, with the command to install it."""
        return f"npm's package {self.package} is not installed: {self.installer}"


class PythonEnvironment(NamedTuple):
    """Virtual environment with a program that needs other versions of packages than the tests."""

    package: str
    folder: Path
    installer: str

    def find(self) -> Path | None:
        """Return the path of its interpreter; None if the package is missing."""
        interpreter = self.folder / "bin" / "python"
        is_complete = any(self.folder.glob(f"lib/python3*/site-packages/{self.package}/__init__.py"))
        return interpreter if is_complete and interpreter.exists() else None

    @property
    def missing_message(self) -> str:
        """Message for a missing environment, with the command to create it."""
        return f"{self.package} is not installed: {self.installer}"


class ConsoleBuild(NamedTuple):
    """Console, built from the sources of this clone."""

    root: Path = Path(__file__).parents[1]

    def find(self) -> Path | None:
        """Return the path of its first page; None if it is not built, or from other sources."""
        builder = self.root / "scripts" / "build_console.py"
        built = runpy.run_path(str(builder))
        is_fresh = built["built_from"](self.root) == built["digest"](self.root)
        return self.root / built["SITE"] / "index.html" if is_fresh else None

    @property
    def missing_message(self) -> str:
        """Message for a missing or outdated build, with the command to build it."""
        return "the console is not built, or not from these sources: scripts/build_console.py"


MOSQUITTO = SystemProgram("mosquitto", ("mosquitto",), ("usr/sbin", "usr/local/sbin"))
MOSQUITTO_PASSWD = SystemProgram("mosquitto", ("mosquitto_passwd",))
MOSQUITTO_RULES = SystemProgram(
    "mosquitto", ("mosquitto_dynamic_security.so",), ("usr/lib/*", "usr/lib"), os.R_OK
)
MOSQUITTO_PUB = SystemProgram("mosquitto-clients", ("mosquitto_pub",))
MOSQUITTO_SUB = SystemProgram("mosquitto-clients", ("mosquitto_sub",))
POSTGRESQL = SystemProgram("postgresql", ("postgres",), ("usr/lib/postgresql/*/bin",))
BASH = SystemProgram("bash", ("bash",))
CURL = SystemProgram("curl", ("curl",))
JQ = SystemProgram("jq", ("jq",))
MAKE = SystemProgram("make", ("make",))
CHROMIUM = SystemProgram(
    "chromium-headless-shell",
    ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"),
    instead="chromium",
)
"""Preferably the headless shell: it renders the same pages with a third less CPU time.

With Chromium's feature RenderDocument its pages crash when a link is opened in a new tab: in 12 of 14 runs
with version 150, and in none of 30 without. tests/browser/conftest.py switches it off.
"""

SYSTEM_PROGRAMS = (
    MOSQUITTO,
    MOSQUITTO_PASSWD,
    MOSQUITTO_RULES,
    MOSQUITTO_PUB,
    MOSQUITTO_SUB,
    POSTGRESQL,
    BASH,
    CURL,
    JQ,
    MAKE,
    CHROMIUM,
)

SYSTEMD_ANALYZE = SystemProgram("systemd", ("systemd-analyze",))
NGINX = SystemProgram("nginx", ("nginx",), ("usr/sbin", "usr/local/sbin"))
NGINX_STREAM = SystemProgram(
    "libnginx-mod-stream",
    ("ngx_stream_module.so",),
    ("usr/lib/nginx/modules", "usr/share/nginx/modules"),
    os.R_OK,
)
CADDY = SystemProgram("caddy", ("caddy",))
BUILDAH = SystemProgram("buildah", ("buildah",))
PODMAN = SystemProgram("podman", ("podman",))
RUNC = SystemProgram("runc", ("runc",), ("usr/sbin",))
MMDEBSTRAP = SystemProgram("mmdebstrap", ("mmdebstrap",))
INFLUXD = SystemProgram("influxdb", ("influxd",))
PROMETHEUS = SystemProgram("prometheus", ("prometheus",))
PROMTOOL = SystemProgram("prometheus", ("promtool",))
ALERTMANAGER = SystemProgram("prometheus-alertmanager", ("prometheus-alertmanager", "alertmanager"))

DEPLOYMENT_PROGRAMS = (
    SYSTEMD_ANALYZE,
    NGINX,
    NGINX_STREAM,
    CADDY,
    BUILDAH,
    PODMAN,
    RUNC,
    MMDEBSTRAP,
    PROMETHEUS,
    PROMTOOL,
    ALERTMANAGER,
    INFLUXD,
)
"""Programs that only `make test-all` uses."""

MQTTJS = NodePackage("mqtt")
NODE_RED = NodePackage("node-red", Path(__file__).parent / "node_red", "scripts/node tests/node_red")
ASYNCAPI_PARSER = NodePackage("@asyncapi/parser")
AXE = NodePackage("axe-core")
CONSOLE = ConsoleBuild()
HOME_ASSISTANT = PythonEnvironment(
    "homeassistant", Path(__file__).parents[1] / ".venv-homeassistant", "scripts/venv homeassistant"
)


def require(tool: SystemProgram | NodePackage | PythonEnvironment | ConsoleBuild) -> Path:
    """Return the path of a program. If it is missing, skip the test with a message; with CI=true fail it."""
    if found := tool.find():
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(tool.missing_message)
    pytest.skip(tool.missing_message)


if __name__ == "__main__":
    programs = (*SYSTEM_PROGRAMS, *(DEPLOYMENT_PROGRAMS if "all" in sys.argv else ()))
    print(*sorted({each.package for each in programs if each.find() is None}))  # noqa: T201 # for scripts/parts
