"""Programs forked from a process that has imported everything already.

A service needs two seconds of CPU time for its imports, and tests start hundreds of programs. A forked
program behaves like a started one: its own process, with its own signals, which can be killed at any moment.
"""

from __future__ import annotations

import fcntl
import os
import select
import sys
import termios
import time
from contextlib import contextmanager, nullcontext
from io import TextIOWrapper
from multiprocessing import get_context
from multiprocessing.reduction import DupFd
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, Any, BinaryIO

from meshfleet.cli import main

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from pathlib import Path

PIPE_SIZE = 2**20
"""Bytes that a program can write before they are read: a service that cannot log blocks."""

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.cli.preload", "tests.cli.forked_process"])


class ForkedProcess:
    """Forked process with the needed methods of `subprocess.Popen`. Standard error goes to a file."""

    def __init__(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        errors: Path,
        umask: str = "",
    ) -> None:
        self.stdout, output = _pipe()
        with output:
            args = (arguments, dict(variables), output, errors, umask)
            self._process = _CONTEXT.Process(target=_run_with_output, args=args)
            self._process.start()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, or the negative number of the signal that ended it; None while it runs."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self._process.exitcode

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()

    def send_signal(self, sig: int, /) -> None:
        """Send a signal, unless the process has ended: its id may belong to another process then."""
        if self._process.is_alive():
            os.kill(self.pid, sig)

    def communicate(self, *, timeout: float) -> tuple[bytes, None]:
        """Wait for its end, and return the rest of its standard output."""
        until = time.monotonic() + timeout
        output = b""
        while not self.stdout.closed:
            if not select.select([self.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutExpired("a forked program", timeout)
            if chunk := os.read(self.stdout.fileno(), PIPE_SIZE):
                output += chunk
            else:
                self.stdout.close()
        self._process.join(max(0.0, until - time.monotonic()))
        return output, None


def _pipe() -> tuple[BinaryIO, Connection]:
    """Create a pipe. Return its read end, and its write end in a form that can be passed to a process."""
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    fcntl.fcntl(ours.fileno(), fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    with ours:
        return os.fdopen(os.dup(ours.fileno()), "rb", buffering=0), theirs


def fork_at_terminal(arguments: Sequence[str], variables: Mapping[str, str], terminal: int) -> BaseProcess:
    """Start a program with a controlling terminal. The caller must join the process."""
    return fork_with((terminal,) * 3, arguments, variables, owns_terminal=True)


def fork_with(
    streams: Sequence[int],
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    folder: str = "",
    owns_terminal: bool = False,
) -> BaseProcess:
    """Start a program with these file descriptors as its standard input, output and error."""
    passed = _Streams(streams)
    process = _CONTEXT.Process(
        target=_run_with_streams, args=(passed, arguments, dict(variables), folder, owns_terminal)
    )
    process.start()
    return process


class _Streams:
    """Open file descriptors, passed to a process that is being started."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __getstate__(self) -> object:
        return [DupFd(number) for number in self.numbers]

    def __setstate__(self, passed: Any) -> None:
        self.numbers = [each.detach() for each in passed]


def _run_with_streams(
    streams: _Streams,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    folder: str,
    owns_terminal: bool,  # noqa: FBT001 # multiprocessing passes it by position
) -> None:
    if owns_terminal:
        os.setsid()
        fcntl.ioctl(streams.numbers[0], termios.TIOCSCTTY, 0)
    for number, passed in enumerate(streams.numbers):
        os.dup2(passed, number)
        os.close(passed)
    sys.stdin = os.fdopen(0)  # multiprocessing has closed it
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, TextIOWrapper)
        stream.reconfigure(line_buffering=stream.isatty())
    if folder:
        os.chdir(folder)
    _run(arguments, variables)


def _run_with_output(
    arguments: Sequence[str],
    variables: Mapping[str, str],
    output: Connection,
    errors: Path,
    umask: str,
) -> None:
    """Run the program in this process, with its standard streams redirected."""
    if umask:
        os.umask(int(umask, 8))
    with open(os.devnull, "rb") as nothing, output, errors.open("ab") as log:  # noqa: PTH123 # only its descriptor is needed
        for number, descriptor in enumerate((nothing.fileno(), output.fileno(), log.fileno())):
            os.dup2(descriptor, number)
    _run(arguments, variables)


def _run(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    config_file = os.environ.get("COVERAGE_PROCESS_START")
    os.environ.clear()
    os.environ.update(variables)
    with _measure_coverage(config_file) if config_file else nullcontext():
        main(arguments, prog_name="meshfleet")


@contextmanager
def _measure_coverage(config_file: str) -> Iterator[None]:
    """Measure coverage for `scripts/mutate.py`: a forked process does not start it by itself."""
    from coverage import Coverage  # noqa: PLC0415

    if (inherited := Coverage.current()) is not None:
        inherited.stop()
    coverage = Coverage(config_file=config_file)
    coverage.start()
    try:
        yield
    finally:
        coverage.stop()
        coverage.save()
