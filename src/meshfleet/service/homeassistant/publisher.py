"""Publishes devices to the broker of Home Assistant, until the settings of the integration change.

The `PublicationPlan` decides what to publish. The publisher sends the messages of the plan at a limited rate,
and passes devices of the registry and values of committed reports to the plan.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
from sqlalchemy.exc import DBAPIError

from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.mqtt import ConnectionLost, SubscriptionRefused
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.protocol.identifiers import BUILTIN_CATALOGUE
from meshfleet.service.homeassistant import fleet
from meshfleet.service.homeassistant.commands import CommandHandler
from meshfleet.service.homeassistant.discovery import DiscoveryOptions
from meshfleet.service.homeassistant.entities import format_event_type
from meshfleet.service.homeassistant.link import collect_retained
from meshfleet.service.homeassistant.plan import OFFLINE, PublicationPlan
from meshfleet.service.homeassistant.state import ShownIdentifiers
from meshfleet.service.homeassistant.topics import IntegrationTopics

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.service.clock import Now
    from meshfleet.service.gateways.traffic import GatewayTraffic
    from meshfleet.service.homeassistant.link import BrokerLink
    from meshfleet.service.homeassistant.state import NewEvent
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.requests.dispatcher import RequestFacade
    from meshfleet.settings.model import HomeAssistantSettings

_log = logging.getLogger(__name__)

_BIRTH: Final = b"online"
_MAX_EVENTS: Final = 100
"""Maximum number of events that wait to be published; if there are more, the oldest are dropped."""
_MAX_EVENT_AGE_MS: Final = 60_000
"""Milliseconds after which an event is not published: Home Assistant would take it for a new event."""
_RATE_SECONDS: Final = 60.0
"""Seconds between two measurements of the report rates of gateways."""
_IDLE_SECONDS: Final = 1.0
"""Maximum seconds that the publishing task sleeps, after which it notices a lost connection."""

_encode = msgspec.json.Encoder().encode


class PublisherTimings(NamedTuple):
    """Intervals of the publisher, in seconds."""

    poll: float = 2.0
    """Interval in which the registry is read."""
    state: float = 1.0
    """Minimum interval between two state messages of a device."""
    jitter: float = 3.0
    """Maximum random delay before everything is published again."""
    birth_interval: float = 30.0
    """Minimum interval in which births of Home Assistant are answered by publishing everything again."""
    step: float = 0.1
    """Interval in which due messages are published."""
    messages_per_step: int = 50
    """Maximum number of due messages per step, except states with new values."""


DEFAULT_TIMINGS: Final = PublisherTimings()


class PublisherSources(NamedTuple):
    """Parts of the service that the publisher reads from, and the one that sends requests to devices."""

    database: Database
    samples: SampleStore
    traffic: GatewayTraffic
    requests: RequestFacade
    url: str
    """URL of the console."""
    now: Now


class Publisher:
    """Publishes devices, values and events to Home Assistant, and carries out commands from there."""

    def __init__(
        self,
        settings: HomeAssistantSettings,
        sources: PublisherSources,
        *,
        timings: PublisherTimings = DEFAULT_TIMINGS,
    ) -> None:
        self.topics = IntegrationTopics(settings.discovery_prefix, settings.topic)
        catalogue = BUILTIN_CATALOGUE
        if settings.table is not None:
            catalogue = catalogue.extended(settings.table.read_text("utf-8-sig"), str(settings.table))
        shown = ShownIdentifiers(catalogue)
        options = DiscoveryOptions(self.topics, sources.url, settings.form)
        self.plan = PublicationPlan(options, shown, with_commands=settings.commands)
        self._settings = settings
        self._sources = sources
        self._timings = timings
        self._filter = fleet.build_filter(settings)
        self._commands = CommandHandler(
            self.plan, shown, self.topics, sources.requests, sources.now, wake=self._wake
        )
        self._changed = asyncio.Event()
        self._events: deque[Publish] = deque(maxlen=_MAX_EVENTS)
        self._republish_at: float | None = None
        """Loop time from which everything is published again, because of a birth; None if nothing is due."""
        self._next_birth_at = 0.0
        """Loop time before which no further birth is answered."""
        self._rates: dict[int, int] = {}
        self._rates_at = 0.0
        self._is_loaded = False
        self._is_too_large = False
        self.failures = 0
        """Number of lost connections, failed reads of the registry, and refused subscriptions."""

    def on_commit(self, batch: ParsedBatch) -> None:
        """Queue the values and events of a committed batch for publication within a second."""
        for device, rows in batch.rows.items():
            for event in self.plan.apply_rows(device, rows):
                self._add_event(device, event, batch.now)
        if self.plan.has_changes or self._events:
            self._wake()

    def _add_event(self, device: int, event: NewEvent, now: int) -> None:
        """Queue an event for publication, unless it is old or its device is not shown."""
        description = self.plan.find_device(device)
        if description is not None and now - event.time < _MAX_EVENT_AGE_MS:
            name = event.definition.name
            payload = _encode({"event_type": format_event_type(name)})
            self._events.append(Publish(self.topics.event(description.mac, name), payload, 1))

    async def run(self, link: BrokerLink) -> None:
        """Publish all messages on each new connection, and then all changes, until canceled.

        At the end publish that the service is offline.
        """
        async with asyncio.TaskGroup() as tasks:
            try:
                tasks.create_task(self._watch_registry(), name="homeassistant.registry")
                while True:
                    await link.wait_connected()
                    number = link.connection_number
                    try:
                        await self._run_connection(link, number)
                    except ConnectionLost:
                        self.failures += 1
            finally:
                await self._commands.close()
                link.publish_last(Publish(self.topics.status, OFFLINE, 1, retain=True))

    async def clear(self, link: BrokerLink) -> None:
        """Delete all published messages from the broker, so that Home Assistant removes the devices."""
        self.plan.remove_all()
        while self.plan.has_queue:
            await link.publish(self.plan.take_queued(self._timings.messages_per_step))
            await asyncio.sleep(self._timings.step)
        await link.publish([Publish(self.topics.status, b"", 1, retain=True)])

    # One connection

    async def _run_connection(self, link: BrokerLink, number: int) -> None:
        """Publish all messages and then changes, until the connection with this number is lost."""
        if not self._is_loaded:
            await self._load(link)
        link.on_message = self._on_message
        filters = self.topics.births + ((self.topics.command_filter,) if self._settings.commands else ())
        for topic_filter in filters:
            await self._subscribe(link, topic_filter)
        await asyncio.sleep(self._choose_delay())
        self._republish_all()
        loop = asyncio.get_running_loop()
        states_at = loop.time()
        while link.connection_number == number:
            is_due = self._republish_at is not None and loop.time() >= self._republish_at
            # If everything is being published already, a birth waits: else the last devices would never be.
            if is_due and not self.plan.has_queue:
                self._republish_all()
            messages = self.plan.take_queued(self._timings.messages_per_step)
            while self._events:
                messages.append(self._events.popleft())
            if loop.time() >= states_at:
                states_at = loop.time() + self._timings.state
                messages += self.plan.take_states()
            if messages:
                await link.publish(messages)
            await self._wait_for_work(states_at)

    async def _load(self, link: BrokerLink) -> None:
        """Record what an earlier process has published, and load the devices with their stored values."""
        refused = await collect_retained(
            link,
            self.topics.published_filters,
            self.topics.sync,
            lambda message: self.plan.record_published(message.topic, message.payload),
        )
        if refused:
            self.failures += 1
            _log.warning(
                "the broker of Home Assistant does not let the service read %s: devices that are removed"
                " while the service is stopped stay in Home Assistant",
                ", ".join(refused),
            )
        while not await self._read_registry():  # noqa: ASYNC110 # the database is polled
            await asyncio.sleep(self._timings.poll)
        self._is_loaded = True

    async def _subscribe(self, link: BrokerLink, topic_filter: str) -> None:
        try:
            await link.subscribe(topic_filter)
        except SubscriptionRefused as exc:
            self.failures += 1
            _log.warning("the broker of Home Assistant refuses a subscription of the service: %s", exc)

    def _on_message(self, message: Publish) -> None:
        if message.topic in self.topics.births:
            if message.payload == _BIRTH:
                self._schedule_republishing()
        elif self._settings.commands:
            self._commands.handle(message)

    def _schedule_republishing(self) -> None:
        """Publish all messages again soon, because of a birth, unless that is due already.

        Everyone who may publish births could otherwise make the service publish without end.
        """
        if self._republish_at is None:
            now = asyncio.get_running_loop().time()
            self._republish_at = max(now + self._choose_delay(), self._next_birth_at)
            self._next_birth_at = self._republish_at + self._timings.birth_interval
            self._wake()

    def _choose_delay(self) -> float:
        """Choose a random delay in seconds, so that several services do not publish everything at once."""
        return random.uniform(0, self._timings.jitter)  # noqa: S311 # jitter, not cryptography

    def _republish_all(self) -> None:
        """Queue all messages again. This also answers all births until now."""
        self._republish_at = None
        self.plan.republish_all()

    def _wake(self) -> None:
        """Wake the publishing task, because there is something to publish."""
        self._changed.set()

    async def _wait_for_work(self, states_at: float) -> None:
        """Wait for the interval `step`, and then until messages are due. `states_at` is a loop time."""
        self._changed.clear()
        await asyncio.sleep(self._timings.step)
        if self.plan.has_queue or self._events:
            return
        now = asyncio.get_running_loop().time()
        times = [each for each in (self._republish_at, states_at if self.plan.has_changes else None) if each]
        try:
            async with asyncio.timeout(max(0.0, min(times) - now) if times else _IDLE_SECONDS):
                await self._changed.wait()
        except TimeoutError:
            pass

    # The registry

    async def _watch_registry(self) -> None:
        """Read the device registry in the interval `poll`, after the first connection has loaded it."""
        while True:
            await asyncio.sleep(self._timings.poll)
            if self._is_loaded:
                await self._read_registry()

    async def _read_registry(self) -> bool:
        """Update the plan from the device registry.

        Return False if the read failed, or if too many devices match and none were loaded before.
        """
        now = self._sources.now()
        try:
            found = await self._sources.database.read(fleet.load_fleet, self._filter, self._settings)
            self._report_size(found)
            if not found.is_complete:
                return self._is_loaded
            devices = self._add_report_rates(found.devices)
            for number in self.plan.update_fleet(devices, now):
                rows = await fleet.load_newest_rows(self._sources.samples, number, now)
                self.plan.add_history(number, rows)
        except (DatabaseUnavailable, DBAPIError) as exc:
            self.failures += 1
            _log.warning("devices could not be read for Home Assistant, will retry: %s", type(exc).__name__)
            return False
        self._wake()
        return True

    def _report_size(self, found: fleet.Fleet) -> None:
        """Log an error when the number of matching devices begins to exceed `homeassistant.max-devices`."""
        if not found.is_complete and not self._is_too_large:
            self.failures += 1
            _log.error(
                "more than %d devices match homeassistant.devices, so changes are not published in Home"
                " Assistant: narrow the filter (such as label=Home), or raise homeassistant.max-devices",
                self._settings.max_devices,
            )
        self._is_too_large = not found.is_complete

    def _add_report_rates(self, devices: dict[int, fleet.FleetDevice]) -> dict[int, fleet.FleetDevice]:
        """Add the reports per minute to all gateways. The rates are measured once a minute."""
        gateways = [number for number, each in devices.items() if each.description.is_gateway]
        now = asyncio.get_running_loop().time()
        if now - self._rates_at >= _RATE_SECONDS or self._rates.keys() != set(gateways):
            self._rates_at = now
            rate = self._sources.traffic.reports_per_minute
            self._rates = {number: round(rate(number)) for number in gateways}
        for number in gateways:
            devices[number] = devices[number].with_report_rate(self._rates[number])
        return devices
