"""The tab key, and how little a command loads."""

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


def offered(shell: Shell, *words: str) -> list[str]:
    """What a bash is offered behind these words, the last of which is begun."""
    asked = {
        "_MESHFLEET_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(("meshfleet", *words)),
        "COMP_CWORD": str(len(words)),
    }
    done = shell(**asked)
    assert (done.exit_code, done.stderr) == (0, "")
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_commands_are_offered(nobody: Shell) -> None:
    assert offered(nobody, "g") == ["gateway", "gateways"]
    assert {"devices", "watch", "read"} < set(offered(nobody, ""))
    assert offered(nobody, "devices", "re") == ["rename"]
    assert offered(nobody, "users", "res") == ["reset-password"]
    assert offered(nobody, "devices", "list", "--mod") == ["--model"]


def test_identifiers_are_offered_by_name_and_once_begun_by_id(nobody: Shell) -> None:
    assert offered(nobody, "read", "ca5bda1a0002", "batt") == ["battery-level"]
    assert "8100" in offered(nobody, "read", "ca5bda1a0002", "81")
    everything = offered(nobody, "watch", "--identifier", "")
    assert "temperature" in everything
    assert "8100" not in everything


def test_devices_and_labels_are_offered_to_who_is_logged_in(admin: Shell, place: RunningFleet) -> None:
    first = place.gateways[0].devices[0]
    admin.text("devices", "label", first, "completed", "3rd floor")
    assert to_device_id(first) in offered(admin, "devices", "show", "bmac-")
    assert offered(admin, "devices", "show", "BMAC-CA5BDA1A0002") == ["bmac-ca5bda1a0002"]
    assert offered(admin, "gateways", "rotate", "02") == [place.gateways[0].mac]
    assert offered(admin, "devices", "list", "--label", "comp") == ["completed"]
    assert offered(admin, "devices", "unlabel", first, "3rd") == [r"3rd\ floor"]


def test_who_is_not_logged_in_is_offered_nothing_and_told_nothing(nobody: Shell) -> None:
    assert offered(nobody, "devices", "show", "") == []
    nobody.write_login('{"url": "http://127.0.0.1:1", "user": "ada", "token": "a.b.c"}')
    assert offered(nobody, "labels", "remove", "") == []
    nobody.write_login("nonsense")
    assert offered(nobody, "labels", "remove", "") == []


def test_a_bash_takes_the_script_and_completes_with_it(nobody: Shell) -> None:
    script = nobody.text("completion", "bash")
    typed = (
        'COMP_WORDS=(meshfleet ident); COMP_CWORD=1; _meshfleet_completion meshfleet; echo "${COMPREPLY[@]}"'
    )
    path = f"{MESHFLEET.parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [require(BASH), "-ec", f"{script}\n{typed}"],
        env={**os.environ, **nobody.variables, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
        timeout=TEST_TIMEOUT,
    )
    assert done.stdout == "identifiers\n"


@each_row(("shell", "sign"), [("bash", "complete -o"), ("zsh", "#compdef"), ("fish", "complete ")])
def test_every_shell_has_its_script(shell: str, sign: str) -> None:
    script = run_command("completion", shell).stdout
    assert sign in script
    assert "_MESHFLEET_COMPLETE" in script
    assert json.loads(run_command("completion", shell, "--json").stdout) == {
        "shell": shell,
        "script": script[:-1],
    }


def test_a_shell_that_is_none_is_wrong_usage() -> None:
    assert run_command("completion", "cmd").exit_code == 2


# --- All commands ---


def commands(
    group: click.Group, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_command_prints_help_and_takes_json() -> None:
    for path, command in commands(main):
        result = run_command(*path, "--help")
        assert (result.exit_code, result.stderr) == (0, ""), path
        assert result.stdout.startswith(f"Usage: meshfleet {' '.join(path)} "), path
        assert any("--json" in parameter.opts for parameter in command.params), path


def test_a_command_that_talks_to_a_service_does_not_load_one() -> None:
    modules = ["devices", "users", "watch", "login", "completion"]
    look = f"""
import sys
loaded = {{}}
for module in {modules}:
    before = set(sys.modules)
    __import__(f"meshfleet.cli.commands.{{module}}")
    loaded[module] = [name for name in set(sys.modules) - before if name.startswith("meshfleet.")]
import json
print(json.dumps(loaded))
"""
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    heavy = tuple(f"meshfleet.{name}" for name in ("service", "db", "emulator", "mqtt.broker", "testing"))
    loaded = json.loads(done.stdout)
    assert [*loaded] == modules
    wrong = {module: [name for name in names if name.startswith(heavy)] for module, names in loaded.items()}
    assert wrong == {module: [] for module in modules}
