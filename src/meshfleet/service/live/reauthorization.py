"""Repeated authorization checks of connected subscribers (rest-154, rest-155)."""

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
"""Number of bearers that are checked concurrently."""

_POLL_SECONDS: Final = 0.5
"""Seconds between two polls."""

_POLLS_PER_FULL_CHECK: Final = 20
"""Number of polls after which all bearers are checked, whatever happened."""

_FULL_CHECK_MS: Final = 10_000
"""Milliseconds between two checks of all bearers."""

_UNLIMITED_KEY_MS: Final = 1000
"""Milliseconds for which the authenticator trusts an API key without expiry."""

_FULL_CHECKS_AFTER_CHANGE: Final = 3
"""Polls that check all bearers after a change by another process: cached data may be a second old."""

CLOSE_NOT_LOGGED_IN: Final = 4401


class Reauthorizer:
    """Checks that close subscribers with an expired access token, a logged-out user, or a revoked API key."""

    def __init__(self, hub: EventHub, authenticator: BearerAuthenticator, now: Now) -> None:
        self._hub = hub
        self._authenticator = authenticator
        self._now = now
        self._valid_until: dict[str, int] = {}
        """Time of the next check by bearer, in milliseconds."""
        self._revision = authenticator.revision
        self._full_checks_left = 0

    def recheck_all(self) -> None:
        """Check all bearers in the next polls: access may have been revoked, by any process."""
        self._full_checks_left = _FULL_CHECKS_AFTER_CHANGE

    async def check(self, subscriber: LiveSubscriber) -> None:
        """Authenticate a new subscriber, or one with a new token. Raise `NotLoggedIn` if that fails."""
        authentication = await self._authenticator.authenticate(subscriber.bearer)
        self._valid_until[subscriber.bearer] = self._next_check(authentication)

    async def run(self) -> None:
        """Poll until canceled."""
        polls = 0
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            polls += 1
            revision = self._authenticator.revision
            checks_all = (
                revision != self._revision or self._full_checks_left > 0 or polls % _POLLS_PER_FULL_CHECK == 0
            )
            self._revision = revision
            self._full_checks_left = max(0, self._full_checks_left - 1)
            await self.recheck(all_bearers=checks_all)

    async def recheck(self, *, all_bearers: bool) -> None:
        """Check the bearers that are due, or all."""
        now = self._now()
        subscribers_by_bearer: dict[str, list[LiveSubscriber]] = {}
        for subscriber in self._hub.subscribers:
            subscribers_by_bearer.setdefault(subscriber.bearer, []).append(subscriber)
        self._valid_until = {
            bearer: valid_until
            for bearer, valid_until in self._valid_until.items()
            if bearer in subscribers_by_bearer
        }
        due = (
            each
            for each in subscribers_by_bearer.items()
            if all_bearers or now >= self._valid_until.get(each[0], 0)
        )
        while batch := list(islice(due, _CONCURRENT_CHECKS)):
            await asyncio.gather(
                *(self._recheck_bearer(bearer, subscribers) for bearer, subscribers in batch)
            )

    @staticmethod
    def _next_check(authentication: Authentication) -> int:
        """Return the time of the next check. Revoked API keys without expiry are found by `recheck_all`."""
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
            for subscriber in subscribers:
                if subscriber.bearer == bearer:  # it may have sent a new token meanwhile
                    subscriber.close(CloseReason(CLOSE_NOT_LOGGED_IN, exc.code, str(exc)))
        except (FleetError, DBAPIError):
            pass  # unknown for now; expired tokens are detected without the database
