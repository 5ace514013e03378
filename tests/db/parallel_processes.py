"""Processes that run the same function at the same time."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_LOOP = """
import sys
print("ready", flush=True)
for line in sys.stdin:
    try:
        result = work(*line.rstrip("\\n").split("\\t"))
    except Exception as exc:
        result = f"{type(exc).__name__}: {exc}"
    print(repr(result), flush=True)
"""


class ParallelProcesses(NamedTuple):
    """Processes that wait for calls."""

    processes: Sequence[subprocess.Popen[str]]

    def call_all(self, *arguments: object) -> list[str]:
        """Call the function in all processes at once.

        Return the repr of each result, or the exception as text.
        """
        for process in self.processes:
            assert process.stdin is not None
            print(*arguments, sep="\t", file=process.stdin, flush=True)
        return [_read_line(process) for process in self.processes]


@contextmanager
def start_processes(work: str, *, number: int = 2) -> Iterator[ParallelProcesses]:
    """Start processes with a function `work`, given as source, whose arguments are strings."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_start_process(work)) for _ in range(number)]
        assert {_read_line(process) for process in processes} == {"ready"}
        yield ParallelProcesses(processes)
        for process in processes:
            assert process.stdin is not None
            process.stdin.close()


def _start_process(work: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", work + _LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _read_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")
