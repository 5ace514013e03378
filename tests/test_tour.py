"""The tour of the README, walked by a newcomer with curl."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import httpx
import pytest

from meshfleet.wire.rest import LOGIN
from tests.cli.outside import PATIENCE, Program
from tests.parts import BASH, CURL, JQ, MOSQUITTO_PUB, need

if TYPE_CHECKING:
    from collections.abc import Iterator

README = (Path(__file__).parent.parent / "README.md").read_text()
PASSWORD = "correct-horse-battery"  # noqa: S105 # of nobody


class Running(NamedTuple):
    """Where a service is."""

    url: str
    mqtt: list[str]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Running]:
    """A service with a fleet to look at, as `make run` starts it, but on a free port."""
    given = ["serve", "--demo", "--json", "--http", "127.0.0.1:0", "--data", str(tmp_path / "data")]
    with Program(*given, MESHFLEET_ADMIN_PASSWORD=PASSWORD) as program:
        started = json.loads(program.line())
        _wait_until_it_lives(started["url"])
        yield Running(started["url"], started["mqtt"])


def _wait_until_it_lives(url: str) -> None:
    """People take their time before they ask."""
    login = httpx.post(url + LOGIN, json={"username": "admin", "password": PASSWORD}, timeout=PATIENCE)
    bearer = {"Authorization": f"Bearer {login.json()['authToken']}"}
    until = time.monotonic() + PATIENCE
    while not httpx.get(f"{url}/api/v1/devices/summary", headers=bearer, timeout=PATIENCE).json()[
        "connected"
    ]:
        assert time.monotonic() < until, "nobody connects"
        time.sleep(0.1)


def _walk(service: Running) -> list[Any]:
    """Type all commands of the tour, and give back what they answer."""
    need(CURL), need(JQ), need(MOSQUITTO_PUB)
    blocks = re.findall(r"^```sh\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    script = "".join(blocks).replace("http://127.0.0.1:8080", service.url).replace("…", PASSWORD)
    script = script.replace("mosquitto_pub ", f"mosquitto_pub -p {service.mqtt[0].rpartition(':')[2]} ")
    script = re.sub(r"^(curl.*?)(  +#.*)?$", r"\1; echo", script, flags=re.MULTILINE)
    done = subprocess.run(
        [str(need(BASH)), "-euc", script], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    return [json.loads(line.removeprefix("data:")) for line in done.stdout.splitlines()]


def test_every_step_of_the_tour_does_what_it_says(service: Running) -> None:
    first, silent, summary, renamed, labelled, unlabelled, changes, samples, series, *live, history = _walk(
        service
    )
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
    assert [(each["connected"], each["cause"]) for each in history["items"]] == [(True, "connection")]
