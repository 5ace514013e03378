"""Alternatives to the service under the same load: mosquitto, and a program that fills PostgreSQL.

psql       mosquitto_sub, formatted and piped into a COPY: nothing is parsed, and all is committed at the end
node_red   a flow that parses reports and inserts 500 rows at a time

Both acknowledge reports before they are stored, and neither handles devices, states or rejects.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

import psycopg
from tests.external_tools import MOSQUITTO_SUB, require
from tests.servers import Mosquitto

from bench import ingest_nodered
from bench.ingest_service import create_database, run_load_generator, start_load
from bench.process_meter import PostgresProcesses, Process, wait_for
from bench.programs import MOSQUITTO_SETTINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.ingest_load import Load

    Metrics = dict[str, float]

_TOPIC: Final = "mt/gateway/+/device/#"
_SUBSCRIBE_TIMEOUT: Final = 60.0

_TABLE: Final = """
CREATE TABLE report (
    received timestamptz,
    topic text,
    payload jsonb,
    gateway text GENERATED ALWAYS AS (split_part(topic, '/', 3)) STORED,
    device text GENERATED ALWAYS AS (split_part(topic, '/', 5)) STORED,
    kind text GENERATED ALWAYS AS (split_part(topic, '/', 6)) STORED,
    identifier text GENERATED ALWAYS AS (split_part(topic, '/', 7)) STORED
)"""
_INDEX: Final = "CREATE INDEX ON report (device, received)"
_COPY: Final = r"\copy report (received, topic, payload) from pstdin"


class Broker(NamedTuple):
    """Running mosquitto."""

    port: int
    process: Process
    log: Path

    def wait_for_subscriber(self) -> None:
        """Wait until a client has subscribed to all reports."""
        wait_for(lambda: _TOPIC in self.log.read_text("utf-8"), timeout=_SUBSCRIBE_TIMEOUT)


def measure_psql(server: str, load: Load) -> Metrics:
    """Measure mosquitto_sub piped into a COPY of psql."""
    database, family = create_database(server), PostgresProcesses.of_server(server)
    _execute(database, _TABLE, _INDEX)
    with (
        _run_mosquitto() as broker,
        _run_pipeline(broker.port, database, load.amount) as (subscriber, copier),
    ):
        broker.wait_for_subscriber()
        meter = PipelineMeter(load.amount, {"mosquitto": broker.process}, family)
        with run_load_generator(broker.port, load) as gateways:
            meter.start()
            start_load(gateways)
            ended = {"mosquitto_sub": _cpu_at_end(subscriber), "psql": _cpu_at_end(copier)}
            metrics = meter.metrics(ended)
    _check_row_count(database, load.amount)
    return metrics


def measure_node_red(server: str, load: Load) -> Metrics:
    """Measure a Node-RED flow that inserts reports. Its work before the first report is not counted."""
    ingest_nodered.install()
    database, family = create_database(server), PostgresProcesses.of_server(server)
    _execute(database, ingest_nodered.TABLE)
    with (
        _run_mosquitto() as broker,
        TemporaryDirectory(prefix="meshfleet-bench-") as folder,
        ingest_nodered.node_red(
            Path(folder), broker=broker.port, database=database, count=load.amount
        ) as program,
    ):
        broker.wait_for_subscriber()
        processes = {"mosquitto": broker.process, "node": Process(program.pid)}
        meter = PipelineMeter(load.amount, processes, family)
        with run_load_generator(broker.port, load) as gateways:
            meter.start()
            start_load(gateways)
            ingest_nodered.wait_until_stored(program)
            metrics = meter.metrics({})
    _check_row_count(database, load.amount)
    return metrics


BASELINES: Final[dict[str, Callable[[str, Load], Metrics]]] = {
    "mosquitto_sub and psql": measure_psql,
    "Node-RED": measure_node_red,
}


class PipelineMeter:
    """CPU time per report of all processes of a pipeline."""

    def __init__(self, count: int, processes: dict[str, Process], server: PostgresProcesses) -> None:
        self._count, self._processes, self._server = count, processes, server
        self._cpu: dict[str, float] = {}
        self._server_cpu = self._started = 0.0

    def start(self) -> None:
        """Start the measurement."""
        self._cpu = {name: process.cpu for name, process in self._processes.items()}
        self._server_cpu, self._started = self._server.cpu, time.monotonic()

    def metrics(self, ended: dict[str, float]) -> Metrics:
        """Return metrics per report, including the CPU time of processes that have ended."""
        seconds = time.monotonic() - self._started
        each = {name: process.cpu - self._cpu[name] for name, process in self._processes.items()} | ended
        by_process = {f"{name}_cpu_us": cpu / self._count * 1e6 for name, cpu in each.items()}
        server = (self._server.cpu - self._server_cpu) / self._count * 1e6
        per_s = self._count / seconds
        return {**by_process, "cpu_us": sum(by_process.values()), "server_cpu_us": server, "per_s": per_s}


@contextmanager
def _run_mosquitto() -> Iterator[Broker]:
    with TemporaryDirectory(prefix="meshfleet-bench-") as name:
        folder = Path(name)
        pid_file, log = folder / "process", folder / "mosquitto.log"
        extra = (f"pid_file {pid_file}", "log_type subscribe", "log_dest stderr")
        with Mosquitto(folder, *MOSQUITTO_SETTINGS, *extra) as running:
            yield Broker(running.address.port, Process(int(pid_file.read_text("utf-8"))), log)


@contextmanager
def _run_pipeline(
    port: int, database: str, count: int
) -> Iterator[tuple[subprocess.Popen[bytes], subprocess.Popen[bytes]]]:
    subscribe = [str(require(MOSQUITTO_SUB)), "-h", "127.0.0.1", "-p", str(port), "-q", "1", "-t", _TOPIC]
    subscribe += ["-C", str(count), "-F", r"%I\t%t\t%p"]
    copy = [
        _find_psql(),
        "--quiet",
        "--no-psqlrc",
        "--set=ON_ERROR_STOP=1",
        "--dbname",
        database,
        "--command",
        _COPY,
    ]
    with (
        subprocess.Popen(subscribe, stdout=subprocess.PIPE) as subscriber,  # noqa: S603 # a tool of the tests
        subprocess.Popen(copy, stdin=subscriber.stdout) as copier,  # noqa: S603 # a tool of the system
    ):
        try:
            yield subscriber, copier
        finally:
            for each in (subscriber, copier):
                each.terminate()


def _find_psql() -> str:
    if found := shutil.which("psql"):
        return found
    raise FileNotFoundError("psql is not installed: apt-get install postgresql-client")


def _cpu_at_end(program: subprocess.Popen[bytes]) -> float:
    """Wait until a program ends, and return its total CPU time."""
    _, status, usage = os.wait4(program.pid, 0)
    program.returncode = os.waitstatus_to_exitcode(status)
    if program.returncode:
        raise RuntimeError(f"{program.args!r} ended with {program.returncode}")
    return usage.ru_utime + usage.ru_stime


def _execute(database: str, *statements: str) -> None:
    with psycopg.connect(database) as connection:
        for each in statements:
            connection.execute(each.encode())


def _check_row_count(database: str, count: int) -> None:
    with psycopg.connect(database) as connection:
        row = connection.execute("SELECT count(*) FROM report").fetchone()
    if row != (count,):
        raise RuntimeError(f"{row} rows are stored of {count}")
