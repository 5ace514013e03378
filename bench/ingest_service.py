"""Our service under the load of `bench.ingest`: the program that users run, on a fresh database."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
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

    Figures = dict[str, float]

SAMPLES_PER_REPORT: Final = sum(each.is_sample for each in build_reports(0, 1)) / REPORTS_PER_ROUND
"""How many reports become samples."""

_LIMITS: Final = {
    "connections": 5_000,
    "connections-per-address": 5_000,
    "publish-rate": 10_000_000,
}
"""All gateways are at one address here, and are to be as fast as they can."""

_TIMEOUT: Final = 120.0


class Service(NamedTuple):
    """A service that runs."""

    process: Process
    port: int
    url: str
    server: PostgresProcesses | None
    """The PostgreSQL server that it writes to."""


@contextmanager
def run_service(gateways: int, server: str | None = None, *, flags: Sequence[str] = ()) -> Iterator[Service]:
    """Run ours on SQLite, or on a fresh database of a PostgreSQL server; `more` are further flags."""
    database = "sqlite" if server is None else create_database(server)
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        _claim_all(database, Path(folder), gateways)
        with _running(database, Path(folder), flags) as (process, told):
            port = int(told["mqtt"][0].rpartition(":")[2])
            yield Service(process, port, told["url"], PostgresProcesses.of_server(server) if server else None)


def create_database(server: str) -> str:
    """Make an empty database, and tell its address."""
    name = f"bench_{time.time_ns()}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return server.rpartition("/")[0] + f"/{name}"


@contextmanager
def run_load_generator(port: int, load: Load) -> Iterator[subprocess.Popen[str]]:
    """The gateways, connected and waiting."""
    module = "bench.ingest_acked_load" if load.is_acked else "bench.ingest_load"
    numbers = (port, load.gateways, load.devices, load.amount, load.seconds)
    command = [sys.executable, "-m", module, load.role, *map(str, numbers)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:  # noqa: S603 # our own
        _line(program)
        yield program


def start_load(program: subprocess.Popen[str]) -> LoadResult:
    """Let gateways begin, and wait until everything is acknowledged."""
    if program.stdin:
        program.stdin.write("begin\n")
        program.stdin.flush()
    return msgspec.json.decode(_line(program), type=LoadResult)


def measure_load(ours: Service, load: Load) -> Figures:
    """What a load costs the service, and its PostgreSQL server."""
    with run_load_generator(ours.port, load) as gateways:
        if load.is_acked:
            _wait_until_acking(ours, load.gateways)
        since, cpu, written = clock.now(), ours.process.cpu, ours.process.bytes_written
        server_cpu = ours.server.cpu if ours.server else 0.0
        with MemoryMonitor(ours.process) as memory:
            sent = start_load(gateways)
        busy = ours.process.cpu - cpu
        cpu, written = cpu_when_settled(ours.process) - cpu, ours.process.bytes_written - written
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
        **(_acked(ours, sent) if load.is_acked else {}),
    }


def _wait_until_acking(ours: Service, gateways: int) -> None:
    """Gateways have told their versions: wait until the service goes by it."""
    wait_for(lambda: read_metric(ours.url, "meshfleet_gateways_acking") == gateways, timeout=_TIMEOUT)


def _acked(ours: Service, sent: LoadResult) -> Figures:
    """Each gateway has got as many acks as it is due; no more than these may have been sent."""
    if (told := read_metric(ours.url, "meshfleet_acks_total")) != sent.acks:
        raise RuntimeError(f"{told} acks were sent, and {sent.acks} are due")
    holes = read_metric(ours.url, "meshfleet_holes_found_total")
    return {"acks_per_report": sent.acks / sent.count, "backfills": sent.backfills, "holes": holes}


def format_load_result(sent: LoadResult) -> Figures:
    """What the gateways saw."""
    return {
        "count": sent.count,
        "per_s": sent.count / sent.seconds,
        "slowest_per_s": sent.slowest_per_s,
        "ms_p50": sent.ms_p50,
        "ms_p99": sent.ms_p99,
        "load_cpu_us": sent.load_cpu_us,
    }


def _claim_all(database: str, folder: Path, gateways: int) -> None:
    opened = open_database(database, folder)
    try:
        opened.write_now(_claim, [Mac(gateway_mac(number)) for number in range(gateways)])
    finally:
        opened.close()


def _claim(connection: Connection, macs: list[Mac]) -> None:
    now = clock.now()
    registry.record_observations(
        connection, [DeviceObservation(device=mac, at=now, heard=False) for mac in macs]
    )
    rows = [
        {"device": mac_to_int(mac), "password": hash_credential(f"secret-{mac}"), "claimed_at": now}
        for mac in macs
    ]
    connection.execute(insert(claims), rows)


@contextmanager
def _running(database: str, folder: Path, more: Sequence[str]) -> Iterator[tuple[Process, dict[str, str]]]:
    command = [sys.executable, "-m", "meshfleet", "serve", "--json", "--data", str(folder)]
    command += ["--database", database, "--http", "127.0.0.1:0", "--mqtt", "127.0.0.1:0"]
    command += [part for name, value in _LIMITS.items() for part in (f"--limits-{name}", str(value))]
    command += more
    environment = {**os.environ, "MESHFLEET_ADMIN_PASSWORD": ADMIN_PASSWORD}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=folder, env=environment) as program:  # noqa: S603 # our own
        try:
            yield Process(program.pid), json.loads(_line(program))
        finally:
            program.terminate()
            program.wait(_TIMEOUT)


def _line(program: subprocess.Popen[str]) -> str:
    line = program.stdout.readline() if program.stdout else ""
    if not line:
        raise RuntimeError(f"{program.args!r} has ended too early")
    return line
