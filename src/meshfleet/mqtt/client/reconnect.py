"""Reconnect loop of the MQTT client: opens the first connection, and a new one whenever one is lost."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from meshfleet.errors.mqtt import ConnectionClosed, MqttError
from meshfleet.mqtt.change_signal import ChangeSignal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from meshfleet.mqtt.client.connection import ClientConnection
    from meshfleet.mqtt.client.options import ExponentialBackoff

_log = logging.getLogger(__name__)


class Reconnector:
    """Holds the current connection to the broker, and runs a task that reconnects while there is none.

    No task runs while there is a connection: ten thousand idle clients cost memory and nothing else.
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
        on_failed: Callable[[ConnectionClosed], None],
    ) -> None:
        self._name = name
        self._connect = connect
        self._backoff = backoff
        self._on_failed = on_failed
        """Callback for the case that the reconnect task ends with an unexpected exception."""
        self._next_delays = iter(backoff)
        self._connected_at = 0.0
        self._reconnect_task: asyncio.Task[None] | None = None
        self._is_started = False
        self.connection: ClientConnection | None = None
        self.connection_error: MqttError | None = ConnectionClosed(
            "the MQTT client is not open: use it with `async with`"
        )
        """Why the client is not connected at present, or None while it is connected."""
        self.changed = ChangeSignal()
        """Signal that wakes waiting callers, such as when a connection is established or can send again."""
        self.is_closing = False

    async def start(self, *, retry_first_connect: bool) -> None:
        """Open the first connection to the broker.

        If the connection fails, raise the error; with `retry_first_connect`, start to reconnect instead.
        """
        if self._is_started:
            raise ConnectionClosed("an MQTT client can be entered only once")
        self._is_started = True
        try:
            self._set_connection(await self._connect())
        except MqttError as error:
            if not retry_first_connect:
                raise
            self._start_reconnect(error)

    async def wait_connected(self) -> ClientConnection:
        """Wait for a connection and return it. Raise ConnectionClosed if the client will never have one."""
        self.check_open()
        while self.connection is None:
            await self.changed.wait()
            self.check_open()
        return self.connection

    def check_open(self) -> None:
        """Raise ConnectionClosed if there is no connection and the client will never connect again."""
        if self.is_closing:
            raise ConnectionClosed("the MQTT client is closed")
        if isinstance(self.connection_error, ConnectionClosed):
            raise ConnectionClosed(*self.connection_error.args)

    def on_connection_lost(self, connection: ClientConnection, reason: MqttError) -> None:
        """Start to reconnect if `connection` is the current connection, and was not released by `stop`."""
        if connection is self.connection:
            self.connection = None
            self._start_reconnect(reason)

    async def stop(self) -> ClientConnection | None:
        """Stop reconnecting. Return the current connection, if any, for the caller to close."""
        connection, self.connection = self.connection, None
        self.connection_error = ConnectionClosed("the MQTT client is closed")
        if self._reconnect_task is not None and not self._reconnect_task.done():
            self._reconnect_task.cancel()
            await asyncio.wait((self._reconnect_task,))
        return connection

    @property
    def can_reconnect(self) -> bool:
        """Whether the client is connected or reconnecting, so that messages may still be acknowledged."""
        return self.connection is not None or (
            self._reconnect_task is not None and not self._reconnect_task.done()
        )

    def _set_connection(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.connection_error = None
        self._connected_at = asyncio.get_running_loop().time()
        self.changed.notify()

    def _start_reconnect(self, error: MqttError) -> None:
        """Start the reconnect task. Reset the delays if the lost connection was stable."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._connected_at >= self._backoff.reset_after:
            self._next_delays = iter(self._backoff)
        self._set_connection_error(error)
        self._reconnect_task = loop.create_task(self._reconnect(), name=f"reconnect of {self._name}")
        self._reconnect_task.add_done_callback(self._on_reconnect_done)

    async def _reconnect(self) -> None:
        """Try to connect, with growing delays between the attempts, until there is a connection."""
        while self.connection is None:
            await asyncio.sleep(next(self._next_delays))
            try:
                self._set_connection(await self._connect())
            except MqttError as error:
                self._set_connection_error(error)
        _log.info("%s has a connection again", self._name)

    def _set_connection_error(self, error: MqttError) -> None:
        """Record why there is no connection. Log each reason once: thousands of clients may retry."""
        if str(error) != str(self.connection_error):
            _log.warning("%s has no connection: %s", self._name, error)
        # Tracebacks and causes would keep the objects of the attempt alive.
        self.connection_error = error.with_traceback(None)
        error.__cause__ = error.__context__ = None

    def _on_reconnect_done(self, task: asyncio.Task[None]) -> None:
        """Log the defect with which the reconnect task ended, if any, and call `on_failed`."""
        if not task.cancelled() and (defect := task.exception()):
            _log.error("reconnect of %s has failed", self._name, exc_info=defect)
            self.connection_error = ConnectionClosed(
                "the MQTT client has failed because of a defect: see the log"
            )
            self._on_failed(self.connection_error)
