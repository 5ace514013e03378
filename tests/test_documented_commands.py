"""Commands of the documentation: marked blocks are executed, and every command, option and setting exists."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from typing import TYPE_CHECKING, NamedTuple

import click
import pytest

from meshfleet import errors
from meshfleet.cli import main
from meshfleet.client.blocking import Fleet
from meshfleet.settings import SETTINGS
from meshfleet.testing import running_fleet
from tests.cli.programs import TEST_TIMEOUT
from tests.cli.relay import Relay
from tests.cli.shell import CLEAN_ENVIRONMENT, create_logged_in_shell, wait_until_connected
from tests.documentation import ROOT, find_calls, find_tested_blocks, list_pages
from tests.external_tools import BASH, CURL, JQ, require
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.testing import RunningFleet

GUIDES = ROOT / "docs" / "guides"
REQUESTS = GUIDES / "requests.md"
TESTED_ELSEWHERE = {ROOT / "README.md", ROOT / "docs" / "tour.md", GUIDES / "cli.md"}
"""Pages that other tests run with a demo fleet, in test_tour.py and test_cli_guide.py."""

PAGES = [page for page in list_pages() if find_tested_blocks(page) and page not in TESTED_ELSEWHERE]


class Shell(NamedTuple):
    """Shell in which the commands of a page run, with a running service."""

    service: RunningFleet
    variables: dict[str, str]
    folder: Path

    def run(self, script: str) -> str:
        """Run a script. Fail if a command or a request fails."""
        script = script.replace("http://127.0.0.1:8080", self.service.url).replace("…", self.service.password)
        result = subprocess.run(
            [str(require(BASH)), "-euc", script.replace("curl -s", "curl --fail-with-body -s")],
            env={**os.environ, **CLEAN_ENVIRONMENT, **self.variables},
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            timeout=TEST_TIMEOUT,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        return result.stdout


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """Run a service that the commands of all pages use, logged in as admin."""
    require(CURL), require(JQ)
    folder = tmp_path_factory.mktemp("commands")
    with (
        running_fleet(speed=20) as running,
        Relay(folder / "bin") as relay,
        Fleet(running.url, user=running.user, password=running.password) as fleet,
    ):
        wait_until_connected(fleet, "ca5bda1a0002")
        create_logged_in_shell(folder, running)
        variables = {
            "URL": running.url,
            "AUTH": f"Authorization: Bearer {fleet.log_in().token}",
            "XDG_CONFIG_HOME": str(folder),
            "PATH": f"{relay.folder}:{os.environ['PATH']}",
        }
        yield Shell(running, variables, folder)


@pytest.mark.parametrize("page", [page for page in PAGES if page != REQUESTS], ids=lambda page: page.stem)
def test_the_commands_of_the_page_succeed(shell: Shell, page: Path) -> None:
    assert shell.run("".join(find_tested_blocks(page)))


@pytest.mark.rule("rest-25", "rest-97", "rest-99", "rest-102", "rest-103", "rest-193", "rest-194")
def test_every_request_of_the_page_gets_the_documented_response(shell: Shell) -> None:
    script = re.sub(r"^(curl.*)$", r"\1; echo", "".join(find_tested_blocks(REQUESTS)), flags=re.MULTILINE)
    lines = shell.run(script).splitlines()
    read, written, version, accepted, once, again, history = map(json.loads, lines)
    (documented,) = re.findall(r"^    (\{.*\n.*\})$", REQUESTS.read_text(), re.MULTILINE)
    assert read.keys() == json.loads(documented).keys()
    assert (read["status"], read["value"], read["gateway"]) == (0, 4, "02005e000001")
    assert read["choice"]["reason"] in {"strongest", "last-heard"}
    assert (written["status"], version["version"], version["choice"]["reason"]) == (0, "2.4.0", "itself")
    assert accepted["state"] == "PENDING"
    assert once == again
    assert [each["id"] for each in history["items"]] == [once["id"], accepted["id"]]


def test_the_table_lists_every_error_without_a_response() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \| (\d+) \| .* \| (yes|no) \|$", REQUESTS.read_text(), re.MULTILINE)
    assert {(code, int(status), sent == "yes") for code, status, sent in rows} == {
        (each.code, each.http, each.sent) for each in errors.Unanswered.__subclasses__()
    }


@each_row("page", list_pages())
def test_every_command_and_option_exists(page: Path) -> None:
    assert [problem for call in find_calls(page) if (problem := _find_problem(call))] == []


def _find_problem(call: list[str]) -> str | None:
    """Return what is wrong with a call of `meshfleet`; None if its command and options exist."""
    command: click.Command = main
    words = [word for word in call if word not in {"--json", "--help", "--version"}]
    if words[:1] == ["requests"] and words[1] != "show":
        words.insert(1, "list")  # as the command does itself
    while isinstance(command, click.Group):
        if not words or words[0] == "…":
            return None
        try:
            _, found, words = command.resolve_command(click.Context(command), words)
        except click.UsageError:
            found = None
        if found is None:
            return f"meshfleet {' '.join(call)}: no such command"
        command = found
    parameters = command.params
    options = {option for each in parameters for option in (*each.opts, *each.secondary_opts, "--help")}
    unknown = {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)} - options
    return f"meshfleet {' '.join(call)}: no option {', '.join(sorted(unknown))}" if unknown else None


def test_the_protocol_lists_every_command() -> None:
    text = (ROOT / "docs" / "protocol.md").read_text()
    (table,) = re.findall(r"^\| command \| does \|\n\|---\|---\|\n((?:\|.*\n)+)", text, re.MULTILINE)
    subcommands = {name for row in table.splitlines() for name in re.findall(r"`([a-z-]+)", row)}
    assert set(main.list_commands(click.Context(main))) <= subcommands


def test_every_target_of_make_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = ROOT / ".github" / "workflows" / "release.yml"
    calls = re.compile(r"(?:^ {4,}|`|run: )make ([a-z][a-z -]*)", re.MULTILINE)
    named = {
        name
        for page in [*list_pages(), workflow]
        for call in calls.findall(page.read_text())
        for name in call.split()
    }
    assert {"dist", "release-data", "docs"} <= named <= targets


def test_every_query_parameter_exists(shell: Shell) -> None:
    paths = json.loads(shell.run("curl -s $URL/api/v1/openapi.json"))["paths"]
    names = {
        each["name"]
        for path in paths.values()
        for call in path.values()
        for each in call.get("parameters", [])
    }
    unknown = {
        (page.name, name)
        for page in list_pages()
        for query in re.findall(r"/api/v1/[^\s?`'\"]*\?([^\s`'\"]+)", page.read_text())
        for name in re.findall(r"(?:^|&)(\w+)=", query)
        if name not in names
    }
    assert unknown == {("rest.md", "Conected")}, "besides the example of a misspelled one"


def test_calls_of_programs_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```sh\nx | /opt/bin/meshfleet backup - --wrong \\\n  --data 'a b' > f\n```\n`meshfleet no`\n"
    )
    assert list(find_calls(page)) == [["backup", "-", "--wrong", "--data", "a b"], ["no"]]
    assert [_find_problem(call) for call in find_calls(page)] == [
        "meshfleet backup - --wrong --data a b: no option --wrong",
        "meshfleet no: no such command",
    ]


def test_every_setting_in_an_example_exists() -> None:
    names = {name for each in SETTINGS for name in (each.name, each.file_key)}
    unknown = {
        (page.name, name)
        for page in list_pages()
        for block in re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
        for table, keys in tomllib.loads(block).items()
        for name in ([f"{table}.{key}" for key in keys] if isinstance(keys, dict) else [table])
        if name not in names
    }
    assert unknown == set()
