"""Shell completion of arguments, and the modules that a command imports."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import click

from meshfleet.cli import main
from meshfleet.protocol.ids import to_device_id
from tests.cli.programs import MESHFLEET, TEST_TIMEOUT, run_command
from tests.external_tools import BASH, require
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.testing import RunningFleet
    from tests.cli.shell import Shell


def complete(shell: Shell, *words: str) -> list[str]:
    """Return the completions offered to bash for these words, the last of which is incomplete."""
    variables = {
        "_MESHFLEET_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("meshfleet", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = shell(**variables)
    assert (done.exit_code, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_are_offered(logged_out: Shell) -> None:
    assert complete(logged_out, "g") == ["gateway", "gateways"]
    assert {"devices", "watch", "read"} < set(complete(logged_out, ""))
    assert complete(logged_out, "devices", "re") == ["rename"]
    assert complete(logged_out, "users", "res") == ["reset-password"]
    assert complete(logged_out, "devices", "list", "--mod") == ["--model"]


def test_identifiers_are_offered_by_name_and_once_something_is_typed_by_id(logged_out: Shell) -> None:
    assert complete(logged_out, "read", "ca5bda1a0002", "batt") == ["battery-level"]
    assert "8100" in complete(logged_out, "read", "ca5bda1a0002", "81")
    everything = complete(logged_out, "watch", "--identifier", "")
    assert "temperature" in everything
    assert "8100" not in everything


def test_devices_and_labels_are_offered_with_a_login(admin: Shell, service: RunningFleet) -> None:
    first = service.gateways[0].devices[0]
    admin.text("devices", "label", first, "completed", "3rd floor")
    assert to_device_id(first) in complete(admin, "devices", "show", "bmac-")
    assert complete(admin, "devices", "show", "BMAC-CA5BDA1A0002") == ["bmac-ca5bda1a0002"]
    assert complete(admin, "gateways", "rotate", "02") == [service.gateways[0].mac]
    assert complete(admin, "devices", "list", "--label", "comp") == ["completed"]
    assert complete(admin, "devices", "unlabel", first, "3rd") == [r"3rd\ floor"]


def test_without_a_login_nothing_is_offered_or_printed(logged_out: Shell) -> None:
    assert complete(logged_out, "devices", "show", "") == []
    logged_out.write_login('{"url": "http://127.0.0.1:1", "user": "ada", "token": "a.b.c"}')
    assert complete(logged_out, "labels", "remove", "") == []
    logged_out.write_login("nonsense")
    assert complete(logged_out, "labels", "remove", "") == []


def test_bash_completes_with_the_script(logged_out: Shell) -> None:
    script = logged_out.text("completion", "bash")
    typed = (
        'COMP_WORDS=(meshfleet ident); COMP_CWORD=1; _meshfleet_completion meshfleet; echo "${COMPREPLY[@]}"'
    )
    path = f"{MESHFLEET.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [require(BASH), "-ec", f"{script}\n{typed}"],
        env={**os.environ, **logged_out.variables, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=TEST_TIMEOUT,
    )
    assert done.stdout == "identifiers\n"


@each_row(("shell", "marker"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete ")])
def test_every_shell_has_its_script(shell: str, marker: str) -> None:
    script = run_command("completion", shell).stdout
    assert marker in script
    assert "_MESHFLEET_COMPLETE" in script
    assert json.loads(run_command("completion", shell, "--json").stdout) == {
        "shell": shell,
        "script": script[:-1],
    }


def test_an_unknown_shell_is_wrong_usage() -> None:
    assert run_command("completion", "cmd").exit_code == 2


# --- All commands ---


def list_commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from list_commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_command_has_help_and_the_json_option() -> None:
    for path, command in list_commands(main):
        result = run_command(*path, "--help")
        assert (result.exit_code, result.stderr) == (0, ""), path
        assert result.stdout.startswith(f"Usage: meshfleet {' '.join(path)} "), path
        assert any("--json" in parameter.opts for parameter in command.params), path


def test_a_client_command_does_not_import_the_service() -> None:
    modules = ["devices", "users", "watch", "login", "completion"]
    script = f"""
import sys
loaded = {{}}
for module in {modules}:
    before = set(sys.modules)
    __import__(f"meshfleet.cli.commands.{{module}}")
    loaded[module] = [name for name in set(sys.modules) - before if name.startswith("meshfleet.")]
import json
print(json.dumps(loaded))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = tuple(f"meshfleet.{name}" for name in ("service", "db", "emulator", "mqtt.broker", "testing"))
    loaded = json.loads(done.stdout)
    assert [*loaded] == modules
    wrong = {module: [name for name in names if name.startswith(heavy)] for module, names in loaded.items()}
    assert wrong == {module: [] for module in modules}
