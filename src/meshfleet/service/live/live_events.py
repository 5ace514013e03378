"""Connects the event hub with all sources of live events, and limits the number of live-event subscribers."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import TooManySubscribers
from meshfleet.service.live.alarm_events import AlarmEvents
from meshfleet.service.live.audit_watcher import AuditWatcher
from meshfleet.service.live.device_events import DeviceEvents
from meshfleet.service.live.hub import COMMENT_SECONDS, EventHub
from meshfleet.service.live.job_events import JobEvents
from meshfleet.service.live.position_events import PositionEvents
from meshfleet.service.live.reauthorization import Reauthorizer
from meshfleet.service.live.report_events import ReportEvents
from meshfleet.service.live.subscriber import LiveSubscriber, SubscriberAccount
from meshfleet.service.live.topology_events import TopologyEvents

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.accounts.bearer import BearerAuthenticator
    from meshfleet.service.actor import Actor
    from meshfleet.service.clock import Now
    from meshfleet.service.gateways.traffic import GatewayTraffic

MAX_SUBSCRIBERS: Final = 1000
"""Maximum number of concurrent live-event subscribers (event streams and WebSockets)."""
MAX_SUBSCRIBERS_PER_ACCOUNT: Final = 100
"""Maximum number of concurrent live-event subscribers of one user or API key."""


class LiveTimings(NamedTuple):
    """Intervals and timeouts of live events, in seconds."""

    comment: float = COMMENT_SECONDS
    """Interval of keep-alive comments in a stream of server-sent events."""
    first_frame: float = 10.0
    """Timeout for the first frame of a WebSocket client, which contains the access token."""
    poll: float = 1.0
    """Interval of polls for changes by other processes, and for the progress of firmware updates."""


LIVE_TIMINGS: Final = LiveTimings()


class LiveEvents:
    """Live events of the service: the event hub, the sources of events, and their background tasks."""

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
        """Publishes devices and gateways that callers have marked as changed."""
        self.reports = ReportEvents(self.hub, self.devices)
        """Publishes reports; the caller must subscribe this object to ingest."""
        self.topology = TopologyEvents(self.hub)
        """Publishes parent changes; the caller must subscribe this object to the parent tracker."""
        self.positions = PositionEvents(self.hub)
        """Publishes positions and changes of zones; the caller must pass this object to the tracker."""
        self.jobs = JobEvents(self.hub, database, now, poll_interval=timings.poll)
        """Publishes jobs and executions that callers have marked as changed."""
        self.alarms = AlarmEvents(self.hub, database, now)
        """Publishes alarms that callers have marked as changed."""
        self.reauthorizer = Reauthorizer(self.hub, authenticator, now)
        self._audit_watcher = AuditWatcher(
            self.hub,
            self.devices,
            self.jobs,
            self.alarms,
            self.reauthorizer,
            database,
            poll_interval=timings.poll,
        )

    def check_limits(self, actor: Actor) -> None:
        """Raise `TooManySubscribers` if `actor` cannot add one more live-event subscriber."""
        if len(self.hub.subscribers) >= MAX_SUBSCRIBERS:
            raise TooManySubscribers(
                f"the service already has {MAX_SUBSCRIBERS} subscribers of live events, the maximum"
            )
        accounts = Counter(each.account for each in self.hub.subscribers)
        if accounts[SubscriberAccount(actor.kind, actor.name)] >= MAX_SUBSCRIBERS_PER_ACCOUNT:
            raise TooManySubscribers(
                f"{actor.display_name} already has {MAX_SUBSCRIBERS_PER_ACCOUNT} subscribers of live events,"
                " the maximum"
            )

    async def add_subscriber(self, subscriber: LiveSubscriber) -> None:
        """Register a live-event subscriber. Raise `TooManySubscribers` or `NotLoggedIn` if that fails.

        The caller must remove the subscriber from the hub at the end, even if this method raises.
        """
        self.check_limits(subscriber.actor)
        self.hub.add(subscriber)
        await self.reauthorizer.check_subscriber(subscriber)

    async def run(self) -> None:
        """Run the background tasks of live events until canceled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.hub.run(), name="live.hub")
            tasks.create_task(self.devices.run(), name="live.devices")
            tasks.create_task(self.jobs.run(), name="live.jobs")
            tasks.create_task(self.alarms.run(), name="live.alarms")
            tasks.create_task(self.reauthorizer.run(), name="live.reauthorization")
            tasks.create_task(self._audit_watcher.run(), name="live.audit")

    def close(self) -> None:
        """Close all live-event subscribers because the service is stopping."""
        self.hub.close()
