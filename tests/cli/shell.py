"""Somebody at a command line, and a fleet to work with."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import termios
from typing import TYPE_CHECKING, Any

from meshfleet.client.blocking import Fleet
from tests.cli.forked_process import fork_at_terminal
from tests.cli.programs import MESHFLEET, TEST_TIMEOUT, Program, run_command
from tests.eventually import eventually

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from click.testing import Result

    from meshfleet.testing import RunningFleet

CLEAN_ENVIRONMENT = {
    "MESHFLEET_URL": "",
    "MESHFLEET_TOKEN": "",
    "MESHFLEET_KEY": "",
    "MESHFLEET_PUBLIC_KEY": "",
    "MESHFLEET_PASSWORD": "",
    "MESHFLEET_BROKER": "",
    "MESHFLEET_MESH": "",
    "MESHFLEET_TLS_CA": "",
    "MESHFLEET_TAB_SECONDS": "60",
}
"""What the machine of who runs these tests may have set; and patience, as this machine may be busy."""


class Shell:
    """A command line with a home of its own, where nobody is logged in yet."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.variables = {**CLEAN_ENVIRONMENT, "XDG_CONFIG_HOME": str(home)}

    @property
    def login(self) -> Path:
        """Where the login is kept."""
        return self.home / "meshfleet" / "login.json"

    def write_login(self, content: str) -> None:
        """Put something where the login is kept."""
        self.login.parent.mkdir(parents=True, exist_ok=True)
        self.login.touch(0o600)
        self.login.write_text(content, errors="surrogateescape")

    def __call__(self, *arguments: str, stdin: str = "", **variables: str) -> Result:
        return run_command(*arguments, stdin=stdin, **{**self.variables, **variables})

    def start(self, *arguments: str, umask: str = "", **variables: str) -> Program:
        """Start a command as a program of its own."""
        return Program(*arguments, umask=umask, **{**self.variables, **variables})

    def text(self, *arguments: str, **given: str) -> str:
        """What a command says to people."""
        result = self(*arguments, **given)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    def json_lines(self, *arguments: str, **given: str) -> list[Any]:
        """What a command says to programs, line by line."""
        return [json.loads(line) for line in self.text(*arguments, "--json", **given).splitlines()]

    def json(self, *arguments: str, **given: str) -> Any:
        """What a command says to programs on one line."""
        (found,) = self.json_lines(*arguments, **given)
        return found

    def expect_failure(self, *arguments: str, code: int = 1, **given: str) -> str:
        """What a command says when it fails: one clear line, and nothing where programs read."""
        result = self(*arguments, **given)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert "Traceback" not in result.stderr
        if code == 1:
            assert len(result.stderr.splitlines()) == 1, result.stderr
        return result.stderr


def create_logged_in_shell(home: Path, place: RunningFleet) -> Shell:
    """Somebody who is logged in as admin."""
    shell = Shell(home)
    shell.text("login", "--url", place.url, "--user", place.user, MESHFLEET_PASSWORD=place.password)
    return shell


def wait_until_known(place: RunningFleet) -> None:
    """Until all devices are heard, and all gateways have told their version."""
    with Fleet(place.url, user=place.user, password=place.password) as fleet:
        wait_until_connected(fleet, *(mac for each in place.gateways for mac in (each.mac, *each.devices)))
        eventually(lambda: all(each.api_version for each in fleet.gateways.list()), "to know all versions")


def wait_until_connected(fleet: Fleet, *devices: str) -> None:
    """Until all of these are heard."""
    wanted = {f"bmac-{mac}" for mac in devices}
    eventually(lambda: wanted <= {each.id for each in fleet.devices.list(connected=True)}, "to hear them all")


def run_at_terminal(
    shell: Shell, *arguments: str, typed: str = "", columns: int = 80, behind: str = ""
) -> tuple[str, int]:
    """Run a command at a terminal of its own; what the terminal shows, and the exit code.

    What is typed is typed once the command has asked for something. What stands `behind` is for the shell.
    """
    ours, its = pty.openpty()
    termios.tcsetwinsize(ours, (24, columns))
    # Workers of pytest are told how wide their own terminal is, and that would count more than this one.
    inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    variables = {**inherited, **shell.variables, "TERM": "xterm"}
    wait = _begin(behind, arguments, variables, its)
    os.close(its)
    shown = b""
    while piece := _read(ours):
        shown += piece
        if typed and shown.rstrip().endswith(b":"):
            os.write(ours, typed.encode())
            typed = ""
    os.close(ours)
    code = wait()
    assert code is not None, "it does not end"
    return shown.decode().replace("\r\n", "\n"), code


def _begin(
    behind: str, arguments: Sequence[str], variables: Mapping[str, str], terminal: int
) -> Callable[[], int | None]:
    """Start a command, and give what waits for its exit code."""
    if behind:
        command = ["/bin/sh", "-c", f'exec "$0" "$@" {behind}', str(MESHFLEET), *arguments]
        program = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=variables)
        return lambda: program.wait(TEST_TIMEOUT)
    forked = fork_at_terminal(arguments, variables, terminal)

    def wait() -> int | None:
        forked.join(TEST_TIMEOUT)
        return forked.exitcode

    return wait


def _read(terminal: int) -> bytes:
    """What comes next; nothing at the end, or when it is broken."""
    if not select.select([terminal], [], [], TEST_TIMEOUT)[0]:
        return b""
    try:
        return os.read(terminal, 65536)
    except OSError:  # that is how Linux says that nobody has it open any more
        return b""
