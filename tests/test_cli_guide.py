"""docs/guides/cli.md, typed line by line by somebody who reads it."""

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
PASSWORD = "correct-horse-battery"  # noqa: S105 # of nobody
LONGEST = 300
"""Seconds for all commands together; reached only when one hangs."""


class DemoService(NamedTuple):
    """Where a service is."""

    url: str
    mqtt: str


@pytest.fixture
def service(tmp_path: Path) -> Iterator[DemoService]:
    """The fleet that the page is about, on free ports."""
    given = ["serve", "--demo", "--json", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    with Program(*given, MESHFLEET_ADMIN_PASSWORD=PASSWORD) as program:
        started = json.loads(program.read_line())
        running = DemoService(started["url"], started["mqtt"][0].partition("://")[2])
        with Fleet(running.url, user="admin", password=PASSWORD) as fleet:
            wait_until_connected(fleet, "ca5bda1a0002", "ca5bda1a0004", "ca5bda1a0006", "02005e000001")
        yield running


def blocks() -> list[str]:
    found: list[str] = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found


def run_commands(service: DemoService, home: Path, relay: Relay) -> dict[str, str]:
    """What each command of the page answers, all of them in one shell."""
    require(JQ)
    script = "".join(blocks()).replace("http://127.0.0.1:8080", service.url)
    script = script.replace("127.0.0.1:1883", service.mqtt).replace("…", PASSWORD)
    script = re.sub(r"^(.*)$", r"echo '##' '\1'" "\n" r"\1", script.rstrip(), flags=re.MULTILINE)
    done = subprocess.run(
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
        timeout=LONGEST,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    parts = (part.partition("\n") for part in done.stdout.split("## ")[1:])
    return {command: answer for command, _, answer in parts}


def test_every_command_of_the_page_does_what_it_says(service: DemoService, tmp_path: Path) -> None:
    with Relay(tmp_path / "bin") as relay:
        answers = run_commands(service, tmp_path / "home", relay)

    def answer(command: str) -> str:
        (found,) = [text for line, text in answers.items() if command in line]
        return found

    assert answer("login --url") == f"Logged in to {service.url} as admin (admin).\n"
    assert len(answer("MESHFLEET_TOKEN").splitlines()) == 1 + 3
    assert "Head office" in answer('--label "Head office"')
    assert all("Clip" in json.loads(line)["friendlyName"] for line in answer("--name clip").splitlines())
    assert "bmac-ca5bda1a0004" in answer("devices show")
    assert answer("devices links").startswith("parent")
    assert answer('"Front door"') == "bmac-ca5bda1a0004 is now called Front door.\n"
    assert "doors" in answer("labels list")
    assert "2nd floor" not in answer("devices unlabel")
    assert answer("devices label - motion").count("motion") >= 2
    assert re.search(r"^password +\S+ \(shown only once\)$", answer("gateways add"), re.MULTILINE)
    assert " °C " in answer("--identifier temperature --from 2h")
    assert answer("--csv").startswith("time,kind,")
    for read in ("read ca5bda1a0004 battery-level", "read ca5bda1a0004 battery-level --gateway 02005e000001"):
        assert re.match(r"battery-level = \d+ %\nanswered by ", answers[f"meshfleet {read}"])
    assert "(battery-level " in answer("read ca5bda1a0004 8100")
    assert answer("tx-power -4").startswith("tx-power = -4 is written\n")
    assert len(answer("requests ca5bda1a0004").splitlines()) >= 3
    assert re.match(r"[1-9]\d* of \d+ devices would be updated, ", answer("--dry-run"))
    assert "QUEUED" in answer("jobs executions")
    assert " is CANCELING: requested by a user (USER)." in answer("jobs cancel")
    assert len(answer("watch --count 5").splitlines()) == 5
    assert json.loads(answer("watch --device"))["name"] == "temperature"
    assert len(answer("watch --kind").splitlines()) == 3
    assert answer("logout") == f"Logged out of {service.url}.\n"
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
