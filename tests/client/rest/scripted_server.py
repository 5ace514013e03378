"""HTTP server that sends scripted responses and records the requests."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from ssl import SSLContext

DROP = b""
"""Script entry that closes the connection instead of responding."""


class RecordedRequest(NamedTuple):
    """Received request."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class ScriptedServer:
    """Sends the responses of its script in order, and repeats the last one."""

    def __init__(self, script: list[bytes], always: Mapping[str, bytes], url: str) -> None:
        self._script = script
        self._always = always
        self.url = url
        self.requests: list[RecordedRequest] = []

    def respond(self, request: RecordedRequest) -> bytes:
        """Record a request and return its response."""
        self.requests.append(request)
        if request.path in self._always:
            return self._always[request.path]
        return self._script.pop(0) if len(self._script) > 1 else self._script[0]


def build_response(status: int, body: object = None, **headers: str) -> bytes:
    """Build an HTTP response. Its reason phrase does not matter."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def build_problem(status: int, code: str, detail: str = "for a reason", **headers: str) -> bytes:
    """Build a problem response of a service."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": "x",
        "status": status,
        "detail": detail,
        "instance": "/",
        "code": code,
        "errors": [],
    }
    return build_response(status, body, Content_Type="application/problem+json", **headers)


@asynccontextmanager
async def scripted_server(
    *script: bytes, always: Mapping[str, bytes] | None = None, tls: SSLContext | None = None
) -> AsyncIterator[ScriptedServer]:
    """Run a server while a block lasts; `always` are responses by path, in addition to the script."""
    tasks: set[asyncio.Task[None]] = set()
    servers: list[ScriptedServer] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while (request := await _read_request(reader)) is not None:
                reply = servers[0].respond(request)
                if reply == DROP:
                    break
                writer.write(reply)
                await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()

    listener = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    servers.append(ScriptedServer(list(script), always or {}, f"http{'s' if tls else ''}://127.0.0.1:{port}"))
    try:
        yield servers[0]
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


async def _read_request(reader: asyncio.StreamReader) -> RecordedRequest | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return RecordedRequest(method, target, headers, body)
