"""The link against paho-mqtt: the same work over the same mosquitto, each end a process of its own.

A case is run several times, in turns with the others, and the median counts.
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
"""As the guide recommends, but without a disk in the way."""

THRESHOLDS = {"receive": 4.0, "publish": 6.0, "idle KiB": 12.0, "times less than paho": 6.0}

RATE = 20_000


def run(*, quick: bool) -> dict[str, Any]:
    """Receive, publish, and sit idle."""
    rounds = 1 if quick else 5
    return {
        "receiving": _receiving(rounds, 20_000 if quick else 100_000),
        "publishing": _publishing(rounds, 20_000 if quick else 100_000),
        "idle": _idle(1_000 if quick else 10_000),
        "bars": THRESHOLDS,
    }


def _receiving(rounds: int, count: int) -> dict[str, Any]:
    """As fast as the broker gives, and at a rate. The publisher is the same every time."""
    table: dict[str, Metrics] = {}
    for pace, rate in (("flat out", 0), (f"{RATE}/s", RATE)):
        roles = {"link": "receive", "link on uvloop": "receive-uvloop", "paho": "receive-paho"}
        cases = {f"{name}, {pace}": partial(_received, role, count, rate) for name, role in roles.items()}
        table |= _compared(_medians(rounds, cases), anchor=f"paho, {pace}")
    return table


def _publishing(rounds: int, count: int) -> dict[str, Any]:
    roles = {
        "link, in batches": "publish",
        "link on uvloop, in batches": "publish-uvloop",
        "link, one by one": "publish-one-by-one",
        "link on uvloop, one by one": "publish-one-by-one-uvloop",
        "paho": "publish-paho",
    }
    cases = {name: partial(_alone, role, count) for name, role in roles.items()}
    return _compared(_medians(rounds, cases), anchor="paho")


def _idle(count: int) -> dict[str, Any]:
    return {role: _rounded(_alone(role, count)) for role in ("idle", "idle-uvloop")}


def _received(role: str, count: int, rate: int) -> Metrics:
    with _broker() as port, _end(role, port, count) as receiver:
        _line(receiver)  # it is ready
        with _end("publish-uvloop", port, count, rate):
            return _figures(receiver)


def _alone(role: str, count: int) -> Metrics:
    with _broker() as port, _end(role, port, count) as end:
        return _figures(end)


@contextmanager
def _broker() -> Iterator[int]:
    """A fresh one for every case, so that none inherits the sessions of another."""
    with (
        TemporaryDirectory(prefix="meshfleet-bench-") as folder,
        Mosquitto(Path(folder), *MOSQUITTO_SETTINGS) as broker,
    ):
        yield broker.address.port


def _end(role: str, port: int, count: int, rate: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.link_programs", role, str(port), str(count), str(rate)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 # our own program


def _line(end: subprocess.Popen[str]) -> str:
    line = end.stdout.readline() if end.stdout else ""
    if not line:
        raise RuntimeError(f"{end.args!r} has ended without its figures")
    return line


def _figures(end: subprocess.Popen[str]) -> Metrics:
    figures: Metrics = json.loads(_line(end))
    return figures


def _medians(rounds: int, cases: Mapping[str, Callable[[], Metrics]]) -> dict[str, Metrics]:
    seen: dict[str, list[Metrics]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            seen[name].append(case())
    return {
        name: {key: statistics.median(figures[key] for figures in runs) for key in runs[0]}
        for name, runs in seen.items()
    }


def _compared(table: dict[str, Metrics], *, anchor: str) -> dict[str, Metrics]:
    cost = table[anchor]["cpu_us"]
    return {name: _rounded({**row, "times_less": cost / row["cpu_us"]}) for name, row in table.items()}


def _rounded(row: Metrics) -> Metrics:
    return {key: round(value, 2) for key, value in row.items()}
