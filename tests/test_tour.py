"""The tour of the README, walked by a newcomer with curl, the command line and Python."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import pytest

from meshfleet.rest import LOGIN_PATH
from tests.cli.programs import TEST_TIMEOUT, Program
from tests.cli.relay import Relay
from tests.cli.shell import CLEAN_ENVIRONMENT
from tests.eventually import eventually
from tests.external_tools import BASH, CURL, JQ, MOSQUITTO_PUB, require

if TYPE_CHECKING:
    from collections.abc import Iterator

README = (Path(__file__).parent.parent / "README.md").read_text()
OURS = ".venv/bin/meshfleet "
PASSWORD = "correct-horse-battery"  # noqa: S105 # of nobody


class DemoService(NamedTuple):
    """Where a service is."""

    url: str
    mqtt: list[str]

    def adapt(self, text: str) -> str:
        """Something to type or to run, for where this service is."""
        return text.replace("http://127.0.0.1:8080", self.url).replace("…", PASSWORD)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DemoService]:
    """A service with a fleet to look at, as `make run` starts it, but on a free port."""
    data = tmp_path_factory.mktemp("service") / "data"
    given = ["serve", "--demo", "--json", "--http", "127.0.0.1:0", "--data", str(data)]
    with Program(*given, MESHFLEET_ADMIN_PASSWORD=PASSWORD) as program:
        started = json.loads(program.read_line())
        _wait_until_ready(started["url"])
        yield DemoService(started["url"], started["mqtt"])


def _wait_until_ready(url: str) -> None:
    """People take their time before they ask."""
    login = httpx.post(
        url + LOGIN_PATH, json={"username": "admin", "password": PASSWORD}, timeout=TEST_TIMEOUT
    )
    bearer = {"Authorization": f"Bearer {login.json()['authToken']}"}
    with httpx.Client(headers=bearer, timeout=TEST_TIMEOUT) as client:
        device = f"{url}/api/v1/devices/bmac-ca5bda1a0004"
        eventually(lambda: client.get(device).json()["connectivity"]["connected"], "that devices connect")


def _blocks(language: str) -> list[str]:
    found: list[str] = re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    return found


def _run_commands(service: DemoService) -> list[Any]:
    """Type all commands of the tour that are not ours, and give back what they answer."""
    require(CURL), require(JQ), require(MOSQUITTO_PUB)
    script = service.adapt("".join(block for block in _blocks("sh") if OURS not in block))
    script = script.replace("mosquitto_pub ", f"mosquitto_pub -p {service.mqtt[0].rpartition(':')[2]} ")
    script = re.sub(r"^(curl.*?)(  +#.*)?$", r"\1; echo", script, flags=re.MULTILINE)
    done = subprocess.run(
        [str(require(BASH)), "-euc", script], capture_output=True, text=True, check=True, timeout=TEST_TIMEOUT
    )
    return [json.loads(line.removeprefix("data:")) for line in done.stdout.splitlines()]


def test_every_step_of_the_tour_does_what_it_says(service: DemoService) -> None:
    first, silent, summary, renamed, labelled, unlabelled, changes, samples, series, *live = _run_commands(
        service
    )
    *live, history, answer = live
    assert [len(first["items"]), first["items"][0]["friendlyName"]] == [2, "Head office"]
    assert first["items"][0]["connectivity"]["connected"]
    assert silent["items"]
    assert all("Clip" in each["friendlyName"] and "live" in each for each in silent["items"])
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
    assert (answer["status"], answer["gateway"]) == (0, "02005e000001")
    assert 0 <= answer["value"] <= 100


def test_the_commands_of_the_tour_do_what_they_say(service: DemoService, tmp_path: Path) -> None:
    (block,) = [block for block in _blocks("sh") if OURS in block]
    with Relay(tmp_path / "bin") as relay:
        script = block.replace(OURS, f"echo '##'; {relay.program} ")
        done = subprocess.run(
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
    _, login, devices, read, watch = done.stdout.split("##\n")
    assert login == f"Logged in to {service.url} as admin (admin).\n"
    assert devices.count("Head office") >= 3
    value, who = read.splitlines()
    assert re.fullmatch(r"battery-level = \d+ %", value)
    assert re.match(r"answered by the device itself in \d+ ms, through gateway 02005e000001, which ", who)
    assert len(watch.splitlines()) == 3


def test_the_programs_of_the_tour_do_what_they_say(
    service: DemoService, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sdk, protocol = _blocks("python")
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
