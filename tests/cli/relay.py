"""Fast `meshfleet` executable for scripts, which forks a process that has imported everything already.

The real one needs half a second of CPU time for its imports, whenever a script or the tab key starts it.
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
relay.connect({path!r})
socket.send_fds(relay, [b"!"], [0, 1, 2])
relay.sendall(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode())
relay.shutdown(socket.SHUT_WR)
sys.exit(int(relay.makefile().read()))
"""


class Relay:
    """Directory with an executable `meshfleet` that works while the block lasts."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        path = str(folder / "relay")
        self.program = folder / "meshfleet"
        self.program.write_text(_PROGRAM.format(python=sys.executable, path=path))
        self.program.chmod(0o700)
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(path)
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
        with contextlib.suppress(OSError):  # raised when the socket is shut down
            while True:
                client, _ = self._server.accept()
                Thread(target=self._run, args=(client,), name="relay client", daemon=True).start()

    def _run(self, client: socket.socket) -> None:
        with client:
            _, streams, _, _ = socket.recv_fds(client, 1, 3)
            arguments, variables, folder = json.loads(client.makefile("rb").read())
            process = fork_with(streams, arguments, variables, folder=folder)
            for each in streams:
                os.close(each)
            self._processes.append(process)
            process.join()
            with contextlib.suppress(OSError):  # the client may have ended
                client.sendall(str(process.exitcode).encode())
