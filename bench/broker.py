"""Our broker against mosquitto: the same clients do the same to both, in turns, and the median counts.

What a broker costs is read from its process, so it does not matter what its clients take. Every row has the
ratio of its figures to mosquitto's of the same run.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.servers import Mosquitto, free_port

from bench.broker_programs import MAX_CONNECTIONS
from bench.link import MOSQUITTO_SETTINGS
from meshfleet.cli.file_limits import require_connections

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.link_programs import Metrics

THRESHOLDS = {
    "pushed, cpu_us": 4.0,
    "paced, cpu_us": 12.0,
    "fan-out, per_s of mosquitto": 0.5,
    "idle, MiB": 250.0,
    "storm, seconds": 30.0,
}

PUSHING_CONNECTIONS, PACED_CONNECTIONS, RATE, FAN_OUT_SUBSCRIBERS = 20, 2_000, 20_000, 50
IDLE_SECONDS = 5

_TICKS = os.sysconf("SC_CLK_TCK")


class Broker(NamedTuple):
    """A broker that runs, as a process."""

    port: int
    process: int

    @property
    def cpu(self) -> float:
        """Seconds of CPU time that it has taken, all its threads together."""
        fields = Path(f"/proc/{self.process}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def memory(self) -> float:
        """MiB of memory that it has."""
        pages = Path(f"/proc/{self.process}/statm").read_text("utf-8").split()[1]
        return int(pages) * resource.getpagesize() / 2**20


@contextmanager
def _mosquitto() -> Iterator[Broker]:
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        note = Path(folder) / "process"
        with Mosquitto(Path(folder), *MOSQUITTO_SETTINGS, f"pid_file {note}") as running:
            yield Broker(running.address.port, int(note.read_text("utf-8")))


@contextmanager
def _ours(role: str) -> Iterator[Broker]:
    port = free_port()
    with _program(role, port) as process:
        try:
            _line(process)  # it is ready
            yield Broker(port, process.pid)
        finally:
            process.terminate()


BROKERS: Mapping[str, Callable[[], AbstractContextManager[Broker]]] = {
    "mosquitto": _mosquitto,
    "ours": partial(_ours, "serve"),
    "ours on uvloop": partial(_ours, "serve-uvloop"),
}


COMPARED = ("cpu_us", "per_s", "ms_p50", "ms_p99", "MiB", "KiB_each", "seconds", "seconds_again")
"""The figures that have a ratio."""


def run(*, quick: bool, brokers: Sequence[str] = tuple(BROKERS)) -> dict[str, Any]:
    """Push, keep a pace, fan out, sit idle, and come all at once. Among the brokers must be mosquitto."""
    require_connections(MAX_CONNECTIONS)  # mosquitto inherits it
    pushed, seconds, fanned = (40_000, 3, 4_000) if quick else (400_000, 10, 20_000)
    crowd = 500 if quick else MAX_CONNECTIONS
    parts: dict[str, Callable[[Broker], Metrics]] = {
        f"pushed by {PUSHING_CONNECTIONS} connections": partial(
            _measure_load, ("push", PUSHING_CONNECTIONS, pushed), pushed
        ),
        f"{RATE}/s from {PACED_CONNECTIONS}": partial(
            _measure_load, ("pace", PACED_CONNECTIONS, RATE, seconds), RATE * seconds
        ),
        f"fan-out to {FAN_OUT_SUBSCRIBERS}, QoS 0": partial(
            _measure_load, ("fan-out", FAN_OUT_SUBSCRIBERS, fanned, 0), FAN_OUT_SUBSCRIBERS * fanned
        ),
        f"fan-out to {FAN_OUT_SUBSCRIBERS}, QoS 1": partial(
            _measure_load, ("fan-out", FAN_OUT_SUBSCRIBERS, fanned, 1), FAN_OUT_SUBSCRIBERS * fanned
        ),
        f"{crowd} idle": partial(_idle, crowd),
        f"{crowd} at once": partial(_storms, crowd),
    }
    rounds = 1 if quick else 3
    return {name: _add_ratios(_medians(rounds, part, brokers)) for name, part in parts.items()} | {
        "bars": THRESHOLDS
    }


def _measure_load(load: tuple[str | int, ...], count: int, broker: Broker) -> Metrics:
    """What so many messages of a load cost; at a fan-out they are what goes out."""
    role, *numbers = load
    with _program(role, broker.port, *numbers) as clients:
        _line(clients)  # they are connected
        cpu = broker.cpu
        figures = _start_load(clients)
        cpu = broker.cpu - cpu
    return {**figures, "cpu_us": cpu / count * 1e6, "load_cpu_us": figures["cpu_us"]}


def _idle(crowd: int, broker: Broker) -> Metrics:
    before = broker.memory
    with _program("idle", broker.port, crowd) as clients:
        _line(clients)  # they are connected
        memory, cpu = broker.memory, broker.cpu
        time.sleep(IDLE_SECONDS)
        cpu = broker.cpu - cpu
        figures = _start_load(clients)
    each = (memory - before) / crowd * 1024
    return {**figures, "MiB": memory, "KiB_each": each, "cpu_percent": cpu / IDLE_SECONDS * 100}


def _storms(crowd: int, broker: Broker) -> Metrics:
    """The same clients twice: a broker may know them the second time."""
    first, again = (_measure_load(("storm", crowd), crowd, broker) for _ in range(2))
    return {**first, **{f"{key}_again": value for key, value in again.items()}}


def _program(*arguments: str | int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.broker_programs", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 # our own


def _line(program: subprocess.Popen[str]) -> str:
    line = program.stdout.readline() if program.stdout else ""
    if not line:
        raise RuntimeError(f"{program.args!r} has ended too early")
    return line


def _start_load(clients: subprocess.Popen[str]) -> Metrics:
    """Let them begin, and get their figures."""
    if clients.stdin:
        clients.stdin.write("begin\n")
        clients.stdin.flush()
    figures: Metrics = json.loads(_line(clients))
    return figures


def _medians(rounds: int, measure: Callable[[Broker], Metrics], brokers: Sequence[str]) -> dict[str, Metrics]:
    """Each round gives every broker its turn, a fresh one that inherits nothing."""
    seen: dict[str, list[Metrics]] = {name: [] for name in brokers}
    for _ in range(rounds):
        for name in brokers:
            with BROKERS[name]() as broker:
                seen[name].append(measure(broker))
    return {
        name: {key: statistics.median(figures[key] for figures in turns) for key in turns[0]}
        for name, turns in seen.items()
    }


def _add_ratios(table: dict[str, Metrics]) -> dict[str, Metrics]:
    anchor = table["mosquitto"]
    for row in table.values():
        row |= {f"{key} of mosquitto": row[key] / anchor[key] for key in COMPARED if anchor.get(key)}
    return {name: {key: round(value, 2) for key, value in row.items()} for name, row in table.items()}
