"""CPU time per report of emulated gateways, of one gateway alone and of a large fleet on a broker.

The anchor is paho-mqtt, which publishes prepared reports over one connection to the same broker.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from bench.harness import Case, measure_cpu_per_operation
from bench.programs import MOSQUITTO_SETTINGS, run_mosquitto
from meshfleet.emulator import EmulatorSettings, GatewayEmulator, ReportMode, SimulatedClock, generate_site
from meshfleet.protocol.ids import Mac

THRESHOLDS = {"cpu_us": 25.0, "MiB": 2048, "gateways": 5000, "devices of each": 50, "per_s": 10_000}

MAC = Mac("02005e000001")
STEP = 60.0


def run(*, quick: bool) -> dict[str, Any]:
    """Measure one gateway without a broker, then a fleet."""
    return {
        "one gateway, no broker": _measure_alone(quick=quick),
        "on a broker": _measure_fleet(*((500, 10) if quick else (5000, 60))),
        "bars": THRESHOLDS,
    }


def _measure_alone(*, quick: bool) -> dict[str, Any]:
    """Measure a gateway with 50 devices without a broker; an operation is a report."""
    cases = {}
    for mode in ReportMode:
        gateway = GatewayEmulator(
            EmulatorSettings(mac=MAC, mode=mode), generate_site(MAC, devices=50, seed=1), SimulatedClock(0)
        )
        gateway.advance(STEP)
        before = gateway.report_count
        gateway.advance(2 * STEP)
        cases[f"{mode} reports"] = Case(_build_step(gateway), None, gateway.report_count - before)
    return {name: {"cpu_us": cpu} for name, cpu in measure_cpu_per_operation(cases, quick=quick).items()}


def _build_step(gateway: GatewayEmulator) -> Any:
    minutes = iter(range(3, 1_000_000))
    return lambda _: gateway.advance(next(minutes) * STEP)


def _measure_fleet(gateways: int, seconds: int) -> dict[str, Any]:
    with run_mosquitto(*MOSQUITTO_SETTINGS) as broker:
        port = str(broker.port)
        anchor = _run_program("paho", port, "20000")
        fleet = _run_program("fleet", port, str(gateways), "50", str(THRESHOLDS["per_s"]), str(seconds))
    fleet["of paho"] = round(fleet["cpu_us"] / anchor["cpu_us"], 3)
    return {f"{gateways} gateways with 50 devices": fleet, "paho": anchor}


def _run_program(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.gateway_programs", *arguments]
    done = subprocess.run(command, check=True, capture_output=True)  # noqa: S603 # our own program
    metrics: dict[str, float] = json.loads(done.stdout)
    return metrics
