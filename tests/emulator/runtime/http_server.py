"""HTTP server on the loopback interface whose responses a test defines."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter
    from collections.abc import Awaitable, Callable


class HttpRequest(NamedTuple):
    """Received request."""

    method: str
    target: str
    headers: dict[str, str]
    """Header values by name in lower case."""
    body: bytes
    reader: StreamReader
    """Stream of the client; `await reader.read()` waits until it disconnects."""


def build_response(status: int, body: bytes = b"", **headers: str) -> bytes:
    """Build a valid response; headers such as `Content_Length` override the correct values."""
    fields = {"Content_Length": str(len(body)), "Connection": "close", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    header_block = "\r\n".join([f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *lines, "", ""])
    return header_block.encode() + body


def build_json_response(status: int, body: Any, **headers: str) -> bytes:
    """Build a JSON response."""
    return build_response(status, json.dumps(body).encode(), Content_Type="application/json", **headers)


class ScriptedHttpServer:
    """Server that passes every request to `reply` and then closes the connection; `requests` lists them."""

    def __init__(self, reply: Callable[[HttpRequest, StreamWriter], Awaitable[None]]) -> None:
        self._reply = reply
        self._busy: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.requests: list[HttpRequest] = []
        self.url = ""

    @classmethod
    def serving(cls, responses: dict[str, bytes]) -> Self:
        """Create a server with these responses by target, and 404 for all others."""

        async def reply(request: HttpRequest, writer: StreamWriter) -> None:
            writer.write(responses.get(request.target, build_response(404)))

        return cls(reply)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        tasks = list(self._busy)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def busy(self) -> int:
        """Number of connected clients."""
        return len(self._busy)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            request = await _read_request(reader)
            self.requests.append(request)
            await self._reply(request, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has disconnected early
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._busy.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _read_request(reader: StreamReader) -> HttpRequest:
    header_block = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    request_line, *lines = header_block.strip().split("\r\n")
    method, target, _ = request_line.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return HttpRequest(method, target, headers, body, reader)
