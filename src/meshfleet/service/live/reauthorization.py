"""Whether those who listen still may (rest-154, rest-155)."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import FleetError, NotLoggedIn
from meshfleet.service.live.subscriber import CloseReason

if TYPE_CHECKING:
    from meshfleet.service.accounts.bearer import Authentication, BearerAuthenticator
    from meshfleet.service.clock import Now
    from meshfleet.service.live.hub import EventHub
    from meshfleet.service.live.subscriber import LiveSubscriber

_CONCURRENT_CHECKS: Final = 8
"""Bearers for whom we ask at the same time."""

_POLL_SECONDS: Final = 0.5
"""Seconds between two looks."""

_POLLS_PER_FULL_CHECK: Final = 20
"""Looks between two times that everybody is asked for, whatever happened."""

_FULL_CHECK_MS: Final = 10_000
"""The same in milliseconds."""

_UNLIMITED_KEY_MS: Final = 1000
"""Milliseconds for which an API key without end is believed in."""

_FULL_CHECKS_AFTER_CHANGE: Final = 3
"""Looks at which everybody is asked for after a change elsewhere: what we know may be a second old."""

CLOSE_NOT_LOGGED_IN: Final = 4401


class Reauthorizer:
    """Looks after everybody who listens: a token ends, people log out, keys are revoked."""

    def __init__(self, hub: EventHub, authenticator: BearerAuthenticator, now: Now) -> None:
        self._hub = hub
        self._authenticator = authenticator
        self._now = now
        self._valid_until: dict[str, int] = {}
        """How long we need not ask for whom, by what they came with."""
        self._revision = authenticator.revision
        self._full_checks_left = 0

    def recheck_all(self) -> None:
        """Somebody may have lost something, in whatever process."""
        self._full_checks_left = _FULL_CHECKS_AFTER_CHANGE

    async def check(self, subscriber: LiveSubscriber) -> None:
        """Ask for somebody who has just come, or brings another token; may raise NotLoggedIn."""
        standing = await self._authenticator.authenticate(subscriber.bearer)
        self._valid_until[subscriber.bearer] = self._next_check(standing)

    async def run(self) -> None:
        """Look after them until cancelled."""
        looks = 0
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            looks += 1
            changes = self._authenticator.revision
            everybody = (
                changes != self._revision or self._full_checks_left > 0 or looks % _POLLS_PER_FULL_CHECK == 0
            )
            self._revision = changes
            self._full_checks_left = max(0, self._full_checks_left - 1)
            await self.recheck(all_bearers=everybody)

    async def recheck(self, *, all_bearers: bool) -> None:
        """Ask for all whose time is over, or for everybody."""
        now = self._now()
        holders: dict[str, list[LiveSubscriber]] = {}
        for listener in self._hub.subscribers:
            holders.setdefault(listener.bearer, []).append(listener)
        self._valid_until = {
            bearer: until for bearer, until in self._valid_until.items() if bearer in holders
        }
        due = (each for each in holders.items() if all_bearers or now >= self._valid_until.get(each[0], 0))
        while some := list(islice(due, _CONCURRENT_CHECKS)):
            await asyncio.gather(*(self._recheck_bearer(bearer, listeners) for bearer, listeners in some))

    @staticmethod
    def _next_check(authentication: Authentication) -> int:
        """When to ask again; of an API key without end we hear by `suspect`, or in the next round."""
        if (
            authentication.actor.kind == "api-key"
            and authentication.valid_until - authentication.checked_at == _UNLIMITED_KEY_MS
        ):
            return authentication.checked_at + _FULL_CHECK_MS
        return authentication.valid_until

    async def _recheck_bearer(self, bearer: str, subscribers: list[LiveSubscriber]) -> None:
        try:
            self._valid_until[bearer] = self._next_check(await self._authenticator.authenticate(bearer))
        except NotLoggedIn as exc:
            for listener in subscribers:
                if listener.bearer == bearer:  # it may have brought another one meanwhile
                    listener.close(CloseReason(CLOSE_NOT_LOGGED_IN, exc.code, str(exc)))
        except (FleetError, DBAPIError):
            pass  # nobody knows; a token that is over is known by itself, even now
