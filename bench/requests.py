"""Latency that the service adds to requests, and the memory of ten thousand concurrent requests.

500 reads per second over 50 emulated gateways: of the gateways themselves (without the mesh), and of devices
behind them, minus the response time reported by the gateway. The service is `meshfleet serve`; the gateways
are one process, the client another. The anchor is the same reads directly over MQTT, through mosquitto to the
same gateways in another process: the difference to REST is what the service adds, including broker and HTTP.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from bench.api_client import Client
from bench.broker_clients import gateway_mac
from bench.ingest_service import run_service
from bench.ingest_verification import ADMIN_PASSWORD, read_metric
from bench.process_meter import wait_for
from bench.programs import run_module, run_mosquitto

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from bench.ingest_service import Service
    from bench.process_meter import Process

THRESHOLDS: Final = {"added by the service, p99 ms": 5.0, "10,000 in flight, MiB": 100.0}

GATEWAYS, DEVICES = 50, 4
RATE: Final = 500
SECONDS, QUICK_SECONDS = 30, 8
IN_FLIGHT: Final = 10_000
_ROUNDS: Final = 3
_AT_ONCE: Final = IN_FLIGHT // GATEWAYS + 10
_TIMEOUT: Final = 120.0

Target = tuple[str, str]


def run(*, quick: bool) -> dict[str, Any]:
    """Measure the added latency and the memory."""
    with (
        run_service(GATEWAYS) as ours,
        _run_gateways("emulated", ours.port),
        run_mosquitto("set_tcp_nodelay true") as anchor,
        _run_gateways("emulated", anchor.port),
    ):
        wait_for(lambda: len(_list_targets(ours)) == GATEWAYS * DEVICES, timeout=_TIMEOUT)
        gateways_themselves = [(gateway_mac(n), gateway_mac(n)) for n in range(GATEWAYS)]
        seconds = QUICK_SECONDS if quick else SECONDS
        added = {
            "a gateway itself": _compare_latency(ours, anchor.port, gateways_themselves, seconds),
            "a device behind it": _compare_latency(ours, anchor.port, _list_connected_targets(ours), seconds),
        }
    return {
        f"{RATE} requests a second over {GATEWAYS} gateways": {
            f"{target}, {interface}": row for target, rows in added.items() for interface, row in rows.items()
        },
        "at once": {f"{IN_FLIGHT:,} in flight": _measure_in_flight()},
        "bars": THRESHOLDS,
    }


def _compare_latency(
    ours: Service, anchor: int, targets: Sequence[Target], seconds: int
) -> dict[str, dict[str, float]]:
    """Measure all interfaces in turns, so that all see the same state of the machine. Return the medians."""
    each = max(2, seconds // _ROUNDS)
    rounds = [
        (
            _run_load(
                "rest", int(ours.url.rpartition(":")[2]), _get_token(ours), targets, each, ours.process
            ),
            _run_load("mqtt", ours.port, ADMIN_PASSWORD, targets, each, ours.process),
            _run_load("mqtt", anchor, ADMIN_PASSWORD, targets, each),
        )
        for _ in range(_ROUNDS)
    ]
    rest, mqtt, plain = (
        sorted(interface, key=lambda row: row["ms_p99"])[_ROUNDS // 2]
        for interface in zip(*rounds, strict=True)
    )
    return {
        "over REST": {**rest, "added_ms_p99": round(rest["ms_p99"] - plain["ms_p99"], 2)},
        "over MQTT, our broker": {**mqtt, "added_ms_p99": round(mqtt["ms_p99"] - plain["ms_p99"], 2)},
        "over MQTT, mosquitto": plain,
    }


def _run_load(  # noqa: PLR0913, PLR0917 # the arguments of the command
    interface: str,
    port: int,
    secret: str,
    targets: Sequence[Target],
    seconds: int,
    process: Process | None = None,
) -> dict[str, float]:
    arguments = (interface, port, secret, RATE, seconds)
    command = [sys.executable, "-m", "bench.requests_load", *map(str, arguments)]
    lines = "".join(f"{gateway} {device}\n" for gateway, device in targets)
    before = process.cpu if process else 0.0
    output = subprocess.run(command, input=lines, check=True, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603 # our own program
    metrics: dict[str, float] = json.loads(output)
    if process:
        metrics["cpu_us"] = (process.cpu - before) / (metrics["count"] + len(targets)) * 1e6
    return {name: round(each, 2) for name, each in metrics.items()}


def _measure_in_flight() -> dict[str, float]:
    """Measure the memory of ten thousand requests that get no response."""
    with (
        run_service(GATEWAYS, flags=("--requests-at-once", str(_AT_ONCE))) as ours,
        _run_gateways("mute", ours.port),
    ):
        wait_for(lambda: _count_connected_gateways(ours) == GATEWAYS, timeout=_TIMEOUT)
        paths = [f"/api/v1/devices/bmac-{gateway_mac(n)}/requests" for n in range(GATEWAYS)]
        body = {"operation": "read", "identifier": "8000", "timeoutMs": 120_000}
        with Client(ours.url) as client:
            client.log_in(ADMIN_PASSWORD)
            client.post(
                paths[0], {**body, "timeoutMs": 100}, status=504
            )  # warm up: one-time imports are not measured
            time.sleep(1.0)
            before, started = ours.process.memory, time.monotonic()
            for number in range(IN_FLIGHT):
                client.post(paths[number % GATEWAYS], body, headers={"Prefer": "respond-async"}, status=202)
            seconds = time.monotonic() - started
            memory = ours.process.memory
        pending = read_metric(ours.url, "meshfleet_requests_pending")
        queued = read_metric(ours.url, "meshfleet_requests_queued")
    if pending < IN_FLIGHT or queued:
        raise RuntimeError(f"{pending} requests are pending, {queued} of them queued")
    return {
        "MiB": round(memory - before, 1),
        "MiB of the whole service": round(memory, 1),
        "kiB_each": round((memory - before) * 1024 / IN_FLIGHT, 2),
        "per_s": round(IN_FLIGHT / seconds),
    }


def _list_targets(ours: Service) -> list[Target]:
    """Return the reported devices, each with its gateway."""
    with Client(ours.url) as client:
        client.log_in(ADMIN_PASSWORD)
        items = json.loads(client.get("/api/v1/devices?MaxResults=1000&Include=live"))["items"]
    gateways = {f"bmac-{gateway_mac(n)}" for n in range(GATEWAYS)}
    return [
        (each["live"]["gateway"], each["id"].removeprefix("bmac-"))
        for each in items
        if each["id"] not in gateways and each["live"]["gateway"] is not None
    ]


def _list_connected_targets(ours: Service) -> list[Target]:
    """Return the connected devices: unconnected ones are reached by short sessions, one at a time."""
    body = {"operation": "read", "identifier": "8000"}
    with Client(ours.url) as client:
        client.log_in(ADMIN_PASSWORD)
        return [
            target
            for target in _list_targets(ours)
            if client.post(f"/api/v1/devices/bmac-{target[1]}/requests", body).get("origin") == 0
        ]


def _count_connected_gateways(ours: Service) -> int:
    with Client(ours.url) as client:
        client.log_in(ADMIN_PASSWORD)
        items = json.loads(client.get("/api/v1/gateways?MaxResults=1000"))["items"]
    return sum(each["connected"] for each in items)


def _get_token(ours: Service) -> str:
    with Client(ours.url) as client:
        return client.log_in(ADMIN_PASSWORD)


def _run_gateways(role: str, port: int) -> AbstractContextManager[subprocess.Popen[str]]:
    return run_module("bench.requests_gateways", role, port, GATEWAYS, DEVICES)
