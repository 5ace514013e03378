"""Servers of the device list, each in its own process, and an HTTP client with negligible cost."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from urllib.parse import urlsplit

from bench.process_meter import Process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

_PASSWORD = "the benchmark's own"  # noqa: S105 # of a temporary service
_TIMEOUT = 30.0


class Client:
    """HTTP client with one persistent connection. Any status other than the expected one is an error."""

    def __init__(self, url: str) -> None:
        address = urlsplit(url)
        self._socket = socket.create_connection((address.hostname, address.port), _TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = self._socket.makefile("rb")
        self._head = f" HTTP/1.1\r\nHost: {address.netloc}\r\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._answers.close()
        self._socket.close()

    def set_token(self, token: str) -> None:
        """Send this access token with all later requests."""
        self._head += f"Authorization: Bearer {token}\r\n"

    def log_in(self, password: str) -> str:
        """Log in as admin, and send the access token with all later requests. Return the token."""
        login = {"username": "admin", "password": password}
        token: str = self.post("/api/v1/auth/login", login)["authToken"]
        self.set_token(token)
        return token

    def get(self, path: str) -> bytes:
        """Send a GET request, and return the body of the response."""
        self._socket.sendall(f"GET {path}{self._head}\r\n".encode("ascii"))
        return self._read(path)

    def post(
        self, path: str, body: object, *, headers: Mapping[str, str] | None = None, status: int = 200
    ) -> Any:
        """Send a POST request with JSON, and return the decoded response."""
        data = json.dumps(body).encode()
        fields = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
        fields += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n"
        self._socket.sendall(f"POST {path}{self._head}{fields}\r\n".encode("ascii") + data)
        return json.loads(self._read(path, status))

    def _read(self, path: str, expected: int = 200) -> bytes:
        status, length = self._answers.readline(), 0
        while (line := self._answers.readline()) not in {b"\r\n", b""}:
            if line[:15].lower() == b"content-length:":
                length = int(line[15:])
        body = self._answers.read(length)
        if f" {expected} ".encode() not in status:
            raise RuntimeError(f"{path} returns {status!r} {body!r}")
        return body


class Server(NamedTuple):
    """Running server with a client."""

    process: Process
    client: Client
    startup_info: Mapping[str, Any]
    """JSON object with its addresses, printed at the start."""
    token: str
    """Access token of the client."""


@contextmanager
def run_service(data: Path, database: str, *options: str) -> Iterator[Server]:
    """Run the Meshfleet service on a database."""
    command = ["meshfleet", "serve", "--data", str(data), "--database", database, "--http", "127.0.0.1:0"]
    with _run_module([*command, *options, "--json"]) as (process, info), Client(info["url"]) as client:
        yield Server(process, client, info, client.log_in(_PASSWORD))


@contextmanager
def run_reference(file: Path) -> Iterator[Server]:
    """Run the reference server on an SQLite file."""
    with _run_module(["bench.api_reference", str(file)]) as (process, info), Client(info["url"]) as client:
        client.set_token(info["token"])
        yield Server(process, client, info, info["token"])


@contextmanager
def _run_module(module: list[str]) -> Iterator[tuple[Process, dict[str, Any]]]:
    """Run a module that prints a JSON object with its addresses. Return its process and this object."""
    environment = {**os.environ, "MESHFLEET_ADMIN_PASSWORD": _PASSWORD}
    command = [sys.executable, "-m", *module]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:  # noqa: S603 # our own program
        try:
            line = next(iter(process.stdout or ()), b"null")
            yield Process(process.pid), json.loads(line)
        finally:
            exit_code = process.poll()
            process.terminate()
            process.wait(_TIMEOUT)
            if exit_code is not None:
                raise RuntimeError(f"{module[0]} ended by itself: {exit_code}")
