"""Logging in, staying in, and changing one's password."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from meshfleet.errors import Conflict, FleetError, NotLoggedIn, TooManyAttempts, WrongCredentials
from meshfleet.errors.protocol import MalformedText
from meshfleet.ip_networks import to_network
from meshfleet.rest import LoggedIn, NewPassword, Role, parse_password, parse_username
from meshfleet.service.accounts import user_store
from meshfleet.service.actor import Actor

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.rest import Login
    from meshfleet.service.accounts.bearer import BearerAuthenticator, TokenSigner
    from meshfleet.service.accounts.passwords import PasswordVerifier
    from meshfleet.service.accounts.throttle import LoginThrottle
    from meshfleet.service.clock import Now
    from meshfleet.service.metrics import Metrics

_MAX_PENDING_CHECKS: Final = 10
"""Checks that one place may have under way, so that it does not keep those of others waiting."""

_MAX_PENDING_CHECKS_AFTER_FAILURES: Final = 1
"""The same for a place where name after name has failed, so that a flood leaves the threads to others."""


class Logins:
    """Where people come in and go."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        database: Database,
        *,
        verifier: PasswordVerifier,
        throttle: LoginThrottle,
        signer: TokenSigner,
        authenticator: BearerAuthenticator,
        metrics: Metrics,
        now: Now,
        steady: Now,
    ) -> None:
        """`now` is the time that tokens and people read; `steady` never jumps, so delays go by it."""
        self._database = database
        self._verifier = verifier
        self._throttle = throttle
        self._signer = signer
        self._authenticator = authenticator
        self._metrics = metrics
        self._now = now
        self._steady = steady
        self._pending_checks = Counter[str | None]()
        self._locks: WeakValueDictionary[tuple[str, str | None], asyncio.Lock] = WeakValueDictionary()

    async def log_in(self, login: Login, address: str | None) -> LoggedIn:
        """Let somebody in who knows the password."""
        username = normalize_username(login.username)
        known = await self.check_password(username, login.password, address)
        if self._verifier.is_outdated(known):
            renewed = await self._verifier.hash(login.password)
            await self._database.write(user_store.update_password_hash, username, before=known, after=renewed)
            known = renewed
        actor = Actor(name=username, role=Role.VIEWER, kind="user", address=address)
        session = await self._database.write(user_store.insert_session, actor, knowing=known, now=self._now())
        return self._issue_token(username, session)

    async def refresh(self, actor: Actor) -> LoggedIn:
        """Give another token for the same login, as long as that lasts (auth-8, auth-9)."""
        session = _require_session(actor)
        found = await self._database.read(user_store.find_session, session, now=self._now())
        if found is None or not found.is_refreshable:
            raise NotLoggedIn("the login has ended")
        return self._issue_token(actor.name, session)

    async def log_out(self, actor: Actor) -> None:
        """End the login; no token of it holds any more (auth-10)."""
        await self._database.write(
            user_store.delete_session, _require_session(actor), by=actor, now=self._now()
        )
        self._authenticator.invalidate()

    async def change_password(self, actor: Actor, ask: NewPassword) -> None:
        """Change one's own password; all other logins end (auth-12)."""
        _require_session(actor)
        password = parse_password(ask.password)
        known = await self.check_password(actor.name, ask.current, actor.address)
        hashed = await self._verifier.hash(password)
        await self._database.write(
            user_store.update_own_password, hashed, knowing=known, by=actor, now=self._now()
        )
        self._authenticator.invalidate()

    async def check_password(self, username: str, password: str, address: str | None) -> str:
        """The stored hash of somebody who knows the password."""
        place = None if address is None else to_network(address)
        has_failures = self._throttle.delay_after_failure(place, self._steady() / 1000)
        if self._pending_checks[place] >= (
            _MAX_PENDING_CHECKS_AFTER_FAILURES if has_failures else _MAX_PENDING_CHECKS
        ):
            raise TooManyAttempts(1)
        self._pending_checks[place] += 1
        try:
            return await self._check_one_at_a_time(username, password, place)
        finally:
            self._pending_checks[place] -= 1
            if not self._pending_checks[place]:
                del self._pending_checks[place]

    async def _check_one_at_a_time(self, username: str, password: str, place: str | None) -> str:
        # One after the other: many that know the password get in, many that do not have few tries.
        turn = self._locks.setdefault((username, place), asyncio.Lock())
        async with turn:
            verdict = self._throttle.count_attempt(username, place, self._steady() / 1000)
            if verdict.wait:
                self._metrics.count_login("throttled")
                raise TooManyAttempts(verdict.wait)
            hashed = await self._verify_password(username, password, place)
        if hashed is None:
            self._metrics.count_login("failed")
            raise TooManyAttempts(verdict.wait_if_failed) if verdict.wait_if_failed else _wrong_credentials()
        self._metrics.count_login("succeeded")
        return hashed

    async def _verify_password(self, username: str, password: str, place: str | None) -> str | None:
        """The stored hash, if this is its password."""
        try:
            hashed = await self._database.read(user_store.find_password_hash, username)
            fits = await self._verifier.verify(hashed, password)
        except FleetError:
            self._throttle.withdraw_attempt(username, place)
            raise
        if fits:
            self._throttle.clear_failures(username, place)
        return hashed if fits else None

    def _issue_token(self, username: str, session: str) -> LoggedIn:
        return LoggedIn(auth_token=self._signer.issue(username, session, self._now() / 1000))


def normalize_username(name: str) -> str:
    """A name that somebody may have; in the place of one that nobody can have, something short."""
    try:
        return parse_username(name)
    except MalformedText:
        return f"?{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _wrong_credentials() -> WrongCredentials:
    return WrongCredentials("this is not the name and password of a user")


def _require_session(actor: Actor) -> str:
    if actor.session is None:
        raise Conflict("an API key has no login and no password; only people do")
    return actor.session
