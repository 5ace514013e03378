"""A cable between a client and a service, which a test pulls out and puts back."""

from __future__ import annotations

import asyncio
from typing import Self

import httpx


class TcpRelay:
    """Passes bytes both ways. It has one address for all its life."""

    def __init__(self, to: str) -> None:
        url = httpx.URL(to)
        self._to = url.host, url.port or 0
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.passed_back = 0
        """Bytes that came from the service, and went on to the client."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Put it in."""
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def disconnect(self) -> None:
        """Pull it out: what is connected is cut, and nobody gets through."""
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        there, back = await asyncio.open_connection(*self._to)
        try:
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer, counted=True))
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            back.transport.abort()
            writer.close()  # what was passed on arrives

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
    ) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
            self.passed_back += len(data) if counted else 0
