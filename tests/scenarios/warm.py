"""Programs that are forked from one which has loaded everything already.

A service spends two seconds of a processor on loading itself, and tests start it by the hundred. Whatever
happens then is the same: a process of its own, with its own signals, which can be killed at any moment.
"""

from __future__ import annotations

import fcntl
import os
import selectors
import time
from multiprocessing import get_context
from subprocess import TimeoutExpired
from typing import TYPE_CHECKING, BinaryIO

from meshfleet.cli import main
from tests.cli.outside import PIPE_SIZE, Program

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from multiprocessing.connection import Connection

_OVEN = get_context("forkserver")
# What cannot be imported is left out without a word, as all tests are outside of their folder.
_OVEN.set_forkserver_preload(["meshfleet.cli.serve", "meshfleet.cli.demo_life", "tests.scenarios.oven"])


class WarmProgram(Program):
    """A command in a process of its own, which has no long way there."""

    def _begin(self, arguments: Sequence[str], variables: Mapping[str, str]) -> Forked:
        return Forked(arguments, variables)


class Forked:
    """A process, with what we need of `subprocess.Popen`."""

    def __init__(self, arguments: Sequence[str], variables: Mapping[str, str]) -> None:
        self.stdout, output = _pipe()
        self._stderr, errors = _pipe()
        with output, errors:
            self._process = _OVEN.Process(target=_become, args=(arguments, dict(variables), output, errors))
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

    def kill(self) -> None:
        """End it without a moment to do anything."""
        self._process.kill()

    def send_signal(self, sig: int, /) -> None:
        """Give it a signal, unless it is over: then its number may be somebody else's."""
        if self._process.is_alive():
            os.kill(self.pid, sig)

    def communicate(self, *, timeout: float) -> tuple[bytes, bytes]:
        """Wait for its end; all that it said on both ways."""
        until = time.monotonic() + timeout
        said = {way.fileno(): b"" for way in (self.stdout, self._stderr) if not way.closed}
        with selectors.DefaultSelector() as ways:
            for way in said:
                ways.register(way, selectors.EVENT_READ)
            while ways.get_map():
                if not (ready := ways.select(until - time.monotonic())):
                    raise TimeoutExpired("a warm program", timeout)
                for key, _ in ready:
                    if read := os.read(key.fd, PIPE_SIZE):
                        said[key.fd] += read
                    else:
                        ways.unregister(key.fd)
        self._process.join(max(0.0, until - time.monotonic()))
        self.stdout.close()
        self._stderr.close()
        output, errors = said.values() or (b"", b"")
        return output, errors


def _pipe() -> tuple[BinaryIO, Connection]:
    """Our end of a way to us, and theirs, which can be given to them."""
    ours, theirs = _OVEN.Pipe(duplex=False)
    fcntl.fcntl(ours.fileno(), fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    with ours:
        return os.fdopen(os.dup(ours.fileno()), "rb", buffering=0), theirs


def _become(
    arguments: Sequence[str], variables: Mapping[str, str], output: Connection, errors: Connection
) -> None:
    """Be the program from here on."""
    with open(os.devnull, "rb") as nothing, output, errors:  # noqa: PTH123 # for its number
        for number, way in enumerate((nothing.fileno(), output.fileno(), errors.fileno())):
            os.dup2(way, number)
    os.environ.clear()
    os.environ.update(variables)
    main(arguments, prog_name="meshfleet")
