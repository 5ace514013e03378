"""A server that answers as it was told, word for word, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from ssl import SSLContext

DROP = b""
"""In the place of an answer: the connection ends."""


class RecordedRequest(NamedTuple):
    """What came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class ScriptedServer:
    """Gives the answers of its script one after the other, and the last of them for ever."""

    def __init__(self, script: list[bytes], always: Mapping[str, bytes], url: str) -> None:
        self._script = script
        self._always = always
        self.url = url
        self.requests: list[RecordedRequest] = []

    def respond(self, asked: RecordedRequest) -> bytes:
        """What comes back."""
        self.requests.append(asked)
        if asked.path in self._always:
            return self._always[asked.path]
        return self._script.pop(0) if len(self._script) > 1 else self._script[0]


def build_response(status: int, body: object = None, **headers: str) -> bytes:
    """An answer as HTTP spells it; the words of the status do not matter."""
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} x", f"Content-Length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + content


def build_problem(status: int, code: str, detail: str = "for a reason", **headers: str) -> bytes:
    """An error as a service tells it."""
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
    """Serve, for as long as the block lasts; `always` are answers by path, beside the script."""
    tasks: set[asyncio.Task[None]] = set()
    place: list[ScriptedServer] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            while (asked := await _read(reader)) is not None:
                reply = place[0].respond(asked)
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
    place.append(ScriptedServer(list(script), always or {}, f"http{'s' if tls else ''}://127.0.0.1:{port}"))
    try:
        yield place[0]
    finally:
        listener.close()
        for task in list(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await listener.wait_closed()


async def _read(reader: asyncio.StreamReader) -> RecordedRequest | None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    first, *lines = head.rstrip("\r\n").split("\r\n")
    method, target, _ = first.split(" ")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return RecordedRequest(method, target, headers, body)
