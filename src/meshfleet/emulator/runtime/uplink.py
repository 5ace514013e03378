"""Connects one emulated gateway to its MQTT broker, and carries messages in both directions."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.emulator.context import CloseConnection, FetchImage, OpenConnection
from meshfleet.emulator.runtime.image_fetcher import GatewayImageFetcher, ImageFetchOptions
from meshfleet.emulator.updates import Error
from meshfleet.errors.emulator import ImageBroken, ImageUnavailable
from meshfleet.errors.mqtt import ConnectionClosed, Undelivered
from meshfleet.mqtt.client import MqttClient, OversizedPublish
from meshfleet.protocol.diagnostics import format_image_response_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from httpx import AsyncClient

    from meshfleet.emulator.context import IoAction
    from meshfleet.emulator.gateway import GatewayEmulator
    from meshfleet.mqtt.client import BrokerAddress, MqttOptions, Publish
    from meshfleet.protocol.diagnostics import ImageRequest

_log = logging.getLogger(__name__)


class _GatewayRestart(Exception):  # ends a task group and is not an error
    """Raised to end the tasks of an MQTT connection when the gateway restarts."""


class Uplink:
    """MQTT connection of one emulated gateway, reopened after each restart of the gateway."""

    def __init__(
        self,
        gateway: GatewayEmulator,
        address: BrokerAddress,
        *,
        options: MqttOptions,
        http: AsyncClient,
        now: Callable[[], float],
    ) -> None:
        self.gateway = gateway
        self.next_due = 0.0
        """Simulated time in seconds at which the fleet advances the gateway next."""
        self.counted_reports = gateway.report_count
        """Number of reports of the gateway that the fleet's report count already includes."""
        self.on_activity: Callable[[Uplink], None] = lambda _: None
        """Function that is called when the gateway received messages or the result of an I/O action."""
        self.max_queued = 10_000
        """Maximum number of messages queued without a connection; the oldest are dropped."""
        self.fetch_options = ImageFetchOptions(tls=options.tls)
        """Limits for fetching firmware images."""
        self.published = 0
        """Number of published messages."""
        self.received = 0
        """Number of received messages."""
        self.dropped = 0
        """Number of messages dropped because too many were queued."""
        self.connections = 0
        """Number of connections so far."""
        self._address = address
        self._options = options
        self._http = http
        self._now = now
        self._queue: list[Publish] = []
        self._ready = asyncio.Event()
        self._restart = asyncio.Event()
        self._is_up = asyncio.Event()
        self._crashed = False
        self._tasks: asyncio.TaskGroup | None = None
        self._client: MqttClient | None = None
        self._image_fetcher: GatewayImageFetcher | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the gateway is connected to its MQTT broker."""
        return self._client is not None and self._client.connection_error is None

    @property
    def disconnect_reason(self) -> str:
        """Reason why the gateway is not connected to its broker; empty if it is connected."""
        if self.gateway.is_restarting:
            return "the gateway is restarting"
        if self._client is None:
            return "not connected yet"
        return str(self._client.connection_error or "")

    # Calls of the owner

    def publish(self, messages: list[Publish]) -> None:
        """Publish MQTT messages at once if possible; otherwise queue them until the broker accepts them."""
        if not self._queue and self._client is not None:
            sent = self._client.try_publish(messages)
            self.published += sent
            if sent == len(messages):
                return
            messages = messages[sent:]
        self._queue += messages
        if (excess_count := len(self._queue) - self.max_queued) > 0:
            del self._queue[:excess_count]
            self.dropped += excess_count
        self._ready.set()

    def perform(self, action: IoAction) -> None:
        """Perform an I/O action that the emulated gateway requested."""
        match action:
            case CloseConnection(crashed):
                self._crashed = crashed
                self._is_up.clear()
                self._restart.set()
            case OpenConnection():
                self._is_up.set()
            case FetchImage(image_request):
                if self._tasks is None or self._restart.is_set():
                    self.gateway.on_image_failed(image_request, Error.NO_IMAGE, self._now())
                else:
                    self._tasks.create_task(self._fetch(image_request), name=f"image for {self._mac}")

    async def run(
        self,
        connect_slots: AbstractAsyncContextManager[object],
        on_connected: Callable[[], None],
        started: asyncio.Event,
    ) -> None:
        """Stay connected until canceled. If the first connection fails, raise its error.

        `connect_slots` limits how many gateways connect at the same time. `on_connected` is called after the
        first connection. Messages are handled only after the simulation has started: `started` is set.
        """
        async with connect_slots:
            self._client = client = await self._connect(self._options)
        on_connected()
        try:
            await started.wait()
        except BaseException:
            await client.abort()
            raise
        while True:
            await self._serve(client)
            await self._is_up.wait()
            client = await self._connect(replace(self._options, retry_first_connect=True))

    # Connection

    @property
    def _mac(self) -> str:
        return self.gateway.settings.mac

    async def _connect(self, options: MqttOptions) -> MqttClient:
        """Connect the gateway to its broker, and subscribe to its requests. Return the MQTT client."""
        settings = self.gateway.settings
        # A gateway that does not subscribe needs no stored session.
        clean = settings.clean_session or settings.disable_subscribe
        client = MqttClient(self._address, self._mac, clean=clean, options=options)
        await client.__aenter__()
        try:
            await self._subscribe(client)
        except BaseException:
            await client.abort()
            raise
        self.connections += 1
        return client

    async def _subscribe(self, client: MqttClient) -> None:
        settings, topics = self.gateway.settings, self.gateway.topics
        if not settings.disable_subscribe:
            await client.subscribe(topics.request_filter(settings.mac), topics.broadcast_filter())

    async def _serve(self, client: MqttClient) -> None:
        """Publish queued messages and receive requests until the gateway restarts."""
        self._client = client
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._publish_queue(client), name=f"reports of {self._mac}")
                tasks.create_task(self._receive(client), name=f"requests to {self._mac}")
                await self._raise_on_restart()
        except* _GatewayRestart:
            if self._crashed:
                self._queue.clear()
                await client.abort()
        finally:
            self._client = self._image_fetcher = self._tasks = None
            self._restart.clear()
            await self._close(client)
        # Python 3.11: a task group that ends with its own error discards a concurrent cancellation.
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError

    async def _close(self, client: MqttClient) -> None:
        """Publish the remaining messages and disconnect. Log messages that cannot be delivered in time."""
        try:
            with suppress(TimeoutError, ConnectionClosed):
                async with asyncio.timeout(self._options.timeout):
                    await self._drain(client)
            if self._queue:
                _log.warning("%s disconnects with %d unpublished messages", self._mac, len(self._queue))
            await client.close()
        except Undelivered as undelivered:
            _log.warning("%s: %s", self._mac, undelivered)

    async def _raise_on_restart(self) -> None:
        """Wait until the gateway restarts, then end the tasks of the connection with an exception."""
        await self._restart.wait()
        raise _GatewayRestart

    async def _publish_queue(self, client: MqttClient) -> None:
        """Publish queued messages whenever there are some, until canceled."""
        while True:
            await self._ready.wait()
            self._ready.clear()
            await self._drain(client)

    async def _drain(self, client: MqttClient) -> None:
        """Publish the queued messages; wait while the connection accepts none."""
        while self._queue:
            sent = client.try_publish(self._queue)
            del self._queue[:sent]
            self.published += sent
            if not sent:
                await client.wait_writable()

    async def _receive(self, client: MqttClient) -> None:
        """Pass received messages to the gateway, until the connection is closed."""
        response_topic = format_image_response_topic(self.gateway.settings.mac)
        async for batch in client:
            for message in batch.messages:
                self.received += 1
                if message.topic == response_topic:
                    self._get_image_fetcher(client).on_image_response(message.payload)
                else:
                    self._deliver(message)
            batch.acknowledge()
            self.on_activity(self)

    def _deliver(self, message: Publish) -> None:
        """Pass a received message to the gateway. An exception is logged and stops nothing else."""
        payload = None if isinstance(message, OversizedPublish) else message.payload
        try:
            self.gateway.receive(message.topic, payload, self._now())
        except Exception:  # noqa: BLE001 # a failure of one request must not stop the others
            _log.exception("%s failed to handle a request, which is a bug in the emulator", self._mac)

    # Actions

    def _get_image_fetcher(self, client: MqttClient) -> GatewayImageFetcher:
        if self._image_fetcher is None:
            mac = self.gateway.settings.mac
            self._image_fetcher = GatewayImageFetcher(
                self._address, mac, main_client=client, http=self._http, fetch_options=self.fetch_options
            )
        return self._image_fetcher

    async def _fetch(self, image_request: ImageRequest) -> None:
        """Fetch a firmware image, and pass the image or the error to the gateway."""
        assert self._client is not None  # noqa: S101 # fetch tasks end before the client closes
        try:
            image = await self._get_image_fetcher(self._client).fetch(image_request)
        except (ImageUnavailable, ConnectionClosed) as exc:
            _log.warning("%s cannot fetch a firmware image: %s", self._mac, exc)
            self.gateway.on_image_failed(image_request, Error.NO_IMAGE, self._now())
        except ImageBroken as exc:
            _log.warning("%s fetched an invalid firmware image: %s", self._mac, exc)
            self.gateway.on_image_failed(image_request, Error.BAD_HASH, self._now())
        except Exception:  # noqa: BLE001 # a failure of one update must not stop the gateway
            _log.exception("%s failed to fetch a firmware image, which is a bug in the emulator", self._mac)
            self.gateway.on_image_failed(image_request, Error.NO_IMAGE, self._now())
        else:
            self.gateway.on_image_fetched(image_request, image, self._now())
        self.on_activity(self)
