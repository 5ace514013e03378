"""Live events, put together: where they come from, who listens, and how many may."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.errors import TooManyListeners
from meshfleet.service.live.changes import Changes
from meshfleet.service.live.devices import Devices
from meshfleet.service.live.guard import Guard
from meshfleet.service.live.hub import COMMENT, Hub
from meshfleet.service.live.jobs import Jobs
from meshfleet.service.live.reports import Reports

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.accounts.gatekeeper import Gatekeeper
    from meshfleet.service.accounts.model import Actor
    from meshfleet.service.clock import Now
    from meshfleet.service.gateways.traffic import Traffic
    from meshfleet.service.live.listener import Listener

LISTENERS: Final = 1000
OF_ACCOUNT: Final = 100
"""Streams and WebSockets at once: of all, and of one account."""


class Pace(NamedTuple):
    """Seconds after which listeners hear something, or are no longer waited for."""

    comment: float = COMMENT
    """Between two comments of a stream."""
    first_frame: float = 10.0
    """Until a WebSocket has sent its token."""
    look: float = 1.0
    """Between two looks at what others have changed, and at how far updates are."""


PACE: Final = Pace()


class Live:
    """All that tells what happens."""

    def __init__(
        self,
        database: Database,
        gatekeeper: Gatekeeper,
        traffic: Traffic,
        now: Now,
        *,
        pace: Pace = PACE,
    ) -> None:
        self.pace = pace
        self.hub = Hub(now, comment=pace.comment)
        self.devices = Devices(self.hub, database, traffic, now)
        """For whoever changes devices or gateways."""
        self.reports = Reports(self.hub, self.devices)
        """To be led by ingest."""
        self.jobs = Jobs(self.hub, database, now, look=pace.look)
        """For whoever changes jobs."""
        self.guard = Guard(self.hub, gatekeeper, now)
        self._changes = Changes(self.hub, self.devices, self.jobs, self.guard, database, look=pace.look)

    def check_room(self, actor: Actor) -> None:
        """See to it that there is room for another listener."""
        if len(self.hub.listeners) >= LISTENERS:
            raise TooManyListeners(f"there are {LISTENERS} listeners already")
        accounts = Counter(each.account for each in self.hub.listeners)
        if accounts[actor.kind, actor.name] >= OF_ACCOUNT:
            raise TooManyListeners(f"{actor.title} listens {OF_ACCOUNT} times already")

    async def admit(self, listener: Listener) -> None:
        """Let somebody listen who was just let in; `leave` the hub in the end, whatever comes out."""
        self.check_room(listener.actor)
        self.hub.join(listener)
        await self.guard.check(listener)

    async def run(self) -> None:
        """Do all that takes time, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.hub.run(), name="live.hub")
            tasks.create_task(self.devices.run(), name="live.devices")
            tasks.create_task(self.jobs.run(), name="live.jobs")
            tasks.create_task(self.guard.run(), name="live.guard")
            tasks.create_task(self._changes.run(), name="live.changes")

    def end(self) -> None:
        """Let everybody go, at once."""
        self.hub.end()
