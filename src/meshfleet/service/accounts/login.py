"""Logging in, staying in, and changing one's password."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.errors import Conflict, NotLoggedIn, TooManyAttempts, WrongCredentials
from meshfleet.service.accounts import people, sessions
from meshfleet.service.accounts.model import Actor
from meshfleet.wire.rest import LoggedIn, NewPassword, Role, parse_password

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database
    from meshfleet.service.accounts.gatekeeper import Gatekeeper
    from meshfleet.service.accounts.passwords import Passwords
    from meshfleet.service.accounts.throttle import Throttle
    from meshfleet.service.accounts.tokens import Tokens
    from meshfleet.service.operations.figures import Figures
    from meshfleet.wire.rest import Login


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
        now: Callable[[], int],
    ) -> None:
        self._database = database
        self._passwords = passwords
        self._throttle = throttle
        self._tokens = tokens
        self._gatekeeper = gatekeeper
        self._figures = figures
        self._now = now

    async def log_in(self, login: Login, address: str | None) -> LoggedIn:
        """Let somebody in who knows the password."""
        username = login.username.lower()
        before = await self._check(username, login.password, address)
        if self._passwords.is_outdated(before):
            after = await self._passwords.hash(login.password)
            await self._database.write(people.renew_hash, username, before=before, after=after)
        actor = Actor(name=username, role=Role.VIEWER, kind="user", address=address)
        session = await self._database.write(sessions.begin, actor, now=self._now())
        return self._logged_in(username, session)

    async def refresh(self, actor: Actor) -> LoggedIn:
        """Give another token for the same login, as long as that lasts (auth-8, auth-9)."""
        session = _session(actor)
        found = await self._database.read(sessions.find, session, now=self._now())
        if found is None:
            raise NotLoggedIn("the login has ended")
        return self._logged_in(actor.name, session)

    async def log_out(self, actor: Actor) -> None:
        """End the login; no token of it holds any more (auth-10)."""
        await self._database.write(sessions.end, _session(actor), by=actor, now=self._now())
        self._gatekeeper.forget()

    async def change_password(self, actor: Actor, ask: NewPassword) -> None:
        """Change one's own password; all other logins end (auth-12)."""
        session = _session(actor)
        password = parse_password(ask.password)
        await self._check(actor.name, ask.current, actor.address)
        hashed = await self._passwords.hash(password)
        await self._database.write(
            people.change_password, actor.name, hashed, keep=session, by=actor, now=self._now()
        )
        self._gatekeeper.forget()

    async def _check(self, username: str, password: str, address: str | None) -> str:
        """The stored hash of somebody who knows the password."""
        verdict = self._throttle.attempt(username, address, self._now() / 1000)
        if verdict.wait:
            self._figures.count_login("throttled")
            raise TooManyAttempts(verdict.wait)
        hashed = await self._database.read(people.password_of, username)
        if not await self._passwords.check(hashed, password) or hashed is None:
            self._figures.count_login("failed")
            raise TooManyAttempts(verdict.crowded) if verdict.crowded else _wrong()
        self._throttle.succeeded(username, address)
        self._figures.count_login("succeeded")
        return hashed

    def _logged_in(self, username: str, session: str) -> LoggedIn:
        return LoggedIn(auth_token=self._tokens.write(username, session, self._now() / 1000))


def _wrong() -> WrongCredentials:
    return WrongCredentials("this is not the name and password of a user")


def _session(actor: Actor) -> str:
    if actor.session is None:
        raise Conflict("an API key has no login and no password; only people do")
    return actor.session
