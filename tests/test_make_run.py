"""Ports of `make run` and the demo: explicit ports must be free, default ports may be replaced."""

from __future__ import annotations

import os
import re
import subprocess
from contextlib import closing
from pathlib import Path
from socket import create_server

from meshfleet.cli.demo_service import move_to_free_ports
from meshfleet.settings import ListenAddress, Settings
from tests.external_tools import MAKE, require
from tests.servers import free_port

ROOT = Path(__file__).parent.parent


def _make_run(*arguments: str, dry: bool) -> subprocess.CompletedProcess[str]:
    command = [str(require(MAKE)), "--no-print-directory", *(["--dry-run"] if dry else []), "run", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_an_occupied_port_is_reported_before_anything_is_built() -> None:
    with closing(create_server(("127.0.0.1", 0))) as occupied:
        port = occupied.getsockname()[1]
        for argument in (f"HTTP={port}", f"MQTT=127.0.0.1:{port}"):
            result = _make_run(argument, dry=False)
            assert (result.returncode, result.stdout) == (2, ""), result
            owner = f"{Path('/proc/self/comm').read_text('utf-8').strip()} (process {os.getpid()})"
            expected = f"Cannot listen at 127.0.0.1:{port}: the port is in use by {owner}. "
            assert expected in result.stderr
            assert f"make run {argument.partition('=')[0]}=PORT" in result.stderr


def test_a_long_step_says_that_it_is_running_until_it_ends(tmp_path: Path) -> None:
    step = "until grep -q Building log; do sleep 0.1; done; exit 3"
    with (tmp_path / "log").open("wb") as log:
        command = [str(ROOT / "scripts" / "progress"), "Building", "sh", "-c", step]
        code = subprocess.run(command, cwd=tmp_path, stdout=log, check=False, timeout=60).returncode
    assert code == 3
    assert re.fullmatch(r"(Building \(\d+ s\)\n)+", (tmp_path / "log").read_text())


def test_ports_can_be_given_by_number_or_with_a_host() -> None:
    commands = {
        "": "serve --demo",
        "HTTP=8081 MQTT=1884": "serve --demo --http 127.0.0.1:8081 --mqtt 127.0.0.1:1884",
        "HTTP=0.0.0.0:80": "serve --demo --http 0.0.0.0:80",
        "HTTP=[::1]:8081 MQTT=off": "serve --demo --http [::1]:8081 --mqtt off",
    }
    lines = {
        arguments: _make_run(*arguments.split(), dry=True).stdout.splitlines()[-1] for arguments in commands
    }
    assert {
        arguments: line.partition("meshfleet ")[2].strip() for arguments, line in lines.items()
    } == commands


def test_the_demo_uses_the_next_free_port_unless_one_was_given() -> None:
    with closing(create_server(("127.0.0.1", 0))) as occupied:
        address = ListenAddress("127.0.0.1", occupied.getsockname()[1])
        defaults = Settings(http=address, mqtt=address)
        messages: list[str] = []
        moved = move_to_free_ports(defaults, {"mqtt"}, messages.append)
        assert moved.http.port > address.port
        assert moved.mqtt == address
        with closing(create_server(moved.http)):
            pass
        (message,) = messages
        assert message == (
            f"Port {address.port} is in use by another program."
            f" The demo uses port {moved.http.port} for HTTP."
        )
        assert move_to_free_ports(defaults, {"http", "mqtt"}, messages.append) == defaults
    free = Settings(http=ListenAddress("127.0.0.1", free_port()), mqtt=None)
    assert move_to_free_ports(free, (), messages.append) == free
    assert len(messages) == 1
