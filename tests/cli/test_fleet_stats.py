"""Statistics printed by `meshfleet simulate`."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import time
from typing import TYPE_CHECKING, Any, Self

import pytest

from tests.cli.forked_process import fork_at_terminal
from tests.cli.programs import TEST_TIMEOUT, Program, broker_url
from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

FIELDS = {
    *("seconds", "gateways", "connected", "reports", "reportsPerSecond"),
    *("requests", "dropped", "cpuMicrosPerReport", "trouble"),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    with Mosquitto(tmp_path_factory.mktemp("broker")) as running:
        yield running


def run_simulation(*arguments: str) -> list[Any]:
    with Program("simulate", "--json", *arguments) as program:
        code, output, errors = program.wait_for_exit()
    assert (code, errors) == (0, "")
    return [json.loads(line) for line in output.splitlines()]


def test_json_statistics_are_one_object_per_line(broker: Mosquitto) -> None:
    options = ["--gateways", "3", "--devices", "2", "--rate", "100"]
    last: dict[str, Any] = {}
    for seconds in ("1", "5", "20"):  # a slow machine needs more time
        *_, last = run_simulation("--broker", broker_url(broker), *options, "--seconds", seconds)
        if last["reports"] >= 20:
            break
    assert set(last) == FIELDS
    assert (last["gateways"], last["connected"], last["dropped"], last["trouble"]) == (3, 3, 0, "")
    # A simulation never exceeds the rate; on a slow machine it stays below.
    assert 20 <= last["reports"] <= 100 * last["seconds"] + 20


def test_statistics_are_printed_even_after_zero_seconds(broker: Mosquitto) -> None:
    (last,) = run_simulation("--broker", broker_url(broker), "--gateways", "1", "--seconds", "0")
    assert last["connected"] == 1


def test_statistics_without_json_are_a_sentence(broker: Mosquitto) -> None:
    options = ["--gateways", "2", "--devices", "2", "--speed", "100", "--seconds", "1"]
    with Program("simulate", "--broker", broker_url(broker), *options) as program:
        code, output, errors = program.wait_for_exit()
    assert (code, errors) == (0, "")
    assert re.fullmatch(r"\d+ s: 2 of 2 gateways, \d+ reports \(\d+/s\), 0 requests\n", output)


class Terminal:
    """Command that runs at a terminal."""

    def __init__(self, *arguments: str) -> None:
        self._screen, inside = pty.openpty()
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        self._process = fork_at_terminal(arguments, environment, inside)
        os.close(inside)
        self.shown = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self.wait()
        os.close(self._screen)

    def interrupt(self) -> None:
        """Type Ctrl-C."""
        os.write(self._screen, b"\x03")

    def wait(self) -> int | None:
        """Wait for the end of the command, and return its exit code."""
        self._process.join(TEST_TIMEOUT)
        return self._process.exitcode

    def read_until(self, pattern: str) -> str:
        """Read until a pattern is shown, and return the match."""
        until = time.monotonic() + TEST_TIMEOUT
        while not (found := re.search(pattern, self.shown)):
            ready, _, _ = select.select([self._screen], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"no {pattern} in {self.shown[-500:]}"
            self.shown += os.read(self._screen, 65536).decode(errors="replace")
        return found[0]


def test_a_terminal_shows_changing_statistics(broker: Mosquitto) -> None:
    options = ["--gateways", "3", "--devices", "2", "--rate", "50"]
    with Terminal("simulate", "--broker", broker_url(broker), *options) as terminal:
        terminal.read_until(r"gateways +3\b")
        terminal.read_until(r"connected +3\b")
        first = terminal.read_until(r"reports +[1-9]\d*")
        terminal.shown = ""
        terminal.read_until(rf"reports +(?!{first.split()[-1]}\b)[1-9]\d*")
        terminal.interrupt()
        terminal.read_until(r"\x1b\[\?25h")  # the cursor is shown again
        assert terminal.wait() == 0
    assert "Traceback" not in terminal.shown


def test_a_terminal_shows_why_gateways_are_not_connected(tmp_path: Path) -> None:
    options = ["--gateways", "2", "--devices", "2"]
    with (
        Mosquitto(tmp_path) as broker,
        Terminal("simulate", "--broker", broker_url(broker), *options) as terminal,
    ):
        terminal.read_until(r"connected +2\b")
        terminal.shown = ""
        broker.stop()
        terminal.read_until(r"connected +0\b")
        terminal.read_until(r"problem +\S+")
        broken = terminal.shown
        terminal.shown = ""
        broker.start()
        terminal.read_until(r"connected +2\b")
    assert "WARNING" not in broken  # log lines would break the live table


def test_the_shown_time_starts_with_the_reports(broker: Mosquitto) -> None:
    options = ["--gateways", "2", "--devices", "5", "--rate", "1000", "--seconds", "1"]
    with Terminal("simulate", "--broker", broker_url(broker), *options) as terminal:
        terminal.read_until(r"\x1b\[\?25h")
        assert terminal.wait() == 0
    seconds = float(re.findall(r"seconds +([\d.]+)", terminal.shown)[-1])
    reports = int(re.findall(r"(?<!per )reports +([\d,]+)", terminal.shown)[-1].replace(",", ""))
    # A simulation never exceeds the rate.
    assert reports <= 1000 * (seconds + 0.1)
