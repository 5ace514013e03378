"""Logging in, staying in, and changing one's password."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from meshfleet.errors import (
    Conflict,
    FleetError,
    MalformedText,
    NotLoggedIn,
    TooManyAttempts,
    WrongCredentials,
)
from meshfleet.link.networks import network_of
from meshfleet.service.accounts import people, sessions
from meshfleet.service.accounts.model import Actor
from meshfleet.wire.rest import LoggedIn, NewPassword, Role, parse_password, parse_username

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.service.accounts.gatekeeper import Gatekeeper
    from meshfleet.service.accounts.passwords import Passwords
    from meshfleet.service.accounts.throttle import Throttle
    from meshfleet.service.accounts.tokens import Tokens
    from meshfleet.service.clock import Now
    from meshfleet.service.operations.figures import Figures
    from meshfleet.wire.rest import Login

_WAITING: Final = 10
"""Checks that one place may have under way, so that it does not keep those of others waiting."""

_WAITING_AFTER_FAILURES: Final = 1
"""The same for a place where name after name has failed, so that a flood leaves the threads to others."""


class Reception:
    """Where people come in and go."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        database: Database,
        *,
        passwords: Passwords,
        throttle: Throttle,
        tokens: Tokens,
        gatekeeper: Gatekeeper,
        figures: Figures,
        now: Now,
        steady: Now,
    ) -> None:
        """`now` is the time that tokens and people read; `steady` never jumps, so delays go by it."""
        self._database = database
        self._passwords = passwords
        self._throttle = throttle
        self._tokens = tokens
        self._gatekeeper = gatekeeper
        self._figures = figures
        self._now = now
        self._steady = steady
        self._waiting = Counter[str | None]()
        self._turns: WeakValueDictionary[tuple[str, str | None], asyncio.Lock] = WeakValueDictionary()

    async def log_in(self, login: Login, address: str | None) -> LoggedIn:
        """Let somebody in who knows the password."""
        username = possible_name(login.username)
        known = await self.check_password(username, login.password, address)
        if self._passwords.is_outdated(known):
            renewed = await self._passwords.hash(login.password)
            await self._database.write(people.renew_hash, username, before=known, after=renewed)
            known = renewed
        actor = Actor(name=username, role=Role.VIEWER, kind="user", address=address)
        session = await self._database.write(sessions.begin, actor, knowing=known, now=self._now())
        return self._logged_in(username, session)

    async def refresh(self, actor: Actor) -> LoggedIn:
        """Give another token for the same login, as long as that lasts (auth-8, auth-9)."""
        session = _session(actor)
        found = await self._database.read(sessions.find, session, now=self._now())
        if found is None or not found.is_refreshable:
            raise NotLoggedIn("the login has ended")
        return self._logged_in(actor.name, session)

    async def log_out(self, actor: Actor) -> None:
        """End the login; no token of it holds any more (auth-10)."""
        await self._database.write(sessions.end, _session(actor), by=actor, now=self._now())
        self._gatekeeper.forget()

    async def change_password(self, actor: Actor, ask: NewPassword) -> None:
        """Change one's own password; all other logins end (auth-12)."""
        _session(actor)
        password = parse_password(ask.password)
        known = await self.check_password(actor.name, ask.current, actor.address)
        hashed = await self._passwords.hash(password)
        await self._database.write(
            people.change_own_password, hashed, knowing=known, by=actor, now=self._now()
        )
        self._gatekeeper.forget()

    async def check_password(self, username: str, password: str, address: str | None) -> str:
        """The stored hash of somebody who knows the password."""
        place = None if address is None else network_of(address)
        has_failures = self._throttle.wait_after_failures(place, self._steady() / 1000)
        if self._waiting[place] >= (_WAITING_AFTER_FAILURES if has_failures else _WAITING):
            raise TooManyAttempts(1)
        self._waiting[place] += 1
        try:
            return await self._check_in_turn(username, password, place)
        finally:
            self._waiting[place] -= 1
            if not self._waiting[place]:
                del self._waiting[place]

    async def _check_in_turn(self, username: str, password: str, place: str | None) -> str:
        # One after the other: many that know the password get in, many that do not have few tries.
        turn = self._turns.setdefault((username, place), asyncio.Lock())
        async with turn:
            verdict = self._throttle.attempt(username, place, self._steady() / 1000)
            if verdict.wait:
                self._figures.count_login("throttled")
                raise TooManyAttempts(verdict.wait)
            hashed = await self._look_at(username, password, place)
        if hashed is None:
            self._figures.count_login("failed")
            raise TooManyAttempts(verdict.wait_if_failed) if verdict.wait_if_failed else _wrong()
        self._figures.count_login("succeeded")
        return hashed

    async def _look_at(self, username: str, password: str, place: str | None) -> str | None:
        """The stored hash, if this is its password."""
        try:
            hashed = await self._database.read(people.password_of, username)
            fits = await self._passwords.check(hashed, password)
        except FleetError:
            self._throttle.withdraw(username, place)
            raise
        if fits:
            self._throttle.succeeded(username, place)
        return hashed if fits else None

    def _logged_in(self, username: str, session: str) -> LoggedIn:
        return LoggedIn(auth_token=self._tokens.write(username, session, self._now() / 1000))


def possible_name(name: str) -> str:
    """A name that somebody may have; in the place of one that nobody can have, something short."""
    try:
        return parse_username(name)
    except MalformedText:
        return f"?{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _wrong() -> WrongCredentials:
    return WrongCredentials("this is not the name and password of a user")


def _session(actor: Actor) -> str:
    if actor.session is None:
        raise Conflict("an API key has no login and no password; only people do")
    return actor.session
