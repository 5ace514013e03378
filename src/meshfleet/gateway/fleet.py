"""Emulated gateways in one process: one time for all, and somebody who looks after each when it is due."""

from __future__ import annotations

import asyncio
from heapq import heappop, heappush
from itertools import count
from math import inf
from typing import TYPE_CHECKING, Final

from meshfleet.gateway.session import Session

if TYPE_CHECKING:
    from httpx import AsyncClient

    from meshfleet.gateway.gateway import Gateway
    from meshfleet.gateway.pace import Pace
    from meshfleet.link import Address, Options

_PAUSE: Final = 0.01
"""Seconds between two looks at the clock: what is due in between is published together."""

_AT_ONCE: Final = 100
"""Gateways that connect at the same time: a broker takes only so many."""


class Fleet:
    """Gateways that live at the same moment."""

    def __init__(self, pace: Pace, *, http: AsyncClient, options: Options) -> None:
        self._pace = pace
        self._http = http
        self._options = options
        self._due: list[tuple[float, int, Session]] = []
        self._order = count()
        self._made = 0
        self.sessions: list[Session] = []
        self.is_complete = asyncio.Event()
        """Set when all gateways have connected once; the world begins then."""

    def add(self, gateway: Gateway, address: Address) -> Session:
        """Let a gateway take part; it connects when the fleet runs."""
        session = Session(gateway, address, options=self._options, http=self._http, now=self._pace.moment)
        session.touched = self._look_after
        self.sessions.append(session)
        self._schedule(session)
        return session

    @property
    def reports(self) -> int:
        """Reports made so far."""
        return self._made

    async def run(self) -> None:
        """Run for ever. A gateway that cannot connect at first ends it all, and the error says why."""
        turn = asyncio.Semaphore(_AT_ONCE)
        missing = len(self.sessions)

        def connected() -> None:
            nonlocal missing
            missing -= 1
            if not missing:
                self._pace.begin()
                self.is_complete.set()

        async with asyncio.TaskGroup() as tasks:
            for session in self.sessions:
                mac = session.gateway.settings.mac
                tasks.create_task(session.run(turn, connected, self.is_complete), name=f"gateway {mac}")
            tasks.create_task(self._live(), name="time of the fleet")

    async def _live(self) -> None:
        """Look after whoever is due."""
        await self.is_complete.wait()
        while True:
            self._catch_up()
            await asyncio.sleep(_PAUSE)

    def _catch_up(self) -> None:
        """Live up to now."""
        turn = self._pace.turn(self._due[0][0] if self._due else inf, self._made)
        most = self._made + turn.reports
        while self._due and self._due[0][0] <= turn.until and self._made < most:
            moment, _, session = heappop(self._due)
            if moment == session.scheduled:
                self._pace.lived(moment)
                self._advance(session, moment if turn.until == inf else turn.until)

    def _look_after(self, session: Session) -> None:
        """Something came for a gateway: what it has to say at once is said at once."""
        self._advance(session, self._pace.moment())

    def _advance(self, session: Session, moment: float) -> None:
        gateway = session.gateway
        if messages := gateway.advance(moment):
            session.put(messages)
        self._made += gateway.reports - session.counted
        session.counted = gateway.reports
        if gateway.has_chores:
            for chore in gateway.chores():
                session.do(chore)
        self._schedule(session)

    def _schedule(self, session: Session) -> None:
        session.scheduled = session.gateway.due
        heappush(self._due, (session.scheduled, next(self._order), session))
