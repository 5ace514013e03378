"""The MQTT client compared with paho-mqtt: the same work over mosquitto, each client in its own process.

Each case runs several times, in turns with the others; results are medians.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.phases import medians, round_values
from bench.programs import MOSQUITTO_SETTINGS, read_line, run_mosquitto, start_module

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping

    from bench.link_programs import Metrics

THRESHOLDS = {"receive": 4.0, "publish": 6.0, "idle KiB": 12.0, "times less than paho": 6.0}

RATE = 20_000
_PROGRAMS = "bench.link_programs"


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
        table |= _add_ratios(_measure_medians(rounds, cases), anchor=f"paho, {pace}")
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
    return _add_ratios(_measure_medians(rounds, cases), anchor="paho")


def _measure_idle(count: int) -> dict[str, Any]:
    return {role: round_values(_run_alone(role, count)) for role in ("idle", "idle-uvloop")}


def _run_receiver(role: str, count: int, rate: int) -> Metrics:
    with (
        run_mosquitto(*MOSQUITTO_SETTINGS) as broker,
        start_module(_PROGRAMS, role, broker.port, count, 0) as receiver,
    ):
        read_line(receiver)  # "ready"
        with start_module(_PROGRAMS, "publish-uvloop", broker.port, count, rate):
            return _read_metrics(receiver)


def _run_alone(role: str, count: int) -> Metrics:
    with (
        run_mosquitto(*MOSQUITTO_SETTINGS) as broker,
        start_module(_PROGRAMS, role, broker.port, count, 0) as program,
    ):
        return _read_metrics(program)


def _read_metrics(program: subprocess.Popen[str]) -> Metrics:
    metrics: Metrics = json.loads(read_line(program))
    return metrics


def _measure_medians(rounds: int, cases: Mapping[str, Callable[[], Metrics]]) -> dict[str, Metrics]:
    results: dict[str, list[Metrics]] = {name: [] for name in cases}
    for _ in range(rounds):
        for name, case in cases.items():
            results[name].append(case())
    return {name: medians(turns) for name, turns in results.items()}


def _add_ratios(table: dict[str, Metrics], *, anchor: str) -> dict[str, Metrics]:
    cost = table[anchor]["cpu_us"]
    return {name: round_values({**row, "times_less": cost / row["cpu_us"]}) for name, row in table.items()}
