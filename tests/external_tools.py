"""The real parts that tests use and pip cannot bring: where they are, and what brings them.

python -m tests.external_tools      prints the Debian packages of the parts that are missing
"""

from __future__ import annotations

import os
import re
import runpy
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest


class SystemProgram(NamedTuple):
    """A program that tests start, or a file that such a program reads."""

    package: str
    commands: tuple[str, ...]
    folders: tuple[str, ...] = ()
    """Where else it may be, as patterns below the root; of several versions the newest is taken."""
    access: int = os.X_OK
    """What must be allowed: to run it, or only to read it."""
    instead: str = ""
    """The package to install on systems that do not have the first one."""

    def find(self) -> Path | None:
        """Where it is on this machine."""
        for command in self.commands:
            if found := shutil.which(command):
                return Path(found)
            places = (path for folder in self.folders for path in Path("/").glob(f"{folder}/{command}"))
            if there := [path for path in places if os.access(path, self.access)]:
                return max(there, key=lambda path: [int(number) for number in re.findall(r"\d+", str(path))])
        return None

    @property
    def missing_message(self) -> str:
        """What to say where it is missing."""
        instead = f", or {self.instead} where that does not exist" if self.instead else ""
        return f"{self.commands[0]} is not installed: apt-get install {self.package}{instead}"


class NodePackage(NamedTuple):
    """A package of npm that tests run with Node, in a folder that has its lock."""

    package: str
    folder: Path = Path(__file__).parent / "node"
    installer: str = "scripts/node"

    def find(self) -> Path | None:
        """Where it is in this clone; npm writes its own note last, so half of it counts as nothing."""
        modules = self.folder / "node_modules"
        there = (modules / ".package-lock.json").exists() and (modules / self.package).exists()
        return modules / self.package if there else None

    @property
    def missing_message(self) -> str:
        """What to say where it is missing."""
        return f"npm's package {self.package} is not installed: {self.installer}"


class ConsoleBuild(NamedTuple):
    """The console, built from the sources of this clone."""

    root: Path = Path(__file__).parents[1]

    def find(self) -> Path | None:
        """Its first page; one that was built from other sources counts as nothing."""
        builder = self.root / "scripts" / "build_console.py"
        built = runpy.run_path(str(builder))
        is_fresh = built["built_from"](self.root) == built["digest"](self.root)
        return self.root / built["SITE"] / "index.html" if is_fresh else None

    @property
    def missing_message(self) -> str:
        """What to say where it is missing."""
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
"""Without its windows if there is a choice: it draws the same pages for a third less of the processor.

With Chromium's feature RenderDocument its pages crash when a link is opened in a new tab: in 12 of 14
runs with version 150, and in none of 30 without. tests/browser/conftest.py switches it off.
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

MQTTJS = NodePackage("mqtt")
ASYNCAPI_PARSER = NodePackage("@asyncapi/parser")
AXE = NodePackage("axe-core")
CONSOLE = ConsoleBuild()


def require(tool: SystemProgram | NodePackage | ConsoleBuild) -> Path:
    """Find a part; without it the test is skipped, and says so. With CI=true it fails."""
    if found := tool.find():
        return found
    if os.environ.get("CI") == "true":
        pytest.fail(tool.missing_message)
    pytest.skip(tool.missing_message)


if __name__ == "__main__":
    print(*sorted({part.package for part in SYSTEM_PROGRAMS if part.find() is None}))  # noqa: T201 # for scripts/parts
