"""What goes on with reports once they are committed: who is there, what is missing, who wants to know."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from meshfleet.service import clock
from meshfleet.service.acks import store as ledger
from meshfleet.service.acks.acks import Acks
from meshfleet.service.acks.checking import keep_checking
from meshfleet.service.acks.figures import AckFigures
from meshfleet.service.firmware.figures import QuestionFigures
from meshfleet.service.firmware.questions import Questions
from meshfleet.service.gateways import store as gateways
from meshfleet.service.gateways.figures import GatewayFigures
from meshfleet.service.gateways.versions import Versions
from meshfleet.service.inquiry.inquiry import Inquiry
from meshfleet.service.jobs.engine.runner import Runner
from meshfleet.service.presence import store as presences
from meshfleet.service.presence.clocks import Clocks
from meshfleet.service.presence.figures import PresenceFigures
from meshfleet.service.presence.presence import Presence
from meshfleet.service.presence.roll_call import call_roll
from meshfleet.service.requests.asking import Asking
from meshfleet.service.requests.book import Book
from meshfleet.service.requests.dispatch import Dispatch
from meshfleet.service.requests.figures import RequestFigures
from meshfleet.service.requests.gateway_selection import FailedTries
from meshfleet.service.requests.gateway_selector import GatewaySelector
from meshfleet.wire.ids import mac_number, number_mac
from meshfleet.wire.topics import Topics

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.db.samples import SampleStore
    from meshfleet.db.samples.retention import Retention
    from meshfleet.service.api import Api
    from meshfleet.service.ingest.ingest import Ingest
    from meshfleet.service.mqtt.carrier import Carrier
    from meshfleet.service.operations.readiness import Part
    from meshfleet.settings import Settings

_PAUSE: Final = 1.0
"""Seconds between two looks at whether we can hear at all."""


class Following:
    """All that follows ingest, put together."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        database: Database,
        samples: SampleStore,
        settings: Settings,
        *,
        retention: Retention,
        door: Part,
        api: Api,
        ingest: Ingest,
        carrier: Carrier,
        pause: float,
    ) -> None:
        """`pause` is how many seconds pass between two looks at who is there."""
        self._database = database
        self._samples = samples
        self._retention = retention
        self._door = door
        self._carrier = carrier
        self._pause = pause
        self._traffic = api.traffic
        now, clocks = clock.now(), Clocks(lambda gateway: carrier.last_turn(number_mac(gateway)))
        self._presence = Presence(
            clocks,
            by_hearing=settings.outside is not None,
            retention=_millis(settings.retention.connectivity),
            now=now,
        )
        self._presence.audience = api.live.devices
        self._acks = Acks(carrier, prefix=settings.topic_prefix, now=now)
        failures = FailedTries()
        asking = Asking(
            carrier,
            Topics(settings.topic_prefix),
            clock.now,
            version=lambda gateway: self._versions.version(mac_number(gateway)),
            at_once=settings.requests_at_once,
            failures=failures,
            measure=clocks.measure,
        )
        selector = GatewaySelector(
            database, samples, carrier, rollups=api.rollups, failures=failures, now=clock.now
        )
        self._versions = Versions(
            database,
            asking,
            carrier,
            traffic=api.traffic,
            clocks=clocks,
            acks=settings.acks,
            now=clock.now,
            steady=clock.steady,
        )
        ingest.acking = self._versions.acking
        ingest.shifts, ingest.is_proved = clocks.shifts, clocks.is_proved
        self._inquiry = Inquiry(
            database, asking, now=clock.now, steady=clock.steady, select=selector.select_many
        )
        self._book = Book(database, clock.now, retention=_millis(settings.retention.request))
        self._dispatch = Dispatch(
            database,
            asking=asking,
            selector=selector,
            book=self._book,
            now=clock.now,
        )
        self._questions = Questions(database, carrier, api.addresses)
        self._runner = Runner(
            database,
            asking,
            clock.now,
            steady=clock.steady,
            tell=api.live.jobs.changed,
            select=selector.select_many,
        )
        api.bell.hear(self._runner.wake)
        self._window = api.window
        for follower in (self._acks, self._presence, api.traffic, api.live.reports):
            ingest.lead(follower)
        for figures in (
            AckFigures(self._acks),
            PresenceFigures(self._presence),
            GatewayFigures(self._versions),
            RequestFigures(asking, self._dispatch, self._book),
            QuestionFigures(self._questions),
        ):
            api.figures.show(figures)

    async def run(self) -> None:
        """Go on with what was known before, and work until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            roll = call_roll(self._carrier, self._presence, self._come_back)
            checking = keep_checking(self._acks, self._samples, self._retention, clock.now)
            tasks.create_task(roll, name="presence.roll")
            tasks.create_task(self._notice_deafness(), name="presence.deafness")
            tasks.create_task(checking, name="acks.checking")
            tasks.create_task(self._versions.run(pause=self._pause), name="gateways.versions")
            tasks.create_task(self._inquiry.run(), name="inquiry")
            tasks.create_task(self._dispatch.run(), name="requests")
            tasks.create_task(self._questions.run(), name="firmware.questions")
            tasks.create_task(self._runner.run(), name="jobs")
            self._window.open(self._dispatch)

    async def restore(self) -> None:
        """Go on where a program before this one ended."""
        # In threads: there may be a million of them, and nobody else knows them yet.
        await asyncio.to_thread(self._presence.restore, await self._database.read(presences.known))
        await asyncio.to_thread(self._acks.restore, await self._database.read(ledger.ledger))
        self._traffic.modes.restore(await self._database.read(gateways.modes), clock.now())
        await self._versions.restore()
        await self._book.restore()

    async def _notice_deafness(self) -> None:
        """Nobody is silent while no reports can come in (rest-192)."""
        while True:
            if self._door.trouble is not None:
                self._presence.miss_out(clock.now())
            await asyncio.sleep(_PAUSE)

    def _come_back(self, gateway: int) -> None:
        self._acks.come_back(gateway, clock.now())


def _millis(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * 1000
