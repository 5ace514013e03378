"""What processes take while `bench.ingest` runs: CPU time, memory, and what they write to the disk."""

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
_QUIET: Final = 0.05
"""The share of a core below which a process only waits."""
_QUIET_SECONDS: Final = 11
"""In a row, after which nothing more is put off: the service writes what it notes every ten at the latest."""
_SHORT: Final = 5
"""Seconds of a quarter that are too few to tell whether memory grows."""
_SETTLED_WITHIN: Final = 120
"""Seconds after which a process is no longer waited for."""


class Process(NamedTuple):
    """A process that runs."""

    pid: int

    @property
    def cpu(self) -> float:
        """Seconds of CPU time that it has taken, all its threads together."""
        return sum(self._times[:2])

    @property
    def cpu_with_ended(self) -> float:
        """The same, with that of its children that have ended."""
        return sum(self._times)

    @property
    def parent(self) -> int:
        """The process that started it."""
        return int(self._stat[1])

    @property
    def memory(self) -> float:
        """MiB of memory that it has."""
        pages = Path(f"/proc/{self.pid}/statm").read_text("utf-8").split()[1]
        return int(pages) * resource.getpagesize() / 2**20

    @property
    def bytes_written(self) -> int:
        """Bytes that it has made the system write to disks."""
        lines = Path(f"/proc/{self.pid}/io").read_text("utf-8").splitlines()
        return int(dict(line.split(": ") for line in lines)["write_bytes"])

    @property
    def _stat(self) -> list[str]:
        """What follows its name, which may hold anything."""
        return Path(f"/proc/{self.pid}/stat").read_text("utf-8").rpartition(")")[2].split()

    @property
    def _times(self) -> list[float]:
        return [int(each) / _TICKS for each in self._stat[11:15]]


class PostgresProcesses(NamedTuple):
    """A PostgreSQL server: a process, and its children."""

    head: Process

    @classmethod
    def of_server(cls, url: str) -> Self:
        """The one that listens there."""
        with psycopg.connect(url) as connection:
            return cls(Process(Process(connection.info.backend_pid).parent))

    @property
    def cpu(self) -> float:
        """Seconds of CPU time that all of them have taken, with those that have ended."""
        cpu, number = self.head.cpu_with_ended, self.head.pid
        for child in Path(f"/proc/{number}/task/{number}/children").read_text("utf-8").split():
            with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                cpu += Process(int(child)).cpu
        return cpu


class MemoryMonitor:
    """Looks every second how much memory a process has."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._seen: list[float] = []
        self._ended = Event()
        self._watch = Thread(target=self._look, name="memory")

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._watch.join()

    def _look(self) -> None:
        self._seen.append(self._process.memory)
        while not self._ended.wait(1):
            self._seen.append(self._process.memory)

    def metrics(self) -> dict[str, float]:
        """The most that it had in MiB, and how it grew: the last quarter of the time by the second."""
        most, quarter = max(self._seen), len(self._seen) // 4
        if quarter < _SHORT:
            return {"MiB": most}
        second, last = self._seen[quarter : 2 * quarter], self._seen[-quarter:]
        return {"MiB": most, "MiB_growth": statistics.mean(last) / statistics.mean(second)}


def cpu_when_settled(process: Process) -> float:
    """Wait until a process has done what it put off, and tell its CPU time without the idling after it."""
    until, quiet, cpu = time.monotonic() + _SETTLED_WITHIN, 0, process.cpu
    while quiet < _QUIET_SECONDS and time.monotonic() < until:
        before = process.cpu
        time.sleep(1)
        quiet += 1
        if process.cpu - before >= _QUIET:
            quiet, cpu = 0, process.cpu
    return cpu


def wait_for(condition: Callable[[], bool], *, timeout: float, interval: float = 0.1) -> None:
    """Wait until something is so."""
    until = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > until:
            raise TimeoutError("it did not come to its end")
        time.sleep(interval)
