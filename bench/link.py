"""The MQTT client compared with paho-mqtt: the same work over mosquitto, each client in its own process.

Each case runs several times, in turns with the others; results are medians.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.servers import Mosquitto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from bench.link_programs import Metrics

MOSQUITTO_SETTINGS = (
    "persistence false",
    "max_inflight_messages 2000",
    "max_queued_messages 0",
    "set_tcp_nodelay true",
    "log_type error",
)
"""Settings recommended by the guide, but without persistence."""

THRESHOLDS = {"receive": 4.0, "publish": 6.0, "idle KiB": 12.0, "times less than paho": 6.0}

RATE = 20_000


def run(*, quick: bool) -> dict[str, Any]:
    """Measure receiving, publishing and idle connections."""
    rounds = 1 if quick else 5
    return {
        "receiving": _measure_receiving(rounds, 20_000 if quick else 100_000),
        "publishing": _measure_publishing(rounds, 20_000 if quick else 100_000),
        "idle": _measure_idle(1_000 if quick else 10_000),
        "bars": THRESHOLDS,
    }


def _measure_receiving(rounds: int, count: int) -> dict[str, Any]:
    """Measure receiving at full speed and at a fixed rate, with the same publisher every time."""
    table: dict[str, Metrics] = {}
    for pace, rate in (("flat out", 0), (f"{RATE}/s", RATE)):
        roles = {"link": "receive", "link on uvloop": "receive-uvloop", "paho": "receive-paho"}
        cases = {f"{name}, {pace}": partial(_run_receiver, role, count, rate) for name, role in roles.items()}
        table |= _add_ratios(_medians(rounds, cases), anchor=f"paho, {pace}")
    return table


def _measure_publishing(rounds: int, count: int) -> dict[str, Any]:
    roles = {
        "link, in batches": "publish",
        "link on uvloop, in batches": "publish-uvloop",
        "link, one by one": "publish-one-by-one",
        "link on uvloop, one by one": "publish-one-by-one-uvloop",
        "paho": "publish-paho",
    }
    cases = {name: partial(_run_alone, role, count) for name, role in roles.items()}
    return _add_ratios(_medians(rounds, cases), anchor="paho")


def _measure_idle(count: int) -> dict[str, Any]:
    return {role: _round_values(_run_alone(role, count)) for role in ("idle", "idle-uvloop")}


def _run_receiver(role: str, count: int, rate: int) -> Metrics:
    with _run_broker() as port, _start_program(role, port, count) as receiver:
        _read_line(receiver)  # "ready"
        with _start_program("publish-uvloop", port, count, rate):
            return _read_metrics(receiver)


def _run_alone(role: str, count: int) -> Metrics:
    with _run_broker() as port, _start_program(role, port, count) as program:
        return _read_metrics(program)


@contextmanager
def _run_broker() -> Iterator[int]:
    """Run a new broker for every case, so that no sessions are left over from another."""
    with (
        TemporaryDirectory(prefix="meshfleet-bench-") as folder,
        Mosquitto(Path(folder), *MOSQUITTO_SETTINGS) as broker,
    ):
        yield broker.address.port


def _start_program(role: str, port: int, count: int, rate: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.link_programs", role, str(port), str(count), str(rate)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 # our own program


def _read_line(program: subprocess.Popen[str]) -> str:
    line = program.stdout.readline() if program.stdout else ""
    if not line:
        raise RuntimeError(f"{program.args!r} has ended without printing its metrics")
    return line


def _read_metrics(program: subprocess.Popen[str]) -> Metrics:
    metrics: Metrics = json.loads(_read_line(program))
    return metrics


def _medians(rounds: int, cases: Mapping[str, Callable[[], Metrics]]) -> dict[str, Metrics]:
    results: dict[str, list[Metrics]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            results[name].append(case())
    return {
        name: {key: statistics.median(metrics[key] for metrics in runs) for key in runs[0]}
        for name, runs in results.items()
    }


def _add_ratios(table: dict[str, Metrics], *, anchor: str) -> dict[str, Metrics]:
    cost = table[anchor]["cpu_us"]
    return {name: _round_values({**row, "times_less": cost / row["cpu_us"]}) for name, row in table.items()}


def _round_values(row: Metrics) -> Metrics:
    return {key: round(value, 2) for key, value in row.items()}
