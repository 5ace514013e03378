"""The embedded broker compared with mosquitto: the same clients load both, in turns; results are medians.

The cost of a broker is read from its process, so the cost of the clients does not matter. Every row has the
ratio of its metrics to those of mosquitto in the same run.
"""

from __future__ import annotations

import json
import time
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from tests.servers import free_port

from bench.broker_programs import MAX_CONNECTIONS
from bench.phases import medians, round_values
from bench.process_meter import Process
from bench.programs import (
    MOSQUITTO_SETTINGS,
    Broker,
    read_line,
    run_mosquitto,
    send_command,
    start_module,
)
from meshfleet.cli.file_limits import require_connections

if TYPE_CHECKING:
    import subprocess
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
_PROGRAMS = "bench.broker_programs"


@contextmanager
def _run_ours(role: str) -> Iterator[Broker]:
    port = free_port()
    with start_module(_PROGRAMS, role, port) as program:
        try:
            read_line(program)  # "ready"
            yield Broker(port, Process(program.pid))
        finally:
            program.terminate()


BROKERS: Mapping[str, Callable[[], AbstractContextManager[Broker]]] = {
    "mosquitto": partial(run_mosquitto, *MOSQUITTO_SETTINGS),
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
    return {name: _add_ratios(_measure_medians(rounds, part, brokers)) for name, part in parts.items()} | {
        "bars": THRESHOLDS
    }


def _measure_load(load: tuple[str | int, ...], count: int, broker: Broker) -> Metrics:
    """Measure a load of `count` messages, which for a fan-out are the outgoing messages."""
    role, *numbers = load
    with start_module(_PROGRAMS, role, broker.port, *numbers) as clients:
        read_line(clients)  # "ready": all are connected
        cpu = broker.process.cpu
        metrics = _run_load(clients)
        cpu = broker.process.cpu - cpu
    return {**metrics, "cpu_us": cpu / count * 1e6, "load_cpu_us": metrics["cpu_us"]}


def _measure_idle(connections: int, broker: Broker) -> Metrics:
    before = broker.process.memory
    with start_module(_PROGRAMS, "idle", broker.port, connections) as clients:
        read_line(clients)  # "ready": all are connected
        memory, cpu = broker.process.memory, broker.process.cpu
        time.sleep(IDLE_SECONDS)
        cpu = broker.process.cpu - cpu
        metrics = _run_load(clients)
    each = (memory - before) / connections * 1024
    return {**metrics, "MiB": memory, "KiB_each": each, "cpu_percent": cpu / IDLE_SECONDS * 100}


def _measure_storms(connections: int, broker: Broker) -> Metrics:
    """Measure a connect storm twice with the same clients: a broker may cache credentials."""
    first, again = (_measure_load(("storm", connections), connections, broker) for _ in range(2))
    return {**first, **{f"{key}_again": value for key, value in again.items()}}


def _run_load(clients: subprocess.Popen[str]) -> Metrics:
    """Start the load of the clients, and return their metrics."""
    metrics: Metrics = json.loads(send_command(clients, "begin"))
    return metrics


def _measure_medians(
    rounds: int, measure: Callable[[Broker], Metrics], brokers: Sequence[str]
) -> dict[str, Metrics]:
    """Measure a new instance of every broker in each round. Return the medians."""
    results: dict[str, list[Metrics]] = {name: [] for name in brokers}
    for _ in range(rounds):
        for name in brokers:
            with BROKERS[name]() as broker:
                results[name].append(measure(broker))
    return {name: medians(turns) for name, turns in results.items()}


def _add_ratios(table: dict[str, Metrics]) -> dict[str, Metrics]:
    anchor = table["mosquitto"]
    for row in table.values():
        row |= {f"{key} of mosquitto": row[key] / anchor[key] for key in COMPARED if anchor.get(key)}
    return {name: round_values(row) for name, row in table.items()}
