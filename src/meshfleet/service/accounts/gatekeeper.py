"""Who somebody is, by the token or key they come with."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.errors import NotLoggedIn
from meshfleet.service.accounts import keys, sessions
from meshfleet.service.accounts.model import Actor

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from meshfleet.service.accounts.tokens import Tokens

_FRESH: Final = 1000
"""Milliseconds for which we believe what we found: so late we notice what another process changes."""

_REMEMBERED: Final = 10_000


class Standing(NamedTuple):
    """Who somebody is."""

    actor: Actor
    at: int
    """When we looked."""
    until: int
    """When we must look again."""


class Gatekeeper:
    """Identifies who asks. What this process changes takes effect at once, see `forget`."""

    def __init__(self, database: Database, tokens: Tokens, now: Callable[[], int]) -> None:
        self._database = database
        self._tokens = tokens
        self._now = now
        self._found: OrderedDict[str, Standing] = OrderedDict()
        self._changes = 0

    async def identify(self, bearer: str, address: str | None) -> Actor:
        """Who comes with this, from there; or NotLoggedIn."""
        standing = await self.standing(bearer)
        return replace(standing.actor, address=address)

    async def standing(self, bearer: str) -> Standing:
        """The same for somebody who stays."""
        now = self._now()
        known = self._found.get(bearer)
        if known is None or not 0 <= now - known.at < _FRESH or now >= known.until:
            known = await self._look_up(bearer, now)
        return known

    @property
    def changes(self) -> int:
        """As long as this stays the same nobody lost or gained anything, in this process."""
        return self._changes

    def forget(self) -> None:
        """Look everybody up anew: somebody has just lost or gained something."""
        self._changes += 1
        self._found.clear()

    async def _look_up(self, bearer: str, now: int) -> Standing:
        changes = self._changes
        found = await (self._program if bearer.startswith(keys.PREFIX) else self._person)(bearer, now)
        if changes == self._changes:  # else what we found may be older than the change
            self._found[bearer] = found
            if len(self._found) > _REMEMBERED:
                self._found.popitem(last=False)
        return found

    async def _program(self, key: str, now: int) -> Standing:
        holder = await self._database.read(keys.find, key, now=now)
        if holder is None:
            raise NotLoggedIn("the API key does not hold")
        return Standing(holder.actor, now, now + _FRESH if holder.expires_at is None else holder.expires_at)

    async def _person(self, text: str, now: int) -> Standing:
        token = self._tokens.read(text, now / 1000)
        session = await self._database.read(sessions.find, token.session, now=now)
        if session is None or session.username != token.username:
            raise NotLoggedIn("the login has ended")
        actor = Actor(name=session.username, role=session.role, kind="user", session=token.session)
        return Standing(actor, now, token.expires_at * 1000)
