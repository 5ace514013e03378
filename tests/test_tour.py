"""Commands and programs of README.md and docs/tour.md, run against the demo service."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from tests.cli.programs import TEST_TIMEOUT, Program, open_client
from tests.cli.relay import Relay
from tests.cli.shell import CLEAN_ENVIRONMENT
from tests.eventually import eventually
from tests.external_tools import BASH, CURL, JQ, MOSQUITTO_PUB, require

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TOUR = (ROOT / "docs" / "tour.md").read_text()
MESHFLEET_COMMAND = re.compile(r"^(?:\.venv/bin/)?meshfleet ", re.MULTILINE)
PASSWORD = "correct-horse-battery"  # noqa: S105 # not a real password


class DemoService(NamedTuple):
    """Addresses of a running service."""

    url: str
    mqtt: list[str]

    def adapt(self, text: str) -> str:
        """Replace the address and the password in a command or program."""
        return text.replace("http://127.0.0.1:8080", self.url).replace("…", PASSWORD)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoService]:
    """Run the demo as `make run` does, but on free ports."""
    data = tmp_path_factory.mktemp("service") / "data"
    arguments = ["serve", "--demo", "--json", "--http", "127.0.0.1:0", "--data", str(data)]
    with Program(*arguments, MESHFLEET_ADMIN_PASSWORD=PASSWORD) as program:
        started = json.loads(program.read_line())
        _wait_until_ready(started["url"])
        yield DemoService(started["url"], started["mqtt"])


def _wait_until_ready(url: str) -> None:
    """Wait until the device that the tour uses is connected."""
    with open_client(url, PASSWORD) as client:
        device = "/api/v1/devices/bmac-ca5bda1a0004"
        eventually(
            lambda: client.get(device).json()["connectivity"]["connected"], "the connection of the device"
        )


def _code_blocks(language: str, page: str) -> list[str]:
    blocks: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return blocks


def _run_commands(service: DemoService) -> list[Any]:
    """Run all commands of the tour except those of meshfleet, and return their outputs."""
    require(CURL), require(JQ), require(MOSQUITTO_PUB)
    script = service.adapt(
        "".join(block for block in _code_blocks("sh tested", TOUR) if not MESHFLEET_COMMAND.search(block))
    )
    script = script.replace("mosquitto_pub ", f"mosquitto_pub -p {service.mqtt[0].rpartition(':')[2]} ")
    script = re.sub(r"^(curl.*?)(  +#.*)?$", r"\1; echo", script, flags=re.MULTILINE)
    result = subprocess.run(
        [str(require(BASH)), "-euc", script], capture_output=True, text=True, check=True, timeout=TEST_TIMEOUT
    )
    return [json.loads(line.removeprefix("data:")) for line in result.stdout.splitlines()]


def test_every_step_of_the_tour_has_the_described_result(service: DemoService) -> None:
    first, disconnected, summary, renamed, labelled, unlabelled, changes, samples, series, *live = (
        _run_commands(service)
    )
    *live, history, response = live
    assert [len(first["items"]), first["items"][0]["friendlyName"]] == [2, "Head office"]
    assert first["items"][0]["connectivity"]["connected"]
    assert disconnected["items"]
    assert all("Clip" in each["friendlyName"] and "live" in each for each in disconnected["items"])
    assert summary["total"] == 24
    assert renamed["friendlyName"] == "Head office / lobby ☕"
    assert labelled["labels"] == ["2nd floor/north", "gateways"]
    assert unlabelled["labels"] == ["gateways"]
    assert [each["action"] for each in changes["items"]] == ["device.unlabel", "device.label", "label.create"]
    assert [(each["value"], each["raw"], each["seq"]) for each in samples["items"]] == [(46.6, "1234", 7)]
    assert [(each["count"], each["mean"]) for each in series["items"]] == [(1, 46.6)]
    assert [each["type"] for each in live] == ["report"] * 3
    assert [each["connected"] for each in history["items"]] == [True, False, True, False, True]
    assert {each["cause"] for each in history["items"]} == {"connection"}
    assert (response["status"], response["gateway"]) == (0, "02005e000001")
    assert 0 <= response["value"] <= 100


@pytest.mark.parametrize("page", [README, TOUR], ids=["README", "tour"])
def test_the_meshfleet_commands_do_what_the_page_says(
    service: DemoService, tmp_path: Path, page: str
) -> None:
    (block,) = [block for block in _code_blocks("sh tested", page) if MESHFLEET_COMMAND.search(block)]
    with Relay(tmp_path / "bin") as relay:
        script = MESHFLEET_COMMAND.sub(f"echo '##'; {relay.program} ", block)
        result = subprocess.run(
            [str(require(BASH)), "-euc", script],
            env={
                **os.environ,
                **CLEAN_ENVIRONMENT,
                "URL": service.url,
                "MESHFLEET_PASSWORD": PASSWORD,
                "XDG_CONFIG_HOME": str(tmp_path),
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=TEST_TIMEOUT,
        )
    _, login, devices, read, *samples, watch = result.stdout.split("##\n")
    assert login == f"Logged in to {service.url} as admin (admin).\n"
    assert devices.count("Head office") >= 3
    value, details = read.splitlines()
    assert re.fullmatch(r"battery-level = \d+ %", value)
    assert re.match(r"answered by the device itself in \d+ ms, through gateway 02005e000001, which ", details)
    assert [len(listing.splitlines()) for listing in samples] == ([4] if page is README else [])
    assert len(watch.splitlines()) == 3


def test_the_python_programs_do_what_the_pages_say(
    service: DemoService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _code_blocks("python", README) == _code_blocks("python", TOUR)[:1]
    sdk, protocol = _code_blocks("python", TOUR)
    program = tmp_path / "program.py"
    program.write_text(service.adapt(sdk))
    runpy.run_path(str(program))
    *devices, battery = capsys.readouterr().out.splitlines()
    assert "bmac-ca5bda1a0004 Meeting room “Ada”" in devices
    assert re.fullmatch(r"\d+ %", battery)
    program.write_text(
        re.sub(r"^(BUILTIN_CATALOGUE\.decode.*)  # (.*)$", r"assert \1 == \2", protocol, flags=re.MULTILINE)
    )
    assert "assert" in program.read_text()
    runpy.run_path(str(program))
