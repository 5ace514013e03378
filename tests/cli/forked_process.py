"""Programs that are forked from one which has loaded everything already.

A service spends two seconds of a processor on loading itself, and tests start programs by the hundred. What
happens then is the same: a process of its own, with its own signals, which can be killed at any moment.
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
"""Bytes that a program can write before they are read: a service that cannot log stands still."""

_CONTEXT = get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.cli.preload", "tests.cli.forked_process"])


class ForkedProcess:
    """A process, with what we need of `subprocess.Popen`. It writes its errors into a file."""

    def __init__(
        self,
        arguments: Sequence[str],
        variables: Mapping[str, str],
        errors: Path,
        umask: str = "",
    ) -> None:
        self.stdout, output = _pipe()
        with output:
            given = (arguments, dict(variables), output, errors, umask)
            self._process = _CONTEXT.Process(target=_run_with_output, args=given)
            self._process.start()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Its exit code, or the number of the signal that ended it, below zero."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        return self._process.exitcode

    def kill(self) -> None:
        """End it without a moment to do anything."""
        self._process.kill()

    def send_signal(self, sig: int, /) -> None:
        """Give it a signal, unless it is over: then its number may be somebody else's."""
        if self._process.is_alive():
            os.kill(self.pid, sig)

    def communicate(self, *, timeout: float) -> tuple[bytes, None]:
        """Wait for its end; all that it wrote to its output."""
        until = time.monotonic() + timeout
        output = b""
        while not self.stdout.closed:
            if not select.select([self.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
                raise TimeoutExpired("a forked program", timeout)
            if read := os.read(self.stdout.fileno(), PIPE_SIZE):
                output += read
            else:
                self.stdout.close()
        self._process.join(max(0.0, until - time.monotonic()))
        return output, None


def _pipe() -> tuple[BinaryIO, Connection]:
    """Our end of a way to us, and theirs, which can be given to them."""
    ours, theirs = _CONTEXT.Pipe(duplex=False)
    fcntl.fcntl(ours.fileno(), fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    with ours:
        return os.fdopen(os.dup(ours.fileno()), "rb", buffering=0), theirs


def fork_at_terminal(arguments: Sequence[str], variables: Mapping[str, str], terminal: int) -> BaseProcess:
    """Start a program whose terminal this is; whoever started it waits for it."""
    return fork_with((terminal,) * 3, arguments, variables, owns_terminal=True)


def fork_with(
    streams: Sequence[int],
    arguments: Sequence[str],
    variables: Mapping[str, str],
    *,
    folder: str = "",
    owns_terminal: bool = False,
) -> BaseProcess:
    """Start a program with these as its input, output and errors."""
    carried = _Streams(streams)
    process = _CONTEXT.Process(
        target=_run_with_streams, args=(carried, arguments, dict(variables), folder, owns_terminal)
    )
    process.start()
    return process


class _Streams:
    """Carries open files over to a process that is being started."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __getstate__(self) -> object:
        return [DupFd(number) for number in self.numbers]

    def __setstate__(self, carried: Any) -> None:
        self.numbers = [each.detach() for each in carried]


def _run_with_streams(
    streams: _Streams,
    arguments: Sequence[str],
    variables: Mapping[str, str],
    folder: str,
    owns_terminal: bool,  # noqa: FBT001 # multiprocessing gives them by position
) -> None:
    if owns_terminal:
        os.setsid()
        fcntl.ioctl(streams.numbers[0], termios.TIOCSCTTY, 0)
    for number, carried in enumerate(streams.numbers):
        os.dup2(carried, number)
        os.close(carried)
    sys.stdin = os.fdopen(0)  # multiprocessing has put nothing in its place
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
    """Be the program from here on."""
    if umask:
        os.umask(int(umask, 8))
    with open(os.devnull, "rb") as nothing, output, errors.open("ab") as log:  # noqa: PTH123 # for its number
        for number, way in enumerate((nothing.fileno(), output.fileno(), log.fileno())):
            os.dup2(way, number)
    _run(arguments, variables)


def _run(arguments: Sequence[str], variables: Mapping[str, str]) -> None:
    rules = os.environ.get("COVERAGE_PROCESS_START")
    os.environ.clear()
    os.environ.update(variables)
    with _measured(rules) if rules else nullcontext():
        main(arguments, prog_name="meshfleet")


@contextmanager
def _measured(rules: str) -> Iterator[None]:
    """Note what is executed, as `scripts/mutate.py` wants to know it: this program is not a new Python."""
    from coverage import Coverage  # noqa: PLC0415

    if (inherited := Coverage.current()) is not None:
        inherited.stop()
    measuring = Coverage(config_file=rules)
    measuring.start()
    try:
        yield
    finally:
        measuring.stop()
        measuring.save()
