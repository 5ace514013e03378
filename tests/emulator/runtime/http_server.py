"""An HTTP server that does what a test tells it, on a port of the loopback interface."""

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
    """What a client asked."""

    method: str
    target: str
    headers: dict[str, str]
    """With names in lower case."""
    body: bytes
    reader: StreamReader
    """What it says next; `await reader.read()` waits until it has left."""


def build_response(status: int, body: bytes = b"", **headers: str) -> bytes:
    """An answer in good order; `Content_Length` and the like replace what would be right."""
    fields = {"Content_Length": str(len(body)), "Connection": "close", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    head = "\r\n".join([f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *lines, "", ""])
    return head.encode() + body


def build_json_response(status: int, body: Any, **headers: str) -> bytes:
    """An answer in JSON."""
    return build_response(status, json.dumps(body).encode(), Content_Type="application/json", **headers)


class ScriptedHttpServer:
    """Hands every question to `reply`, and closes behind its answer. What it was asked stays in `asked`."""

    def __init__(self, reply: Callable[[HttpRequest, StreamWriter], Awaitable[None]]) -> None:
        self._reply = reply
        self._busy: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.requests: list[HttpRequest] = []
        self.url = ""

    @classmethod
    def serving(cls, pages: dict[str, bytes]) -> Self:
        """A server with these answers at these targets, and 404 elsewhere."""

        async def reply(asked: HttpRequest, writer: StreamWriter) -> None:
            writer.write(pages.get(asked.target, build_response(404)))

        return cls(reply)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.url = f"http://{host}:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        busy = list(self._busy)
        for task in busy:
            task.cancel()
        await asyncio.gather(*busy, return_exceptions=True)
        await self._server.wait_closed()

    @property
    def busy(self) -> int:
        """How many clients it is talking to."""
        return len(self._busy)

    async def _serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._busy.add(task)
        try:
            asked = await _read(reader)
            self.requests.append(asked)
            await self._reply(asked, writer)
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass  # the client has had enough, as is its right
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            self._busy.discard(task)
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()


async def _read(reader: StreamReader) -> HttpRequest:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii")
    first, *lines = head.strip().split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", 0)))
    return HttpRequest(method, target, headers, body, reader)
