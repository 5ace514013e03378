"""One emulated gateway on a broker: its connection, and the way of messages between both."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import replace

from meshfleet.errors import ImageBroken, ImageUnavailable, LinkClosed, Undelivered
from meshfleet.gateway.core import ComeUp, Fetch, GoDown
from meshfleet.gateway.online.images import Images, Terms
from meshfleet.gateway.updates import Error
from meshfleet.link import Link, Oversized
from meshfleet.wire.diagnostics import answer_topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractAsyncContextManager

    from httpx import AsyncClient

    from meshfleet.gateway.core import Chore
    from meshfleet.gateway.gateway import Gateway
    from meshfleet.link import Address, Options, Publish
    from meshfleet.wire.diagnostics import FirmwareQuestion

_log = logging.getLogger(__name__)


class _Restarting(Exception):  # it ends a group of tasks, and is no error
    """The gateway goes down."""


class Uplink:
    """Keeps a gateway connected, through all its restarts."""

    def __init__(
        self,
        gateway: Gateway,
        address: Address,
        *,
        options: Options,
        http: AsyncClient,
        now: Callable[[], float],
    ) -> None:
        self.gateway = gateway
        self.scheduled = 0.0
        """The moment at which somebody will look after the gateway."""
        self.counted = gateway.reports
        """Its reports that the fleet knows of."""
        self.touched: Callable[[Uplink], None] = lambda _: None
        """Told when something came for the gateway."""
        self.most_waiting = 10_000
        """Messages that the gateway keeps while its broker is away; the oldest give way, as in a real one."""
        self.terms = Terms(tls=options.tls)
        """How it asks for firmware images."""
        self.published = 0
        self.received = 0
        self.dropped = 0
        self.connections = 0
        self._address = address
        self._options = options
        self._http = http
        self._now = now
        self._waiting: list[Publish] = []
        self._ready = asyncio.Event()
        self._restart = asyncio.Event()
        self._up = asyncio.Event()
        self._crashed = False
        self._tasks: asyncio.TaskGroup | None = None
        self._link: Link | None = None
        self._images: Images | None = None

    @property
    def is_connected(self) -> bool:
        """Whether the broker has it now."""
        return self._link is not None and self._link.trouble is None

    @property
    def trouble(self) -> str:
        """Why it is not connected, if that is so."""
        if self.gateway.is_down:
            return "the gateway is restarting"
        if self._link is None:
            return "not connected yet"
        return str(self._link.trouble or "")

    # What the owner does

    def put(self, messages: list[Publish]) -> None:
        """Publish what the gateway has to say: at once if that is possible, else as soon as it is."""
        if not self._waiting and self._link is not None:
            sent = self._link.post(messages)
            self.published += sent
            if sent == len(messages):
                return
            messages = messages[sent:]
        self._waiting += messages
        if (surplus := len(self._waiting) - self.most_waiting) > 0:
            del self._waiting[:surplus]
            self.dropped += surplus
        self._ready.set()

    def do(self, chore: Chore) -> None:
        """Do what the gateway cannot do itself."""
        match chore:
            case GoDown(crashed):
                self._crashed = crashed
                self._up.clear()
                self._restart.set()
            case ComeUp():
                self._up.set()
            case Fetch(question):
                if self._tasks is None or self._restart.is_set():
                    self.gateway.image_failed(question, Error.NO_IMAGE, self._now())
                else:
                    self._tasks.create_task(self._fetch(question), name=f"image for {self._mac}")

    async def run(
        self,
        turn: AbstractAsyncContextManager[object],
        connected: Callable[[], None],
        begun: asyncio.Event,
    ) -> None:
        """Stay connected for ever. Connecting for the first time waits for its turn, and may fail.

        Once connected, it waits until the world has begun: before, there is no time to answer at.
        """
        async with turn:
            self._link = link = await self._connect(self._options)
        connected()
        try:
            await begun.wait()
        except BaseException:
            await link.abandon()
            raise
        while True:
            await self._serve(link)
            await self._up.wait()
            link = await self._connect(replace(self._options, patient=True))

    # The connection

    @property
    def _mac(self) -> str:
        return self.gateway.settings.mac

    async def _connect(self, options: Options) -> Link:
        settings = self.gateway.settings
        # What waits at the broker is for gateways that serve requests.
        clean = settings.clean_session or settings.disable_subscribe
        link = Link(self._address, self._mac, clean=clean, options=options)
        await link.__aenter__()
        try:
            await self._subscribe(link)
        except BaseException:
            await link.abandon()
            raise
        self.connections += 1
        return link

    async def _subscribe(self, link: Link) -> None:
        settings, topics = self.gateway.settings, self.gateway.topics
        if not settings.disable_subscribe:
            await link.subscribe(topics.requests(settings.mac), topics.broadcasts())

    async def _serve(self, link: Link) -> None:
        """Carry messages both ways until the gateway restarts."""
        self._link = link
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                tasks.create_task(self._publish(link), name=f"reports of {self._mac}")
                tasks.create_task(self._receive(link), name=f"requests to {self._mac}")
                await self._until_restart()
        except* _Restarting:
            if self._crashed:
                self._waiting.clear()
                await link.abandon()
        finally:
            self._link = self._images = self._tasks = None
            self._restart.clear()
            await self._leave(link)
        # A group that ends by an error of its own forgets that somebody cancelled it meanwhile (Python 3.11).
        if (task := asyncio.current_task()) is not None and task.cancelling():
            raise asyncio.CancelledError

    async def _leave(self, link: Link) -> None:
        """Say what is left to say, and good-bye."""
        try:
            with suppress(TimeoutError, LinkClosed):
                async with asyncio.timeout(self._options.patience):
                    await self._drain(link)
            if self._waiting:
                _log.warning(
                    "%s ends a connection with %d messages unpublished", self._mac, len(self._waiting)
                )
            await link.close()
        except Undelivered as undelivered:
            _log.warning("%s: %s", self._mac, undelivered)

    async def _until_restart(self) -> None:
        await self._restart.wait()
        raise _Restarting

    async def _publish(self, link: Link) -> None:
        while True:
            await self._ready.wait()
            self._ready.clear()
            await self._drain(link)

    async def _drain(self, link: Link) -> None:
        """Publish what waits."""
        while self._waiting:
            sent = link.post(self._waiting)
            del self._waiting[:sent]
            self.published += sent
            if not sent:
                await link.ready()

    async def _receive(self, link: Link) -> None:
        answers = answer_topic(self.gateway.settings.mac)
        async for batch in link:
            for message in batch.messages:
                self.received += 1
                if message.topic == answers:
                    self._image_source(link).answer_came(message.payload)
                else:
                    self._take(message)
            batch.acknowledge()
            self.touched(self)

    def _take(self, message: Publish) -> None:
        """Hand a message to the gateway. Whatever it is, it does not stop anything else."""
        payload = None if isinstance(message, Oversized) else message.payload
        try:
            self.gateway.receive(message.topic, payload, self._now())
        except Exception:  # noqa: BLE001 # one gateway of thousands, and one request of many
            _log.exception("%s cannot serve a request, which is a defect of ours", self._mac)

    # Chores

    def _image_source(self, link: Link) -> Images:
        if self._images is None:
            mac = self.gateway.settings.mac
            self._images = Images(self._address, mac, link=link, http=self._http, terms=self.terms)
        return self._images

    async def _fetch(self, question: FirmwareQuestion) -> None:
        assert self._link is not None  # noqa: S101 # fetching ends before the link does
        try:
            image = await self._image_source(self._link).get(question)
        except (ImageUnavailable, LinkClosed) as exc:
            _log.warning("%s cannot get an image: %s", self._mac, exc)
            self.gateway.image_failed(question, Error.NO_IMAGE, self._now())
        except ImageBroken as exc:
            _log.warning("%s gets a broken image: %s", self._mac, exc)
            self.gateway.image_failed(question, Error.BAD_HASH, self._now())
        except Exception:  # noqa: BLE001 # as above
            _log.exception("%s cannot get an image, which is a defect of ours", self._mac)
            self.gateway.image_failed(question, Error.NO_IMAGE, self._now())
        else:
            self.gateway.image_came(question, image, self._now())
        self.touched(self)
