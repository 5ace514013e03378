"""Helpers for tests of commands: a shell with its own home directory, and terminals."""

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
"""Values that hide the developer's variables, and a long completion timeout for a busy machine."""


class Shell:
    """Command line with its own home directory, without a login at first."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.variables = {**CLEAN_ENVIRONMENT, "XDG_CONFIG_HOME": str(home)}

    @property
    def login(self) -> Path:
        """Path of the login file."""
        return self.home / "meshfleet" / "login.json"

    def write_login(self, content: str) -> None:
        """Write the login file."""
        self.login.parent.mkdir(parents=True, exist_ok=True)
        self.login.touch(0o600)
        self.login.write_text(content, errors="surrogateescape")

    def __call__(self, *arguments: str, stdin: str = "", **variables: str) -> Result:
        return run_command(*arguments, stdin=stdin, **{**self.variables, **variables})

    def start(self, *arguments: str, before: str = "", umask: str = "", **variables: str) -> Program:
        """Start a command in its own process."""
        return Program(*arguments, before=before, umask=umask, **{**self.variables, **variables})

    def text(self, *arguments: str, **variables: str) -> str:
        """Run a command that succeeds, and return its output."""
        result = self(*arguments, **variables)
        assert (result.exit_code, result.stderr) == (0, ""), result.output
        return result.stdout

    def json_lines(self, *arguments: str, **variables: str) -> list[Any]:
        """Run a command with `--json`, and return the object of each line."""
        return [json.loads(line) for line in self.text(*arguments, "--json", **variables).splitlines()]

    def json(self, *arguments: str, **variables: str) -> Any:
        """Run a command with `--json`, and return its only object."""
        (found,) = self.json_lines(*arguments, **variables)
        return found

    def expect_failure(self, *arguments: str, code: int = 1, **variables: str) -> str:
        """Run a command that fails with one line on standard error and no output, and return that line."""
        result = self(*arguments, **variables)
        assert (result.exit_code, result.stdout) == (code, ""), result.output
        assert "Traceback" not in result.stderr
        if code == 1:
            assert len(result.stderr.splitlines()) == 1, result.stderr
        return result.stderr


def create_logged_in_shell(home: Path, service: RunningFleet) -> Shell:
    """Create a shell that is logged in as admin."""
    shell = Shell(home)
    shell.text("login", "--url", service.url, "--user", service.user, MESHFLEET_PASSWORD=service.password)
    return shell


def wait_until_known(service: RunningFleet) -> None:
    """Wait until all devices are connected and the versions of all gateways are known."""
    with Fleet(service.url, user=service.user, password=service.password) as fleet:
        wait_until_connected(fleet, *(mac for each in service.gateways for mac in (each.mac, *each.devices)))
        eventually(
            lambda: all(each.api_version for each in fleet.gateways.list()), "that all versions are known"
        )


def wait_until_connected(fleet: Fleet, *devices: str) -> None:
    """Wait until all of these devices are connected."""
    expected = {f"bmac-{mac}" for mac in devices}
    eventually(
        lambda: expected <= {each.id for each in fleet.devices.list(connected=True)},
        "that all devices are connected",
    )


def run_at_terminal(
    shell: Shell, *arguments: str, typed: str = "", columns: int = 80, behind: str = ""
) -> tuple[str, int]:
    """Run a command at its own terminal. Return what the terminal shows, and the exit code.

    `typed` is sent once the command prompts for something. `behind` is appended for the shell: redirections.
    """
    controller, terminal = pty.openpty()
    termios.tcsetwinsize(controller, (24, columns))
    # pytest workers have the width of their own terminal in COLUMNS, which would override that of this one.
    inherited = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    variables = {**inherited, **shell.variables, "TERM": "xterm"}
    wait = _start_at_terminal(behind, arguments, variables, terminal)
    os.close(terminal)
    shown = b""
    while chunk := _read(controller):
        shown += chunk
        if typed and shown.rstrip().endswith(b":"):
            os.write(controller, typed.encode())
            typed = ""
    os.close(controller)
    code = wait()
    assert code is not None, "the command does not end"
    return shown.decode().replace("\r\n", "\n"), code


def _start_at_terminal(
    behind: str, arguments: Sequence[str], variables: Mapping[str, str], terminal: int
) -> Callable[[], int | None]:
    """Start a command, and return a function that waits for its exit code."""
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
    """Read the next output of a terminal; empty at the end, or after the timeout."""
    if not select.select([terminal], [], [], TEST_TIMEOUT)[0]:
        return b""
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux raises it once no process has the terminal open
        return b""
