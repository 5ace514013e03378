"""Keeps a connection: makes the first one, and another whenever one is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from meshfleet.errors.mqtt import LinkClosed, LinkError
from meshfleet.mqtt.change_signal import ChangeSignal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meshfleet.mqtt.client.connection import ClientConnection
    from meshfleet.mqtt.client.options import ExponentialBackoff

_log = logging.getLogger(__name__)


class Reconnector:
    """Has a connection most of the time, and somebody at work to get one the rest of it.

    While there is a connection no task runs: ten thousand idle ones cost memory and nothing else.
    """

    __slots__ = (
        "_backoff",
        "_connect",
        "_connected_at",
        "_is_started",
        "_name",
        "_next_delays",
        "_on_failed",
        "_reconnect_task",
        "changed",
        "connection",
        "connection_error",
        "is_closing",
    )

    def __init__(
        self,
        name: str,
        connect: Callable[[], Awaitable[ClientConnection]],
        backoff: ExponentialBackoff,
        on_failed: Callable[[LinkClosed], None],
    ) -> None:
        self._name = name
        self._connect = connect
        self._backoff = backoff
        self._on_failed = on_failed
        """Called when the link will not come back, by a defect of ours."""
        self._next_delays = iter(backoff)
        self._connected_at = 0.0
        self._reconnect_task: asyncio.Task[None] | None = None
        self._is_started = False
        self.connection: ClientConnection | None = None
        self.connection_error: LinkError | None = LinkClosed("the link is not open: use it as `async with`")
        """Why there is no connection now, or None when there is one."""
        self.changed = ChangeSignal()
        """Rings when a connection came or got room, and when everybody is to wake."""
        self.is_closing = False

    async def start(self, *, retry_first_connect: bool) -> None:
        """Make the first connection. Only the patient go on when that fails."""
        if self._is_started:
            raise LinkClosed("a link is entered once")
        self._is_started = True
        try:
            self._set_connection(await self._connect())
        except LinkError as trouble:
            if not retry_first_connect:
                raise
            self._start_reconnect(trouble)

    async def wait_connected(self) -> ClientConnection:
        """The connection, as soon as there is one."""
        self.check_open()
        while self.connection is None:
            await self.changed.wait()
            self.check_open()
        return self.connection

    def check_open(self) -> None:
        """Whether there is a connection or will be."""
        if self.is_closing:
            raise LinkClosed("the link is closed")
        if isinstance(self.connection_error, LinkClosed):
            raise LinkClosed(*self.connection_error.args)

    def on_connection_lost(self, connection: ClientConnection, reason: LinkError) -> None:
        """Come back, unless it was a connection that never became ours, or that we let go."""
        if connection is self.connection:
            self.connection = None
            self._start_reconnect(reason)

    async def stop(self) -> ClientConnection | None:
        """Stop coming back; the connection, if there is one, is the caller's to end."""
        connection, self.connection = self.connection, None
        self.connection_error = LinkClosed("the link is closed")
        if self._reconnect_task is not None and not self._reconnect_task.done():
            self._reconnect_task.cancel()
            await asyncio.wait((self._reconnect_task,))
        return connection

    @property
    def can_reconnect(self) -> bool:
        """Whether what is on its way may still arrive."""
        return self.connection is not None or (
            self._reconnect_task is not None and not self._reconnect_task.done()
        )

    def _set_connection(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.connection_error = None
        self._connected_at = asyncio.get_running_loop().time()
        self.changed.notify()

    def _start_reconnect(self, trouble: LinkError) -> None:
        loop = asyncio.get_running_loop()
        if loop.time() - self._connected_at >= self._backoff.reset_after:
            self._next_delays = iter(self._backoff)
        self._set_connection_error(trouble)
        self._reconnect_task = loop.create_task(self._reconnect(), name=f"return of {self._name}")
        self._reconnect_task.add_done_callback(self._on_reconnect_done)

    async def _reconnect(self) -> None:
        """Try until there is a connection."""
        while self.connection is None:
            await asyncio.sleep(next(self._next_delays))
            try:
                self._set_connection(await self._connect())
            except LinkError as trouble:
                self._set_connection_error(trouble)
        _log.info("%s has a connection again", self._name)

    def _set_connection_error(self, trouble: LinkError) -> None:
        """Each reason once, not at every try: ten thousand links would fill a disk."""
        if str(trouble) != str(self.connection_error):
            _log.warning("%s has no connection: %s", self._name, trouble)
        self.connection_error = trouble.with_traceback(
            None
        )  # traces and causes would keep alive what the try made
        trouble.__cause__ = trouble.__context__ = None

    def _on_reconnect_done(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (defect := task.exception()):
            _log.error("%s has failed", self._name, exc_info=defect)
            self.connection_error = LinkClosed("the link has failed, which is a defect of ours: see the log")
            self._on_failed(self.connection_error)
