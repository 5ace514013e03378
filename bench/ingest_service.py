"""The service under the load of `bench.ingest`: `meshfleet serve` on a new database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import psycopg
from sqlalchemy import insert

from bench.broker_clients import gateway_mac
from bench.ingest_load import LoadResult
from bench.ingest_reports import REPORTS_PER_ROUND, build_reports
from bench.ingest_verification import ADMIN_PASSWORD, read_metric, verify_samples
from bench.process_meter import MemoryMonitor, PostgresProcesses, Process, cpu_when_settled, wait_for
from bench.programs import read_line, send_command, start_module
from meshfleet.db import open_database
from meshfleet.db.tables import gateway as claims
from meshfleet.protocol.ids import Mac, mac_to_int
from meshfleet.service import clock
from meshfleet.service.accounts.api_key_store import hash_credential
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sqlalchemy import Connection

    from bench.ingest_load import Load

    Metrics = dict[str, float]

SAMPLES_PER_REPORT: Final = sum(each.is_sample for each in build_reports(0, 1)) / REPORTS_PER_ROUND
"""Fraction of reports that become samples."""

_LIMITS: Final = {
    "connections": 5_000,
    "connections-per-address": 5_000,
    "publish-rate": 10_000_000,
}
"""Limits for gateways that share one address and run at full speed."""

_TIMEOUT: Final = 120.0


class Service(NamedTuple):
    """Running service."""

    process: Process
    port: int
    url: str
    server: PostgresProcesses | None
    """PostgreSQL server that it writes to; None on SQLite."""


@contextmanager
def run_service(gateways: int, server: str | None = None, *, flags: Sequence[str] = ()) -> Iterator[Service]:
    """Run the service on SQLite, or on a new database of a PostgreSQL server, with additional flags."""
    database = "sqlite" if server is None else create_database(server)
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        with closing(open_database(database, Path(folder))) as opened:
            opened.write_now(claim_gateways, gateways)
        with _run_program(database, Path(folder), flags) as (process, info):
            port = int(info["mqtt"][0].rpartition(":")[2])
            yield Service(process, port, info["url"], PostgresProcesses.of_server(server) if server else None)


def create_database(server: str) -> str:
    """Create an empty database, and return its URL."""
    name = f"bench_{time.time_ns()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.rpartition("/")[0] + f"/{name}"


@contextmanager
def run_load_generator(port: int, load: Load) -> Iterator[subprocess.Popen[str]]:
    """Start the gateways, and wait until they are connected."""
    module = "bench.ingest_acked_load" if load.is_acked else "bench.ingest_load"
    numbers = (port, load.gateways, load.devices, load.amount, load.seconds)
    with start_module(module, load.role, *numbers) as program:
        read_line(program)
        yield program


def start_load(program: subprocess.Popen[str]) -> LoadResult:
    """Start the load, and wait until all reports are acknowledged."""
    return msgspec.json.decode(send_command(program, "begin"), type=LoadResult)


def measure_load(ours: Service, load: Load, *, quick: bool) -> Metrics:
    """Measure what a load costs the service and its PostgreSQL server, and verify the stored samples."""
    with run_load_generator(ours.port, load) as gateways:
        if load.is_acked:
            _wait_until_acking(ours, load.gateways)
        since, cpu, written = clock.now(), ours.process.cpu, ours.process.bytes_written
        server_cpu = ours.server.cpu if ours.server else 0.0
        with MemoryMonitor(ours.process) as memory:
            sent = start_load(gateways)
        busy = ours.process.cpu - cpu
        cpu, written = cpu_when_settled(ours.process, quick=quick) - cpu, ours.process.bytes_written - written
        server_cpu = ours.server.cpu - server_cpu if ours.server else 0.0
    return {
        **format_load_result(sent),
        "cpu_us": busy / sent.count * 1e6,
        "cpu_us_settled": cpu / sent.count * 1e6,
        **memory.metrics(),
        "samples": sent.count * SAMPLES_PER_REPORT,
        "checked": verify_samples(ours.url, load, sent, since=since),
        **(
            {"server_cpu_us": server_cpu / sent.count * 1e6}
            if ours.server
            else {"bytes_per_sample": written / sent.count / SAMPLES_PER_REPORT}
        ),
        **(_check_acks(ours, sent) if load.is_acked else {}),
    }


def _wait_until_acking(ours: Service, gateways: int) -> None:
    """Wait until the service sends acks to all gateways, whose versions it has read."""
    wait_for(lambda: read_metric(ours.url, "meshfleet_gateways_acking") == gateways, timeout=_TIMEOUT)


def _check_acks(ours: Service, sent: LoadResult) -> Metrics:
    """Check that the service sent no more acks than the gateways received, and return metrics of acks."""
    if (acks := read_metric(ours.url, "meshfleet_acks_total")) != sent.acks:
        raise RuntimeError(f"{acks} acks were sent instead of {sent.acks}")
    gaps = read_metric(ours.url, "meshfleet_holes_found_total")
    return {"acks_per_report": sent.acks / sent.count, "backfills": sent.backfills, "holes": gaps}


def format_load_result(sent: LoadResult) -> Metrics:
    """Return the metrics measured by the gateways."""
    return {
        "count": sent.count,
        "per_s": sent.count / sent.seconds,
        "slowest_per_s": sent.slowest_per_s,
        "ms_p50": sent.ms_p50,
        "ms_p99": sent.ms_p99,
        "load_cpu_us": sent.load_cpu_us,
    }


def claim_gateways(connection: Connection, count: int) -> None:
    """Claim gateways with numbers from 0, whose passwords the clients of the benchmarks know."""
    now, macs = clock.now(), [Mac(gateway_mac(number)) for number in range(count)]
    registry.record_observations(
        connection, [DeviceObservation(device=mac, at=now, heard=False) for mac in macs]
    )
    rows = [
        {"device": mac_to_int(mac), "password": hash_credential(f"secret-{mac}"), "claimed_at": now}
        for mac in macs
    ]
    connection.execute(insert(claims), rows)


@contextmanager
def _run_program(
    database: str, folder: Path, flags: Sequence[str]
) -> Iterator[tuple[Process, dict[str, str]]]:
    command = [sys.executable, "-m", "meshfleet", "serve", "--json", "--data", str(folder)]
    command += ["--database", database, "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"]
    command += [part for name, value in _LIMITS.items() for part in (f"--limits-{name}", str(value))]
    command += flags
    environment = {**os.environ, "MESHFLEET_ADMIN_PASSWORD": ADMIN_PASSWORD}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as program:  # noqa: S603 # our own program
        try:
            yield Process(program.pid), json.loads(read_line(program))
        finally:
            program.terminate()
            program.wait(_TIMEOUT)
