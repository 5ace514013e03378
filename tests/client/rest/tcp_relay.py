"""TCP relay between a client and a service, which a test can disconnect and connect again."""

from __future__ import annotations

import asyncio
from typing import Self

import httpx


class TcpRelay:
    """Relay with a constant address that forwards bytes in both directions."""

    def __init__(self, target: str) -> None:
        url = httpx.URL(target)
        self._target = url.host, url.port or 0
        self._server: asyncio.Server | None = None
        self._port = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self.forwarded_to_client = 0
        """Bytes from the service that were forwarded to the client."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.disconnect()

    async def connect(self) -> None:
        """Accept connections from now on."""
        self._server = await asyncio.start_server(self._forward, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    async def disconnect(self) -> None:
        """Close all connections, and refuse new ones."""
        assert self._server is not None
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        try:
            await asyncio.gather(
                self._copy(reader, server_writer), self._copy(server_reader, writer, counted=True)
            )
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            server_writer.transport.abort()
            writer.close()  # flushes what was forwarded

    async def _copy(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
    ) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
            self.forwarded_to_client += len(data) if counted else 0
