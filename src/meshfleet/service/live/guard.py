"""Whether those who listen still may (rest-154, rest-155)."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import FleetError, NotLoggedIn
from meshfleet.service.live.listener import Ending

if TYPE_CHECKING:
    from meshfleet.service.accounts.gatekeeper import Gatekeeper, Standing
    from meshfleet.service.clock import Now
    from meshfleet.service.live.hub import Hub
    from meshfleet.service.live.listener import Listener

_AT_ONCE: Final = 8
"""Bearers for whom we ask at the same time."""

_LOOK: Final = 0.5
"""Seconds between two looks."""

_ROUND: Final = 20
"""Looks between two times that everybody is asked for, whatever happened."""

_ROUND_MILLIS: Final = 10_000
"""The same in milliseconds."""

_ENDLESS: Final = 1000
"""Milliseconds for which an API key without end is believed in."""

_SUSPICIOUS: Final = 3
"""Looks at which everybody is asked for after a change elsewhere: what we know may be a second old."""

NOT_LOGGED_IN: Final = 4401


class Guard:
    """Looks after everybody who listens: a token ends, people log out, keys are revoked."""

    def __init__(self, hub: Hub, gatekeeper: Gatekeeper, now: Now) -> None:
        self._hub = hub
        self._gatekeeper = gatekeeper
        self._now = now
        self._until: dict[str, int] = {}
        """How long we need not ask for whom, by what they came with."""
        self._changes = gatekeeper.changes
        self._suspicious = 0

    def suspect(self) -> None:
        """Somebody may have lost something, in whatever process."""
        self._suspicious = _SUSPICIOUS

    async def check(self, listener: Listener) -> None:
        """Ask for somebody who has just come, or brings another token; may raise NotLoggedIn."""
        standing = await self._gatekeeper.standing(listener.bearer)
        self._until[listener.bearer] = self._due(standing)

    async def run(self) -> None:
        """Look after them until cancelled."""
        looks = 0
        while True:
            await asyncio.sleep(_LOOK)
            looks += 1
            changes = self._gatekeeper.changes
            everybody = changes != self._changes or self._suspicious > 0 or looks % _ROUND == 0
            self._changes = changes
            self._suspicious = max(0, self._suspicious - 1)
            await self.look(everybody=everybody)

    async def look(self, *, everybody: bool) -> None:
        """Ask for all whose time is over, or for everybody."""
        now = self._now()
        holders: dict[str, list[Listener]] = {}
        for listener in self._hub.listeners:
            holders.setdefault(listener.bearer, []).append(listener)
        self._until = {bearer: until for bearer, until in self._until.items() if bearer in holders}
        due = (each for each in holders.items() if everybody or now >= self._until.get(each[0], 0))
        while some := list(islice(due, _AT_ONCE)):
            await asyncio.gather(*(self._ask(bearer, listeners) for bearer, listeners in some))

    @staticmethod
    def _due(standing: Standing) -> int:
        """When to ask again; of an API key without end we hear by `suspect`, or in the next round."""
        if standing.actor.kind == "api-key" and standing.until - standing.at == _ENDLESS:
            return standing.at + _ROUND_MILLIS
        return standing.until

    async def _ask(self, bearer: str, listeners: list[Listener]) -> None:
        try:
            self._until[bearer] = self._due(await self._gatekeeper.standing(bearer))
        except NotLoggedIn as exc:
            for listener in listeners:
                if listener.bearer == bearer:  # it may have brought another one meanwhile
                    listener.end(Ending(NOT_LOGGED_IN, exc.code, str(exc)))
        except (FleetError, DBAPIError):
            pass  # nobody knows; a token that is over is known by itself, even now
