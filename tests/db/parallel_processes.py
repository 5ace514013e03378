"""Processes that do the same at the same moment."""

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
        said = work(*line.rstrip("\\n").split("\\t"))
    except Exception as exc:
        said = f"{type(exc).__name__}: {exc}"
    print(repr(said), flush=True)
"""


class ParallelProcesses(NamedTuple):
    """Processes that wait for something to do."""

    processes: Sequence[subprocess.Popen[str]]

    def call_all(self, *arguments: object) -> list[str]:
        """Let all do it at once: what each returns or raises, as Python writes it."""
        for each in self.processes:
            assert each.stdin is not None
            print(*arguments, sep="\t", file=each.stdin, flush=True)
        return [_line(each) for each in self.processes]


@contextmanager
def start_processes(work: str, *, number: int = 2) -> Iterator[ParallelProcesses]:
    """Start processes that know a function `work`, given as source, whose arguments are texts."""
    with ExitStack() as stack:
        processes = [stack.enter_context(_process(work)) for _ in range(number)]
        assert {_line(each) for each in processes} == {"ready"}
        yield ParallelProcesses(processes)
        for each in processes:
            assert each.stdin is not None
            each.stdin.close()


def _process(work: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", work + _LOOP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")
