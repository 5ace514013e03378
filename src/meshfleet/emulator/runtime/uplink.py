"""One emulated gateway on a broker: its connection, and the way of messages between both."""

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
from meshfleet.errors.mqtt import LinkClosed, Undelivered
from meshfleet.mqtt.client import MqttClient, OversizedPublish
from meshfleet.protocol.diagnostics import format_answer_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from httpx import AsyncClient

    from meshfleet.emulator.context import IoAction
    from meshfleet.emulator.gateway import GatewayEmulator
    from meshfleet.mqtt.client import BrokerAddress, MqttOptions, Publish
    from meshfleet.protocol.diagnostics import FirmwareQuestion

_log = logging.getLogger(__name__)


class _GatewayRestart(Exception):  # it ends a group of tasks, and is no error
    """The gateway goes down."""


class Uplink:
    """Keeps a gateway connected, through all its restarts."""

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
        """The moment at which somebody will look after the gateway."""
        self.counted_reports = gateway.report_count
        """Its reports that the fleet knows of."""
        self.on_activity: Callable[[Uplink], None] = lambda _: None
        """Told when something came for the gateway."""
        self.max_queued = 10_000
        """Messages that the gateway keeps while its broker is away; the oldest give way, as in a real one."""
        self.fetch_options = ImageFetchOptions(tls=options.tls)
        """How it asks for firmware images."""
        self.published = 0
        self.received = 0
        self.dropped = 0
        self.connections = 0
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
        self._link: MqttClient | None = None
        self._image_fetcher: GatewayImageFetcher | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the broker has it now."""
        return self._link is not None and self._link.connection_error is None

    @property
    def disconnect_reason(self) -> str:
        """Why it is not connected, if that is so."""
        if self.gateway.is_down:
            return "the gateway is restarting"
        if self._link is None:
            return "not connected yet"
        return str(self._link.connection_error or "")

    # What the owner does

    def publish(self, messages: list[Publish]) -> None:
        """Publish what the gateway has to say: at once if that is possible, else as soon as it is."""
        if not self._queue and self._link is not None:
            sent = self._link.try_publish(messages)
            self.published += sent
            if sent == len(messages):
                return
            messages = messages[sent:]
        self._queue += messages
        if (surplus := len(self._queue) - self.max_queued) > 0:
            del self._queue[:surplus]
            self.dropped += surplus
        self._ready.set()

    def perform(self, chore: IoAction) -> None:
        """Do what the gateway cannot do itself."""
        match chore:
            case CloseConnection(crashed):
                self._crashed = crashed
                self._is_up.clear()
                self._restart.set()
            case OpenConnection():
                self._is_up.set()
            case FetchImage(question):
                if self._tasks is None or self._restart.is_set():
                    self.gateway.on_image_failed(question, Error.NO_IMAGE, self._now())
                else:
                    self._tasks.create_task(self._fetch(question), name=f"image for {self._mac}")

    async def run(
        self,
        connect_slots: AbstractAsyncContextManager[object],
        on_connected: Callable[[], None],
        started: asyncio.Event,
    ) -> None:
        """Stay connected for ever. Connecting for the first time waits for its turn, and may fail.

        Once connected, it waits until the world has begun: before, there is no time to answer at.
        """
        async with connect_slots:
            self._link = link = await self._connect(self._options)
        on_connected()
        try:
            await started.wait()
        except BaseException:
            await link.abort()
            raise
        while True:
            await self._serve(link)
            await self._is_up.wait()
            link = await self._connect(replace(self._options, retry_first_connect=True))

    # The connection

    @property
    def _mac(self) -> str:
        return self.gateway.settings.mac

    async def _connect(self, options: MqttOptions) -> MqttClient:
        settings = self.gateway.settings
        # What waits at the broker is for gateways that serve requests.
        clean = settings.clean_session or settings.disable_subscribe
        link = MqttClient(self._address, self._mac, clean=clean, options=options)
        await link.__aenter__()
        try:
            await self._subscribe(link)
        except BaseException:
            await link.abort()
            raise
        self.connections += 1
        return link

    async def _subscribe(self, link: MqttClient) -> None:
        settings, topics = self.gateway.settings, self.gateway.topics
        if not settings.disable_subscribe:
            await link.subscribe(topics.request_filter(settings.mac), topics.broadcast_filter())

    async def _serve(self, link: MqttClient) -> None:
        """Carry messages both ways until the gateway restarts."""
        self._link = link
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._publish_queue(link), name=f"reports of {self._mac}")
                tasks.create_task(self._receive(link), name=f"requests to {self._mac}")
                await self._until_restart()
        except* _GatewayRestart:
            if self._crashed:
                self._queue.clear()
                await link.abort()
        finally:
            self._link = self._image_fetcher = self._tasks = None
            self._restart.clear()
            await self._close(link)
        # A group that ends by an error of its own forgets that somebody cancelled it meanwhile (Python 3.11).
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError

    async def _close(self, link: MqttClient) -> None:
        """Say what is left to say, and good-bye."""
        try:
            with suppress(TimeoutError, LinkClosed):
                async with asyncio.timeout(self._options.timeout):
                    await self._drain(link)
            if self._queue:
                _log.warning("%s ends a connection with %d messages unpublished", self._mac, len(self._queue))
            await link.close()
        except Undelivered as undelivered:
            _log.warning("%s: %s", self._mac, undelivered)

    async def _until_restart(self) -> None:
        await self._restart.wait()
        raise _GatewayRestart

    async def _publish_queue(self, link: MqttClient) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            await self._drain(link)

    async def _drain(self, link: MqttClient) -> None:
        """Publish what waits."""
        while self._queue:
            sent = link.try_publish(self._queue)
            del self._queue[:sent]
            self.published += sent
            if not sent:
                await link.wait_writable()

    async def _receive(self, link: MqttClient) -> None:
        answers = format_answer_topic(self.gateway.settings.mac)
        async for batch in link:
            for message in batch.messages:
                self.received += 1
                if message.topic == answers:
                    self._get_image_fetcher(link).on_answer(message.payload)
                else:
                    self._deliver(message)
            batch.acknowledge()
            self.on_activity(self)

    def _deliver(self, message: Publish) -> None:
        """Hand a message to the gateway. Whatever it is, it does not stop anything else."""
        payload = None if isinstance(message, OversizedPublish) else message.payload
        try:
            self.gateway.receive(message.topic, payload, self._now())
        except Exception:  # noqa: BLE001 # one gateway of thousands, and one request of many
            _log.exception("%s cannot serve a request, which is a defect of ours", self._mac)

    # Chores

    def _get_image_fetcher(self, link: MqttClient) -> GatewayImageFetcher:
        if self._image_fetcher is None:
            mac = self.gateway.settings.mac
            self._image_fetcher = GatewayImageFetcher(
                self._address, mac, link=link, http=self._http, fetch_options=self.fetch_options
            )
        return self._image_fetcher

    async def _fetch(self, question: FirmwareQuestion) -> None:
        assert self._link is not None  # noqa: S101 # fetching ends before the link does
        try:
            image = await self._get_image_fetcher(self._link).fetch(question)
        except (ImageUnavailable, LinkClosed) as exc:
            _log.warning("%s cannot get an image: %s", self._mac, exc)
            self.gateway.on_image_failed(question, Error.NO_IMAGE, self._now())
        except ImageBroken as exc:
            _log.warning("%s gets a broken image: %s", self._mac, exc)
            self.gateway.on_image_failed(question, Error.BAD_HASH, self._now())
        except Exception:  # noqa: BLE001 # as above
            _log.exception("%s cannot get an image, which is a defect of ours", self._mac)
            self.gateway.on_image_failed(question, Error.NO_IMAGE, self._now())
        else:
            self.gateway.on_image(question, image, self._now())
        self.on_activity(self)
