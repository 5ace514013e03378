"""CPU time, memory and disk writes of processes during benchmarks."""

from __future__ import annotations

import os
import resource
import statistics
import time
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import psycopg

if TYPE_CHECKING:
    from collections.abc import Callable

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_IDLE_SHARE: Final = 0.05
"""CPU seconds per second below which a process counts as idle."""
_SETTLE_SECONDS: Final = 11
"""Idle seconds in a row after which no deferred work is left: the service flushes at least every ten."""
_QUICK_SETTLE_SECONDS: Final = 2
"""Idle seconds in a row after which most deferred work is done, in a short run."""
_MIN_QUARTER: Final = 5
"""Minimum seconds of a quarter to compute the growth of memory."""
_SETTLE_TIMEOUT: Final = 120
"""Maximum seconds to wait for a process to become idle."""


class Process(NamedTuple):
    """Running process."""

    pid: int

    @property
    def cpu(self) -> float:
        """CPU time of all its threads, in seconds."""
        return sum(self._times[:2])

    @property
    def cpu_with_ended(self) -> float:
        """CPU time of all its threads and of its ended children, in seconds."""
        return sum(self._times)

    @property
    def parent(self) -> int:
        """Id of the parent process."""
        return int(self._stat[1])

    @property
    def memory(self) -> float:
        """Resident memory in MiB."""
        pages = Path(f"/proc/{self.pid}/statm").read_text("utf-8").split()[1]
        return int(pages) * resource.getpagesize() / 2**20

    @property
    def bytes_written(self) -> int:
        """Bytes written to disks on its behalf."""
        lines = Path(f"/proc/{self.pid}/io").read_text("utf-8").splitlines()
        return int(dict(line.split(": ") for line in lines)["write_bytes"])

    @property
    def _stat(self) -> list[str]:
        """Fields after the process name, which may contain any characters."""
        return Path(f"/proc/{self.pid}/stat").read_text("utf-8").rpartition(")")[2].split()

    @property
    def _times(self) -> list[float]:
        return [int(each) / _TICKS for each in self._stat[11:15]]


class PostgresProcesses(NamedTuple):
    """Processes of a PostgreSQL server: the main process and its children."""

    head: Process

    @classmethod
    def of_server(cls, url: str) -> Self:
        """Find the server that listens at a URL."""
        with psycopg.connect(url) as connection:
            return cls(Process(Process(connection.info.backend_pid).parent))

    @property
    def cpu(self) -> float:
        """CPU time of all processes, including ended ones, in seconds."""
        cpu, number = self.head.cpu_with_ended, self.head.pid
        for child in Path(f"/proc/{number}/task/{number}/children").read_text("utf-8").split():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                cpu += Process(int(child)).cpu
        return cpu


class MemoryMonitor:
    """Monitor that records the memory of a process every second."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._samples: list[float] = []
        self._ended = Event()
        self._thread = Thread(target=self._record, name="memory")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _record(self) -> None:
        self._samples.append(self._process.memory)
        while not self._ended.wait(1):
            self._samples.append(self._process.memory)

    def metrics(self) -> dict[str, float]:
        """Return the maximum in MiB, and the growth: the last quarter of the time divided by the second."""
        maximum, quarter = max(self._samples), len(self._samples) // 4
        if quarter < _MIN_QUARTER:
            return {"MiB": maximum}
        second, last = self._samples[quarter : 2 * quarter], self._samples[-quarter:]
        return {"MiB": maximum, "MiB_growth": statistics.mean(last) / statistics.mean(second)}


def cpu_when_settled(process: Process, *, quick: bool) -> float:
    """Wait until a process is idle. Return its CPU time up to the beginning of the idle period."""
    idle_seconds = _QUICK_SETTLE_SECONDS if quick else _SETTLE_SECONDS
    until, idle, cpu = time.monotonic() + _SETTLE_TIMEOUT, 0, process.cpu
    while idle < idle_seconds and time.monotonic() < until:
        before = process.cpu
        time.sleep(1)
        idle += 1
        if process.cpu - before >= _IDLE_SHARE:
            idle, cpu = 0, process.cpu
    return cpu


def wait_for(condition: Callable[[], bool], *, timeout: float, interval: float = 0.1) -> None:
    """Wait until a condition is true. Raise `TimeoutError` after the timeout."""
    until = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("the condition was not met in time")
        time.sleep(interval)
