"""The embedded broker compared with mosquitto: the same clients load both, in turns; results are medians.

The cost of a broker is read from its process, so the cost of the clients does not matter. Every row has the
ratio of its metrics to those of mosquitto in the same run.
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
    """Running broker process."""

    port: int
    process: int

    @property
    def cpu(self) -> float:
        """CPU time of all its threads, in seconds."""
        fields = Path(f"/proc/{self.process}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def memory(self) -> float:
        """Resident memory in MiB."""
        pages = Path(f"/proc/{self.process}/statm").read_text("utf-8").split()[1]
        return int(pages) * resource.getpagesize() / 2**20


@contextmanager
def _run_mosquitto() -> Iterator[Broker]:
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        pid_file = Path(folder) / "process"
        with Mosquitto(Path(folder), *MOSQUITTO_SETTINGS, f"pid_file {pid_file}") as running:
            yield Broker(running.address.port, int(pid_file.read_text("utf-8")))


@contextmanager
def _run_ours(role: str) -> Iterator[Broker]:
    port = free_port()
    with _start_program(role, port) as process:
        try:
            _read_line(process)  # "ready"
            yield Broker(port, process.pid)
        finally:
            process.terminate()


BROKERS: Mapping[str, Callable[[], AbstractContextManager[Broker]]] = {
    "mosquitto": _run_mosquitto,
    "ours": partial(_run_ours, "serve"),
    "ours on uvloop": partial(_run_ours, "serve-uvloop"),
}


COMPARED = ("cpu_us", "per_s", "ms_p50", "ms_p99", "MiB", "KiB_each", "seconds", "seconds_again")
"""Metrics that have a ratio."""


def run(*, quick: bool, brokers: Sequence[str] = tuple(BROKERS)) -> dict[str, Any]:
    """Measure a full load, a fixed rate, fan-out, idle clients and a connect storm.

    `brokers` must contain mosquitto, the anchor.
    """
    require_connections(MAX_CONNECTIONS)  # mosquitto inherits the limit
    pushed, seconds, fanned = (40_000, 3, 4_000) if quick else (400_000, 10, 20_000)
    connections = 500 if quick else MAX_CONNECTIONS
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
        f"{connections} idle": partial(_measure_idle, connections),
        f"{connections} at once": partial(_measure_storms, connections),
    }
    rounds = 1 if quick else 3
    return {name: _add_ratios(_medians(rounds, part, brokers)) for name, part in parts.items()} | {
        "bars": THRESHOLDS
    }


def _measure_load(load: tuple[str | int, ...], count: int, broker: Broker) -> Metrics:
    """Measure a load of `count` messages, which for a fan-out are the outgoing messages."""
    role, *numbers = load
    with _start_program(role, broker.port, *numbers) as clients:
        _read_line(clients)  # "ready": all are connected
        cpu = broker.cpu
        metrics = _start_load(clients)
        cpu = broker.cpu - cpu
    return {**metrics, "cpu_us": cpu / count * 1e6, "load_cpu_us": metrics["cpu_us"]}


def _measure_idle(connections: int, broker: Broker) -> Metrics:
    before = broker.memory
    with _start_program("idle", broker.port, connections) as clients:
        _read_line(clients)  # "ready": all are connected
        memory, cpu = broker.memory, broker.cpu
        time.sleep(IDLE_SECONDS)
        cpu = broker.cpu - cpu
        metrics = _start_load(clients)
    each = (memory - before) / connections * 1024
    return {**metrics, "MiB": memory, "KiB_each": each, "cpu_percent": cpu / IDLE_SECONDS * 100}


def _measure_storms(connections: int, broker: Broker) -> Metrics:
    """Measure a connect storm twice with the same clients: a broker may cache credentials."""
    first, again = (_measure_load(("storm", connections), connections, broker) for _ in range(2))
    return {**first, **{f"{key}_again": value for key, value in again.items()}}


def _start_program(*arguments: str | int) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.broker_programs", *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 # our own program


def _read_line(program: subprocess.Popen[str]) -> str:
    line = program.stdout.readline() if program.stdout else ""
    if not line:
        raise RuntimeError(f"{program.args!r} has ended too early")
    return line


def _start_load(clients: subprocess.Popen[str]) -> Metrics:
    """Start the load of the clients, and return their metrics."""
    if clients.stdin:
        clients.stdin.write("begin\n")
        clients.stdin.flush()
    metrics: Metrics = json.loads(_read_line(clients))
    return metrics


def _medians(rounds: int, measure: Callable[[Broker], Metrics], brokers: Sequence[str]) -> dict[str, Metrics]:
    """Measure a new instance of every broker in each round. Return the medians."""
    results: dict[str, list[Metrics]] = {name: [] for name in brokers}
    for _ in range(rounds):
        for name in brokers:
            with BROKERS[name]() as broker:
                results[name].append(measure(broker))
    return {
        name: {key: statistics.median(metrics[key] for metrics in measured) for key in measured[0]}
        for name, measured in results.items()
    }


def _add_ratios(table: dict[str, Metrics]) -> dict[str, Metrics]:
    anchor = table["mosquitto"]
    for row in table.values():
        row |= {f"{key} of mosquitto": row[key] / anchor[key] for key in COMPARED if anchor.get(key)}
    return {name: {key: round(value, 2) for key, value in row.items()} for name, row in table.items()}
