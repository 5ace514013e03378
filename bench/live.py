"""From a report to those who listen: 2,000 reports a second and 50 listeners, half of them at each door.

The service is the program that users run; gateways are one process, listeners another. A report tells when it
was published, so what passes until its event arrives is read off the event, by the same clock. The anchor is
mosquitto with the same reports and 50 subscribers who want the same: it stores nothing and waits for nobody.
"""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import msgspec
from tests.servers import Mosquitto

from bench.api_client import Client
from bench.ingest_load import Load
from bench.ingest_service import run_load_generator, run_service, start_load
from bench.ingest_verification import ADMIN_PASSWORD
from bench.live_listeners import DEVICES, GATEWAYS, ListenerStats
from bench.process_meter import Process

if TYPE_CHECKING:
    from collections.abc import Iterator

THRESHOLDS: Final = {"report to listener, p99 ms": 150.0}

RATE: Final = 2_000
SECONDS, QUICK_SECONDS = 30, 8
_WARM: Final = 3
"""Seconds in which all devices come for the first time."""

_SETTLE: Final = 1.0
"""Seconds for the last events to arrive."""


def run(*, quick: bool) -> dict[str, Any]:
    """Measure both, one after the other."""
    load = Load("pace", GATEWAYS, DEVICES, RATE, QUICK_SECONDS if quick else SECONDS)
    with run_service(GATEWAYS) as ours:
        _cost(ours.process, ours.port, load._replace(seconds=_WARM))
        unheard = _cost(ours.process, ours.port, load)
        with Client(ours.url) as client:
            token = client.post("/api/v1/auth/login", {"username": "admin", "password": ADMIN_PASSWORD})[
                "authToken"
            ]
        ours_row = _measured(ours.process, ours.port, load, ["service", ours.url, token], unheard)
    with _mosquitto() as (process, port):
        unheard = _cost(process, port, load)
        anchor_row = _measured(process, port, load, ["mosquitto", str(port), "-"], unheard)
    return {
        f"{RATE:,} reports a second, 50 listeners": {"meshfleet": ours_row, "mosquitto": anchor_row},
        "bars": THRESHOLDS,
    }


@contextmanager
def _mosquitto() -> Iterator[tuple[Process, int]]:
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        note = Path(folder) / "pid"
        with Mosquitto(Path(folder), f"pid_file {note}") as running:
            yield Process(int(note.read_text("utf-8"))), running.address.port


def _cost(process: Process, port: int, load: Load) -> float:
    """CPU time of the load while nobody listens."""
    with run_load_generator(port, load) as gateways:
        before = process.cpu
        start_load(gateways)
        return process.cpu - before


def _measured(process: Process, port: int, load: Load, door: list[str], unheard: float) -> dict[str, float]:
    with _listeners(door) as listeners, run_load_generator(port, load) as gateways:
        before = process.cpu
        sent = start_load(gateways)
        cpu = process.cpu - before
        time.sleep(_SETTLE)
        heard = _end(listeners)
    return {
        "reports": sent.count,
        "delivered": heard.count,
        "ms_p50": round(heard.ms_p50, 1),
        "ms_p99": round(heard.ms_p99, 1),
        "ms_max": round(heard.ms_max, 1),
        "resyncs": heard.resyncs,
        "puback_ms_p99": round(sent.ms_p99, 1),
        "cpu %": round(cpu / sent.seconds * 100, 1),
        "cpu % unheard": round(unheard / sent.seconds * 100, 1),
        "cpu_us per delivery": round((cpu - unheard) / max(1, heard.count) * 1e6, 2),
    }


@contextmanager
def _listeners(door: list[str]) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "bench.live_listeners", *door]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:  # noqa: S603 # our own
        if program.stdout is None or program.stdout.readline() != "ready\n":
            raise RuntimeError("the listeners did not come in")
        try:
            yield program
        finally:
            program.kill()


def _end(listeners: subprocess.Popen[str]) -> ListenerStats:
    told, _ = listeners.communicate("end\n")
    return msgspec.json.decode(told, type=ListenerStats)
