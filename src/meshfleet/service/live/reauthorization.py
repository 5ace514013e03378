"""Checks repeatedly whether live-event subscribers are still authorized (rest-154, rest-155)."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import TYPE_CHECKING, Final

from sqlalchemy.exc import DBAPIError

from meshfleet.errors import FleetError, NotLoggedIn
from meshfleet.service.live.subscriber import CloseReason, LiveSubscriber

if TYPE_CHECKING:
    from meshfleet.service.accounts.bearer import Authentication, BearerAuthenticator
    from meshfleet.service.clock import Now
    from meshfleet.service.live.hub import EventHub

_CONCURRENT_CHECKS: Final = 8
"""Number of bearer tokens that are checked concurrently."""

_POLL_SECONDS: Final = 0.5
"""Seconds between two polls; each poll checks the bearer tokens whose check is due."""

_POLLS_PER_FULL_CHECK: Final = 20
"""One of this many polls checks all bearer tokens, even if nothing changed."""

_FULL_CHECK_MS: Final = 10_000
"""Milliseconds between two polls that check all bearer tokens."""

_UNLIMITED_KEY_MS: Final = 1000
"""Milliseconds for which the authenticator caches an API key that never expires."""

_FULL_CHECKS_AFTER_CHANGE: Final = 3
"""Number of polls that check all bearer tokens after a change by another process.

One poll is not enough, because the authenticator caches data for up to a second.
"""

CLOSE_NOT_LOGGED_IN: Final = 4401


class Reauthorizer:
    """Closes live-event subscribers that are no longer authorized.

    That is so when their token expired, their user logged out, or their API key was revoked.
    """

    def __init__(self, hub: EventHub, authenticator: BearerAuthenticator, now: Now) -> None:
        self._hub = hub
        self._authenticator = authenticator
        self._now = now
        self._valid_until: dict[str, int] = {}
        """Unix time in milliseconds of the next check, by bearer token."""
        self._revision = authenticator.revision
        self._full_checks_left = 0

    def recheck_all(self) -> None:
        """Check all bearer tokens in the next polls, because some process may have revoked access."""
        self._full_checks_left = _FULL_CHECKS_AFTER_CHANGE

    async def check_subscriber(self, subscriber: LiveSubscriber) -> None:
        """Authenticate a subscriber that is new or has a new token. Raise `NotLoggedIn` if that fails."""
        authentication = await self._authenticator.authenticate(subscriber.bearer)
        self._valid_until[subscriber.bearer] = self._compute_next_check(authentication)

    async def run(self) -> None:
        """Recheck bearer tokens periodically until canceled."""
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
            await self.recheck_bearers(all_bearers=checks_all)

    async def recheck_bearers(self, *, all_bearers: bool) -> None:
        """Check all bearer tokens, or only those due, and close the subscribers with invalid tokens."""
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
    def _compute_next_check(authentication: Authentication) -> int:
        """Return when to check a bearer token again, as Unix time in milliseconds.

        API keys that never expire are checked every ten seconds; `recheck_all` finds revoked keys earlier.
        """
        if (
            authentication.actor.kind == "api-key"
            and authentication.valid_until - authentication.checked_at == _UNLIMITED_KEY_MS
        ):
            return authentication.checked_at + _FULL_CHECK_MS
        return authentication.valid_until

    async def _recheck_bearer(self, bearer: str, subscribers: list[LiveSubscriber]) -> None:
        """Check a bearer token. If it is invalid, close the subscribers that use it."""
        try:
            self._valid_until[bearer] = self._compute_next_check(
                await self._authenticator.authenticate(bearer)
            )
        except NotLoggedIn as exc:
            for subscriber in subscribers:
                if subscriber.bearer == bearer:  # the client may have sent a new token meanwhile
                    subscriber.close(CloseReason(CLOSE_NOT_LOGGED_IN, exc.code, str(exc)))
        except (FleetError, DBAPIError):
            pass  # checked again later; expired tokens are detected without the database
