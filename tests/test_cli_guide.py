"""Commands of docs/guides/cli.md, executed in a shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click
import pytest

from meshfleet.cli import main
from meshfleet.client.blocking import Fleet
from tests.cli.programs import Program
from tests.cli.relay import Relay
from tests.cli.shell import CLEAN_ENVIRONMENT, wait_until_connected
from tests.external_tools import BASH, JQ, require

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = (Path(__file__).parent.parent / "docs" / "guides" / "cli.md").read_text()
PASSWORD = "correct-horse-battery"  # noqa: S105 # not a real password
TIMEOUT = 300
"""Seconds for all commands together; only reached when one hangs."""


class DemoService(NamedTuple):
    """Addresses of a running service."""

    url: str
    mqtt: str


@pytest.fixture
def service(tmp_path: Path) -> Iterator[DemoService]:
    """Run the demo fleet that the page describes, on free ports."""
    arguments = ["serve", "--demo", "--json", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    with Program(*arguments, MESHFLEET_ADMIN_PASSWORD=PASSWORD) as program:
        started = json.loads(program.read_line())
        running = DemoService(started["url"], started["mqtt"][0].partition("://")[2])
        with Fleet(running.url, user="admin", password=PASSWORD) as fleet:
            wait_until_connected(fleet, "ca5bda1a0002", "ca5bda1a0004", "ca5bda1a0006", "02005e000001")
        yield running


def find_blocks() -> list[str]:
    blocks: list[str] = re.findall(r"^```sh tested\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert blocks
    return blocks


def run_commands(service: DemoService, home: Path, relay: Relay) -> dict[str, str]:
    """Run all commands of the page in one shell, and return the output of each."""
    require(JQ)
    script = "".join(find_blocks()).replace("http://127.0.0.1:8080", service.url)
    script = script.replace("127.0.0.1:1883", service.mqtt).replace("…", PASSWORD)
    script = re.sub(r"^(.*)$", r"echo '##' '\1'" "\n" r"\1", script.rstrip(), flags=re.MULTILINE)
    result = subprocess.run(
        [require(BASH), "-euo", "pipefail", "-c", script],
        env={
            **os.environ,
            **CLEAN_ENVIRONMENT,
            "XDG_CONFIG_HOME": str(home),
            "MESHFLEET_PASSWORD": PASSWORD,
            "PATH": f"{relay.folder}:{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    assert (result.returncode, result.stderr) == (0, ""), result.stdout
    parts = (part.partition("\n") for part in result.stdout.split("## ")[1:])
    return {command: output for command, _, output in parts}


def test_every_command_of_the_page_has_the_described_output(service: DemoService, tmp_path: Path) -> None:
    with Relay(tmp_path / "bin") as relay:
        outputs = run_commands(service, tmp_path / "home", relay)

    def output_of(command: str) -> str:
        (output,) = [text for line, text in outputs.items() if command in line]
        return output

    assert output_of("login --url") == f"Logged in to {service.url} as admin (admin).\n"
    assert len(output_of("MESHFLEET_TOKEN").splitlines()) == 1 + 3
    assert "Head office" in output_of('--label "Head office"')
    assert all("Clip" in json.loads(line)["friendlyName"] for line in output_of("--name clip").splitlines())
    assert "bmac-ca5bda1a0004" in output_of("devices show")
    assert output_of("devices links").startswith("parent")
    assert output_of('"Front door"') == "bmac-ca5bda1a0004 is now called Front door.\n"
    assert "doors" in output_of("labels list")
    assert "2nd floor" not in output_of("devices unlabel")
    assert output_of("devices label - motion").count("motion") >= 2
    assert re.search(r"^password +\S+ \(shown only once\)$", output_of("gateways add"), re.MULTILINE)
    assert " °C " in output_of("--identifier temperature --from 2h")
    assert output_of("--csv").startswith("time,kind,")
    for read in ("read ca5bda1a0004 battery-level", "read ca5bda1a0004 battery-level --gateway 02005e000001"):
        assert re.match(r"battery-level = \d+ %\nanswered by ", outputs[f"meshfleet {read}"])
    assert "(battery-level " in output_of("read ca5bda1a0004 8100")
    assert output_of("tx-power -4").startswith("tx-power = -4 is written\n")
    assert len(output_of("requests ca5bda1a0004").splitlines()) >= 3
    assert re.match(r"[1-9]\d* of \d+ devices would be updated, ", output_of("--dry-run"))
    assert "QUEUED" in output_of("jobs executions")
    assert " is CANCELING: requested by a user (USER)." in output_of("jobs cancel")
    assert len(output_of("watch --count 5").splitlines()) == 5
    assert json.loads(output_of("watch --device"))["name"] == "temperature"
    assert len(output_of("watch --kind").splitlines()) == 3
    assert output_of("logout") == f"Logged out of {service.url}.\n"
    assert not (tmp_path / "home" / "meshfleet" / "login.json").exists()


def test_every_option_and_command_of_the_page_exists() -> None:
    options, names = {"--help"}, {"reset-password"}

    def collect(command: click.Command) -> None:
        names.add(str(command.name))
        options.update(option for parameter in command.params for option in parameter.opts)
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                collect(inner)

    collect(main)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) <= options
    assert set(re.findall(r"\bmeshfleet ([a-z][a-z-]*)", PAGE)) <= names
