"""A quick `meshfleet` for scripts: it has a program forked that has loaded everything already.

The real one takes half a second of a processor to load itself, whenever a script or the tab key starts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import sys
from threading import Thread
from typing import TYPE_CHECKING, Self

from tests.cli.forked_process import fork_with
from tests.cli.programs import TEST_TIMEOUT

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from pathlib import Path

_PROGRAM = """#!{python} -IS
import json, os, socket, sys
relay = socket.socket(socket.AF_UNIX)
relay.connect({place!r})
socket.send_fds(relay, [b"!"], [0, 1, 2])
relay.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode())
relay.shutdown(socket.SHUT_WR)
sys.exit(int(relay.makefile().read()))
"""


class Relay:
    """A folder with a program `meshfleet` that works while the block lasts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        place = str(folder / "relay")
        self.program = folder / "meshfleet"
        self.program.write_text(_PROGRAM.format(python=sys.executable, place=place))
        self.program.chmod(0o700)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(place)
        self._server.listen()
        self._processes: list[BaseProcess] = []

    def __enter__(self) -> Self:
        Thread(target=self._serve, name="relay", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._processes:
            each.kill()
            each.join(TEST_TIMEOUT)

    def _serve(self) -> None:
        with contextlib.suppress(OSError):  # as soon as it is shut down
            while True:
                asking, _ = self._server.accept()
                Thread(target=self._run, args=(asking,), name="relay of one", daemon=True).start()

    def _run(self, asking: socket.socket) -> None:
        with asking:
            _, streams, _, _ = socket.recv_fds(asking, 1, 3)
            arguments, variables, folder = json.loads(asking.makefile("rb").read())
            process = fork_with(streams, arguments, variables, folder=folder)
            for each in streams:
                os.close(each)
            self._processes.append(process)
            process.join()
            with contextlib.suppress(OSError):  # who asked may be gone
                asking.sendall(str(process.exitcode).encode())
