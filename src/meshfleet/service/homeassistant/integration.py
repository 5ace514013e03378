"""Starts and stops the integration with Home Assistant as the settings say (homeassistant-8)."""

from __future__ import annotations

import asyncio
import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from meshfleet.errors import FleetError
from meshfleet.errors.mqtt import ConnectionLost
from meshfleet.service.homeassistant.link import ClientLink, EmbeddedLink, build_will
from meshfleet.service.homeassistant.publisher import DEFAULT_TIMINGS, Publisher
from meshfleet.settings.model import EMBEDDED

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Collection

    from sqlalchemy import Connection

    from meshfleet.mqtt.broker import Broker
    from meshfleet.service.homeassistant.link import BrokerLink
    from meshfleet.service.homeassistant.publisher import PublisherSources, PublisherTimings
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates
    from meshfleet.service.ingest.subscribers import CommitSubscriber, FlushPart
    from meshfleet.settings import Settings
    from meshfleet.settings.model import HomeAssistantSettings

_log = logging.getLogger(__name__)

_CLEAR_SECONDS = 60.0
"""Maximum seconds to remove all published messages from a broker that the settings no longer name."""
_RESTART_SECONDS = 10.0
"""Seconds after an unexpected error until the integration starts again."""


class _NothingToWrite:
    """Part of an ingest flush that stores nothing, as `CommitSubscriber` requires a part."""

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Store nothing: the integration has no data of its own."""

    def on_flushed(self) -> None:
        """Do nothing."""


_NOTHING: FlushPart = _NothingToWrite()


class HomeAssistantIntegration:
    """Runs a publisher while the setting `homeassistant.broker` names a broker.

    The integration subscribes to committed reports when the first publisher starts, and never unsubscribes.
    """

    def __init__(
        self,
        settings: Settings,
        sources: PublisherSources,
        broker: Broker | None,
        *,
        subscribe: Callable[[CommitSubscriber], None],
        timings: PublisherTimings = DEFAULT_TIMINGS,
    ) -> None:
        """Create the integration. `broker` is the embedded broker; None if there is none."""
        self._settings = settings.homeassistant
        self._sources = sources
        self._broker = broker
        self._subscribe = subscribe
        self._timings = timings
        self._publisher: Publisher | None = None
        self._is_subscribed = False
        self._changed = asyncio.Event()
        self._earlier_failures = 0

    @property
    def pending_count(self) -> int:
        """Number of devices with messages that Home Assistant has not got yet."""
        return 0 if self._publisher is None else self._publisher.plan.pending_count

    @property
    def failures(self) -> int:
        """Number of failures since the service started, such as lost connections."""
        return self._earlier_failures + (0 if self._publisher is None else self._publisher.failures)

    def apply_settings(self, settings: Settings) -> None:
        """Restart the integration with other settings soon.

        If they name another broker or other topics, all messages of the former settings are removed first.
        """
        self._settings = settings.homeassistant
        self._changed.set()

    def on_commit(self, batch: ParsedBatch) -> None:
        """Pass the committed reports of a batch to the publisher, if one runs."""
        if self._publisher is not None:
            self._publisher.on_commit(batch)

    def prepare_flush(self, states: PendingStates, now: int) -> FlushPart:  # noqa: ARG002 # as CommitSubscriber
        """Return a flush part that stores nothing."""
        return _NOTHING

    async def run(self) -> None:
        """Run the integration until canceled, always with the newest settings. Restart after errors."""
        while True:
            self._changed.clear()
            settings = self._settings
            if settings.broker is None:
                await self._changed.wait()
                continue
            try:
                await self._run_with(settings)
            except (FleetError, OSError) as exc:
                self._earlier_failures += 1
                _log.error("the integration with Home Assistant has failed, will retry: %s", exc)
                await self._pause()
            except Exception:  # noqa: BLE001 # the service must go on without it
                self._earlier_failures += 1
                _log.exception("the integration with Home Assistant has failed, will retry")
                await self._pause()

    async def _pause(self) -> None:
        """Wait before the next start after an error, but not longer than until other settings are applied."""
        try:
            async with asyncio.timeout(_RESTART_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            pass

    async def _run_with(self, settings: HomeAssistantSettings) -> None:
        """Run a publisher with these settings until other settings are applied.

        Then remove all published messages, unless the other settings name the same broker and topics.
        """
        if not self._is_subscribed:
            self._subscribe(self)
            self._is_subscribed = True
        publisher = self._publisher = await asyncio.to_thread(
            Publisher, settings, self._sources, timings=self._timings
        )
        try:
            async with self._open_link(settings, publisher) as link:
                running = asyncio.create_task(publisher.run(link), name="homeassistant.publisher")
                changing = asyncio.create_task(self._changed.wait())
                try:
                    await asyncio.wait((running, changing), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changing.cancel()
                    if not running.done():
                        running.cancel()
                    await asyncio.wait((running,))
                if not running.cancelled():
                    running.result()  # raises
                if _must_clear(settings, self._settings):
                    await self._clear(publisher, link)
        finally:
            self._earlier_failures += publisher.failures
            self._publisher = None

    async def _clear(self, publisher: Publisher, link: BrokerLink) -> None:
        """Remove all published messages from a broker. Log a warning if the broker is away."""
        try:
            async with asyncio.timeout(_CLEAR_SECONDS):
                await publisher.clear(link)
        except (ConnectionLost, TimeoutError):
            _log.warning(
                "devices could not be removed from Home Assistant, because its broker is away; when it is"
                " back, run: meshfleet homeassistant remove"
            )

    @asynccontextmanager
    async def _open_link(
        self, settings: HomeAssistantSettings, publisher: Publisher
    ) -> AsyncIterator[BrokerLink]:
        """Open the connection to the embedded broker, or to the broker at an address, during the context."""
        if settings.broker == EMBEDDED:
            assert self._broker is not None  # noqa: S101 # the settings are checked
            embedded = EmbeddedLink(self._broker)
            try:
                yield embedded
            finally:
                await embedded.close()
            return
        assert settings.broker is not None  # noqa: S101 # checked by the caller
        client = await asyncio.to_thread(
            ClientLink, settings.broker, settings.broker_ca, will=build_will(publisher.topics)
        )
        async with client.open() as link:
            yield link


def _must_clear(former: HomeAssistantSettings, new: HomeAssistantSettings) -> bool:
    """Return whether new settings name another broker or other topics than the former settings."""
    return (former.broker, former.discovery_prefix, former.topic) != (
        new.broker,
        new.discovery_prefix,
        new.topic,
    )
