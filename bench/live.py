"""Latency from a report to its live event: 2,000 reports per second and 50 subscribers.

Half of the subscribers use server-sent events, half WebSocket. The service is `meshfleet serve`; the gateways
are one process, the subscribers another. A report contains its publishing time, so the latency is computed
from the event with the same clock. The anchor is mosquitto with the same reports and 50 MQTT subscribers with
the same filters, which stores nothing.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from bench.api_client import Client
from bench.ingest_load import Load
from bench.ingest_service import run_load_generator, run_service, start_load
from bench.ingest_verification import ADMIN_PASSWORD
from bench.live_listeners import DEVICES, GATEWAYS, ListenerStats
from bench.programs import run_module, run_mosquitto

if TYPE_CHECKING:
    import subprocess

    from bench.process_meter import Process

THRESHOLDS: Final = {"report to listener, p99 ms": 150.0}

RATE: Final = 2_000
SECONDS, QUICK_SECONDS = 30, 8
_WARM: Final = 3
"""Seconds in which all devices report for the first time."""

_SETTLE: Final = 1.0
"""Seconds for the last events to arrive."""


def run(*, quick: bool) -> dict[str, Any]:
    """Measure the service, then mosquitto."""
    load = Load("pace", GATEWAYS, DEVICES, RATE, QUICK_SECONDS if quick else SECONDS)
    with run_service(GATEWAYS) as ours:
        _measure_cpu(ours.process, ours.port, load._replace(seconds=_WARM))
        cpu_without = _measure_cpu(ours.process, ours.port, load)
        with Client(ours.url) as client:
            token = client.log_in(ADMIN_PASSWORD)
        ours_row = _measure_latency(ours.process, ours.port, load, ["service", ours.url, token], cpu_without)
    with run_mosquitto() as anchor:
        cpu_without = _measure_cpu(anchor.process, anchor.port, load)
        destination = ["mosquitto", str(anchor.port), "-"]
        anchor_row = _measure_latency(anchor.process, anchor.port, load, destination, cpu_without)
    return {
        f"{RATE:,} reports a second, 50 listeners": {"meshfleet": ours_row, "mosquitto": anchor_row},
        "bars": THRESHOLDS,
    }


def _measure_cpu(process: Process, port: int, load: Load) -> float:
    """Return the CPU time of the load without subscribers."""
    with run_load_generator(port, load) as gateways:
        before = process.cpu
        start_load(gateways)
        return process.cpu - before


def _measure_latency(
    process: Process, port: int, load: Load, destination: list[str], cpu_without: float
) -> dict[str, float]:
    with (
        run_module("bench.live_listeners", *destination) as listeners,
        run_load_generator(port, load) as gateways,
    ):
        before = process.cpu
        sent = start_load(gateways)
        cpu = process.cpu - before
        time.sleep(_SETTLE)
        stats = _stop_listeners(listeners)
    return {
        "reports": sent.count,
        "delivered": stats.count,
        "ms_p50": round(stats.ms_p50, 1),
        "ms_p99": round(stats.ms_p99, 1),
        "ms_max": round(stats.ms_max, 1),
        "resyncs": stats.resyncs,
        "puback_ms_p99": round(sent.ms_p99, 1),
        "cpu %": round(cpu / sent.seconds * 100, 1),
        "cpu % unheard": round(cpu_without / sent.seconds * 100, 1),
        "cpu_us per delivery": round((cpu - cpu_without) / max(1, stats.count) * 1e6, 2),
    }


def _stop_listeners(listeners: subprocess.Popen[str]) -> ListenerStats:
    output, _ = listeners.communicate("end\n")
    return msgspec.json.decode(output, type=ListenerStats)
