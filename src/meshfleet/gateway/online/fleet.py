"""Emulated gateways in one process: one time for all, and somebody who looks after each when it is due."""

from __future__ import annotations

import asyncio
import logging
import time
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.online.uplink import Uplink

if TYPE_CHECKING:
    from httpx import AsyncClient

    from meshfleet.gateway.gateway import Gateway
    from meshfleet.gateway.online.pace import Pace
    from meshfleet.link import Address, Options, Publish

_log = logging.getLogger(__name__)

_PAUSE: Final = 0.01
"""Seconds between two looks at the clock: what is due in between is published together."""

_LONGEST: Final = 0.05
"""Seconds that the loop is kept from everything else."""

_AT_ONCE: Final = 100
"""Gateways that connect at the same time: a broker takes only so many."""


class Fleet:
    """Gateways that live at the same moment."""

    def __init__(self, pace: Pace, *, http: AsyncClient, options: Options) -> None:
        self._pace = pace
        self._http = http
        self._options = options
        self._due: list[tuple[float, int, Uplink]] = []
        self._order = count()
        self._made = 0
        self.uplinks: list[Uplink] = []
        self.is_complete = asyncio.Event()
        """Set when all gateways have connected once; the world begins then."""

    def add(self, gateway: Gateway, address: Address) -> Uplink:
        """Let a gateway take part; it connects when the fleet runs."""
        uplink = Uplink(gateway, address, options=self._options, http=self._http, now=self._pace.moment)
        uplink.touched = self._look_after
        self.uplinks.append(uplink)
        self._schedule(uplink)
        return uplink

    @property
    def reports(self) -> int:
        """Reports made so far."""
        return self._made

    async def run(self) -> None:
        """Run for ever. A gateway that cannot connect at first ends it all, and the error says why."""
        turn = asyncio.Semaphore(_AT_ONCE)
        missing = len(self.uplinks)

        def connected() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._pace.begin()
                self.is_complete.set()

        async with asyncio.TaskGroup() as tasks:
            for uplink in self.uplinks:
                mac = uplink.gateway.settings.mac
                tasks.create_task(uplink.run(turn, connected, self.is_complete), name=f"gateway {mac}")
            tasks.create_task(self._live(), name="time of the fleet")

    async def _live(self) -> None:
        """Look after whoever is due."""
        await self.is_complete.wait()
        while True:
            self._catch_up()
            await asyncio.sleep(_PAUSE)

    def _catch_up(self) -> None:
        """Live up to now, or as far as that goes in a short while: others want to live too."""
        turn = self._pace.turn(self._due[0][0] if self._due else inf, self._made)
        most = self._made + turn.reports
        end = time.monotonic() + _LONGEST
        while self._due and self._due[0][0] <= turn.until and self._made < most:
            moment, _, uplink = heappop(self._due)
            if moment == uplink.scheduled:
                self._pace.lived(moment)
                self._advance(uplink, moment)
            if time.monotonic() > end:
                self._pace.fall_behind(moment)
                return

    def _look_after(self, uplink: Uplink) -> None:
        """Something came for a gateway: what it has to say at once is said at once."""
        self._advance(uplink, self._pace.moment())

    def _advance(self, uplink: Uplink, moment: float) -> None:
        gateway = uplink.gateway
        if messages := self._live_up_to(moment, gateway):
            uplink.put(messages)
        self._made += gateway.reports - uplink.counted
        uplink.counted = gateway.reports
        if gateway.has_chores:
            for chore in gateway.chores():
                uplink.do(chore)
        self._schedule(uplink)

    @staticmethod
    def _live_up_to(moment: float, gateway: Gateway) -> list[Publish]:
        try:
            return gateway.advance(moment)
        except Exception:  # noqa: BLE001 # one gateway of thousands
            _log.exception("%s has stumbled, which is a defect of ours", gateway.settings.mac)
            return []

    def _schedule(self, uplink: Uplink) -> None:
        uplink.scheduled = uplink.gateway.due
        heappush(self._due, (uplink.scheduled, next(self._order), uplink))
