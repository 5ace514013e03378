"""Where `make run` and the demo listen: ports that were chosen are checked first, others give way."""

from __future__ import annotations

import subprocess
from contextlib import closing
from pathlib import Path
from socket import create_server

from meshfleet.cli.demo_service import move_to_free_ports
from meshfleet.settings import ListenAddress, Settings
from tests.external_tools import MAKE, require
from tests.servers import free_port

ROOT = Path(__file__).parent.parent


def _make_run(*chosen: str, dry: bool) -> subprocess.CompletedProcess[str]:
    command = [str(require(MAKE)), "--no-print-directory", *(["--dry-run"] if dry else []), "run", *chosen]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_a_chosen_port_that_is_taken_is_told_before_anything_is_built() -> None:
    with closing(create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        for chosen in (f"HTTP={port}", f"MQTT=127.0.0.1:{port}"):
            ended = _make_run(chosen, dry=False)
            assert (ended.returncode, ended.stdout) == (2, ""), ended
            assert f"Cannot listen at 127.0.0.1:{port}: Address already in use" in ended.stderr
            assert f"make run {chosen.partition('=')[0]}=PORT" in ended.stderr


def test_ports_are_chosen_by_number_or_with_a_host() -> None:
    given = {
        "": "serve --demo",
        "HTTP=8081 MQTT=1884": "serve --demo --http 127.0.0.1:8081 --mqtt 127.0.0.1:1884",
        "HTTP=0.0.0.0:80": "serve --demo --http 0.0.0.0:80",
        "HTTP=[::1]:8081 MQTT=off": "serve --demo --http [::1]:8081 --mqtt off",
    }
    found = {words: _make_run(*words.split(), dry=True).stdout.splitlines()[-1] for words in given}
    assert {words: line.partition("meshfleet ")[2].strip() for words, line in found.items()} == given


def test_the_demo_takes_the_next_free_port_and_says_so_unless_a_port_was_chosen() -> None:
    with closing(create_server(("127.0.0.1", 0))) as taken:
        place = ListenAddress("127.0.0.1", taken.getsockname()[1])
        usual = Settings(http=place, mqtt=place)
        told: list[str] = []
        moved = move_to_free_ports(usual, {"mqtt"}, told.append)
        assert moved.http.port > place.port
        assert moved.mqtt == place
        with closing(create_server(moved.http)):
            pass
        assert told == [
            f"Port {place.port} is in use by another program. The demo uses port {moved.http.port} for HTTP."
        ]
        assert move_to_free_ports(usual, {"http", "mqtt"}, told.append) == usual
    free = Settings(http=ListenAddress("127.0.0.1", free_port()), mqtt=None)
    assert move_to_free_ports(free, (), told.append) == free
    assert len(told) == 1
