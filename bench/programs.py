"""Programs that benchmarks start: parts of a benchmark in processes of their own, mosquitto, PostgreSQL."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from tests.servers import Mosquitto, postgresql

from bench.process_meter import Process

if TYPE_CHECKING:
    from collections.abc import Iterator

MOSQUITTO_SETTINGS = (
    "persistence false",
    "max_inflight_messages 2000",
    "max_queued_messages 0",
    "set_tcp_nodelay true",
    "log_type error",
)
"""Settings recommended by the guide, but without persistence."""


class Broker(NamedTuple):
    """Running broker."""

    port: int
    process: Process


def start_module(module: str, *arguments: str | int) -> subprocess.Popen[str]:
    """Start a module of the benchmarks in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # noqa: S603 # our own program


@contextmanager
def run_module(module: str, *arguments: str | int) -> Iterator[subprocess.Popen[str]]:
    """Run a module of the benchmarks. Wait until it prints "ready", and kill it at the end."""
    with start_module(module, *arguments) as program:
        try:
            if (line := read_line(program)) != "ready\n":
                raise RuntimeError(f"{module} is not ready: {line!r}")
            yield program
        finally:
            program.kill()


def read_line(program: subprocess.Popen[str]) -> str:
    """Return the next line that a program prints. Raise `RuntimeError` if the program has ended."""
    line = program.stdout.readline() if program.stdout else ""
    if not line:
        raise RuntimeError(f"{program.args!r} has ended too early")
    return line


def send_command(program: subprocess.Popen[str], command: str) -> str:
    """Send a line to a program, and return the line that it prints in response."""
    if program.stdin:
        program.stdin.write(f"{command}\n")
        program.stdin.flush()
    return read_line(program)


@contextmanager
def run_mosquitto(*settings: str) -> Iterator[Broker]:
    """Run a new mosquitto, without sessions of others."""
    with TemporaryDirectory(prefix="meshfleet-bench-") as folder:
        pid_file = Path(folder) / "process"
        with Mosquitto(Path(folder), *settings, f"pid_file {pid_file}") as running:
            yield Broker(running.address.port, Process(int(pid_file.read_text("utf-8"))))


@contextmanager
def run_postgresql() -> Iterator[str]:
    """Run a PostgreSQL server with fsync, which tests switch off. Return its URL."""
    with postgresql("fsync=on") as address:
        yield f"postgresql://postgres@{address.host}:{address.port}/postgres"
