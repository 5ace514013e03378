"""Servers of the list of devices, each a process of its own, and a client so thin that it does not count."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PASSWORD = "the benchmark's own"  # noqa: S105 # of a service that ends with the benchmark
_TIMEOUT = 30.0
_TICKS = os.sysconf("SC_CLK_TCK")


class Client:
    """One connection, which is kept. Any other status than the one that is wanted is an error."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._socket = socket.create_connection((where.hostname, where.port), _TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self._head = f" HTTP/1.1\r\nHost: {where.netloc}\r\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()

    def set_token(self, token: str) -> None:
        """Bring this token from now on."""
        self._head += f"Authorization: Bearer {token}\r\n"

    def get(self, path: str) -> bytes:
        """The body of an answer."""
        self._socket.sendall(f"GET {path}{self._head}\r\n".encode("ascii"))
        return self._read(path)

    def post(
        self, path: str, body: object, *, headers: Mapping[str, str] | None = None, status: int = 200
    ) -> Any:
        """Send JSON, and read it."""
        data = json.dumps(body).encode()
        fields = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        fields += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        self._socket.sendall(f"POST {path}{self._head}{fields}\r\n".encode("ascii") + data)
        return json.loads(self._read(path, status))

    def _read(self, path: str, wanted: int = 200) -> bytes:
        status, length = self._answers.readline(), 0
        while (line := self._answers.readline()) not in {b"\r\n", b""}:
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        body = self._answers.read(length)
        if f" {wanted} ".encode() not in status:
            raise RuntimeError(f"{path} is answered {status!r} {body!r}")
        return body


class Server:
    """A server that runs, and a client of it."""

    def __init__(self, process: int, client: Client, startup_info: Mapping[str, Any], token: str) -> None:
        self._process = process
        self.client = client
        self.startup_info = startup_info
        """Where it listens."""
        self.token = token
        """What the client comes with."""

    @property
    def cpu(self) -> float:
        """Seconds of CPU time that it has taken, all its threads together."""
        fields = Path(f"/proc/{self._process}/stat").read_text("utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS


@contextmanager
def run_service(data: Path, database: str, *options: str) -> Iterator[Server]:
    """Run our own, on a database."""
    command = ["meshfleet", "serve", "--data", str(data), "--database", database, "--http", "127.0.0.1:0"]
    with _running([*command, *options, "--json"]) as (process, told), Client(told["url"]) as client:
        login = {"username": "admin", "password": _PASSWORD}
        token = client.post("/api/v1/auth/login", login)["authToken"]
        client.set_token(token)
        yield Server(process, client, told, token)


@contextmanager
def run_reference(file: Path) -> Iterator[Server]:
    """Run the one to compare with, on a file of SQLite."""
    with _running(["bench.api_reference", str(file)]) as (process, told), Client(told["url"]) as client:
        client.set_token(told["token"])
        yield Server(process, client, told, told["token"])


@contextmanager
def _running(module: list[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Run a module that tells in its first line where it listens."""
    environment = {**os.environ, "MESHFLEET_ADMIN_PASSWORD": _PASSWORD}
    command = [sys.executable, "-m", *module]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:  # noqa: S603 # our own
        try:
            told = next(iter(process.stdout or ()), b"null")
            yield process.pid, json.loads(told)
        finally:
            ended = process.poll()
            process.terminate()
            process.wait(_TIMEOUT)
            if ended is not None:
                raise RuntimeError(f"{module[0]} ended by itself: {ended}")
