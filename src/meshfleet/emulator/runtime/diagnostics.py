"""Diagnostics connection, on which a gateway asks the service for firmware images and receives the responses.

It is a second MQTT connection (gateway-5) with the MAC in upper case as client id; the main connection has
the MAC in lower case. The connection is open only while it is used, because few of the thousands of gateways
in a process need one at a time. For a MAC without letters both client ids would be equal, and the broker
would close the older connection; such a gateway uses its main connection instead.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.errors.mqtt import MqttError
from meshfleet.mqtt.client import MqttClient
from meshfleet.protocol.diagnostics import format_image_response_topic

if TYPE_CHECKING:
    from asyncio import Future, Task
    from collections.abc import AsyncIterator, Callable

    from meshfleet.mqtt.client import BrokerAddress, MqttOptions
    from meshfleet.protocol.ids import Mac

_log = logging.getLogger(__name__)

_KEEP_ALIVE_SECONDS: Final = 15
"""MQTT keep-alive of the diagnostics connection in seconds (gateway-5)."""


class DiagnosticsConnection:
    """Diagnostics connection of one gateway, shared by all image fetches that run at the same time.

    If the MAC has no letters, `main_client`, the client of the gateway's main connection, is used instead.
    The owner of `main_client` then handles received responses, and `on_image_response` is not called.
    """

    def __init__(
        self,
        address: BrokerAddress,
        gateway: Mac,
        *,
        main_client: MqttClient | None,
        on_image_response: Callable[[bytes], None],
        options: MqttOptions,
    ) -> None:
        has_same_client_id = gateway.upper() == gateway
        if has_same_client_id and main_client is None:
            raise ValueError(f"{gateway} has no letters: it needs its main connection for diagnostics")
        self._address = address
        self._gateway = gateway
        self._main_client = main_client if has_same_client_id else None
        self._options = replace(options, keep_alive=_KEEP_ALIVE_SECONDS, retry_first_connect=True)
        self._on_image_response = on_image_response
        self._client = self._main_client
        self._users = 0
        self._ready: Future[MqttClient] | None = None
        self._task: Task[None] | None = None

    @property
    def problem(self) -> MqttError | None:
        """Error that keeps the diagnostics connection from being established, or None."""
        return None if self._client is None else self._client.connection_error

    @asynccontextmanager
    async def acquire(self) -> AsyncIterator[Future[MqttClient]]:
        """Open the diagnostics connection, or share it if it is already open.

        Yield a future of the MQTT client. The future resolves when responses can be received. Await it with
        `asyncio.shield`, because other callers wait for it too. The last caller closes the connection.
        """
        ready = self._ready = self._ready or self._start()
        self._users += 1
        try:
            yield ready
        finally:
            self._users -= 1
            if not self._users:
                await self._stop()

    def _start(self) -> Future[MqttClient]:
        """Start the task of the diagnostics connection. Return a future of the connected MQTT client."""
        loop = asyncio.get_running_loop()
        ready: Future[MqttClient] = loop.create_future()
        self._task = loop.create_task(
            self._serve(ready, previous_task=self._task), name=f"diagnostics of {self._gateway}"
        )
        return ready

    async def _stop(self) -> None:
        """Close the diagnostics connection, and wait until it is closed."""
        self._ready = None
        if (task := self._task) is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _serve(self, ready: Future[MqttClient], previous_task: Task[None] | None) -> None:
        """Wait until the previous connection with this client id is closed, then connect until canceled."""
        if previous_task is not None:
            await asyncio.wait((previous_task,))
        try:
            if self._main_client is None:
                await self._connect(ready)
            else:
                await self._use_main_connection(self._main_client, ready)
        except MqttError as error:
            if not ready.done():
                ready.set_exception(error)
                ready.exception()  # mark as retrieved: the user may have left, so that nothing awaits it
            _log.debug("%s has no diagnostics connection: %s", self._gateway, error)

    async def _connect(self, ready: Future[MqttClient]) -> None:
        """Open the diagnostics connection, and receive responses until canceled."""
        self._client = MqttClient(self._address, self._gateway.upper(), clean=True, options=self._options)
        async with self._client as client:
            await client.subscribe(format_image_response_topic(self._gateway))
            ready.set_result(client)
            async for batch in client:
                for message in batch.messages:
                    self._on_image_response(message.payload)
                batch.acknowledge()

    async def _use_main_connection(self, client: MqttClient, ready: Future[MqttClient]) -> None:
        """Subscribe to the responses on the main connection of the gateway until canceled."""
        topic = format_image_response_topic(self._gateway)
        try:
            await client.subscribe(topic)
            ready.set_result(client)
            await asyncio.Event().wait()  # until canceled
        finally:
            with suppress(MqttError, TimeoutError):
                async with asyncio.timeout(self._options.timeout):
                    await client.unsubscribe(topic)
