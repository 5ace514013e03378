"""Live events, put together: where they come from, who listens, and how many may."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import TooManyListeners
from meshfleet.service.live.audit_watcher import AuditWatcher
from meshfleet.service.live.device_events import DeviceEvents
from meshfleet.service.live.hub import COMMENT_SECONDS, EventHub
from meshfleet.service.live.job_events import JobEvents
from meshfleet.service.live.reauthorization import Reauthorizer
from meshfleet.service.live.report_events import ReportEvents

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.accounts.bearer import BearerAuthenticator
    from meshfleet.service.actor import Actor
    from meshfleet.service.clock import Now
    from meshfleet.service.gateways.traffic import GatewayTraffic
    from meshfleet.service.live.subscriber import LiveSubscriber

MAX_SUBSCRIBERS: Final = 1000
MAX_SUBSCRIBERS_PER_ACCOUNT: Final = 100
"""Streams and WebSockets at once: of all, and of one account."""


class LiveTimings(NamedTuple):
    """Seconds after which listeners hear something, or are no longer waited for."""

    comment: float = COMMENT_SECONDS
    """Between two comments of a stream."""
    first_frame: float = 10.0
    """Until a WebSocket has sent its token."""
    poll: float = 1.0
    """Between two looks at what others have changed, and at how far updates are."""


LIVE_TIMINGS: Final = LiveTimings()


class LiveEvents:
    """All that tells what happens."""

    def __init__(
        self,
        database: Database,
        authenticator: BearerAuthenticator,
        traffic: GatewayTraffic,
        now: Now,
        *,
        timings: LiveTimings = LIVE_TIMINGS,
    ) -> None:
        self.timings = timings
        self.hub = EventHub(now, comment=timings.comment)
        self.devices = DeviceEvents(self.hub, database, traffic, now)
        """For whoever changes devices or gateways."""
        self.reports = ReportEvents(self.hub, self.devices)
        """To be led by ingest."""
        self.jobs = JobEvents(self.hub, database, now, poll_interval=timings.poll)
        """For whoever changes jobs."""
        self.reauthorizer = Reauthorizer(self.hub, authenticator, now)
        self._audit_watcher = AuditWatcher(
            self.hub, self.devices, self.jobs, self.reauthorizer, database, poll_interval=timings.poll
        )

    def check_limits(self, actor: Actor) -> None:
        """See to it that there is room for another listener."""
        if len(self.hub.subscribers) >= MAX_SUBSCRIBERS:
            raise TooManyListeners(f"there are {MAX_SUBSCRIBERS} listeners already")
        accounts = Counter(each.account for each in self.hub.subscribers)
        if accounts[actor.kind, actor.name] >= MAX_SUBSCRIBERS_PER_ACCOUNT:
            raise TooManyListeners(
                f"{actor.display_name} listens {MAX_SUBSCRIBERS_PER_ACCOUNT} times already"
            )

    async def add_subscriber(self, subscriber: LiveSubscriber) -> None:
        """Let somebody listen who was just let in; `leave` the hub in the end, whatever comes out."""
        self.check_limits(subscriber.actor)
        self.hub.add(subscriber)
        await self.reauthorizer.check(subscriber)

    async def run(self) -> None:
        """Do all that takes time, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.hub.run(), name="live.hub")
            tasks.create_task(self.devices.run(), name="live.devices")
            tasks.create_task(self.jobs.run(), name="live.jobs")
            tasks.create_task(self.reauthorizer.run(), name="live.guard")
            tasks.create_task(self._audit_watcher.run(), name="live.changes")

    def close(self) -> None:
        """Let everybody go, at once."""
        self.hub.close()
