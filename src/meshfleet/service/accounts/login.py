"""Login, token refresh, logout and password change of users."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Final
from weakref import WeakValueDictionary

from meshfleet.errors import Conflict, FleetError, NotLoggedIn, TooManyAttempts, WrongCredentials
from meshfleet.errors.protocol import MalformedText
from meshfleet.ip_networks import to_network
from meshfleet.rest.accounts import LoggedIn, NewPassword, Role
from meshfleet.rest.inputs import parse_password, parse_username
from meshfleet.service.accounts import user_store
from meshfleet.service.actor import Actor

if TYPE_CHECKING:
    from meshfleet.db import Database
    from meshfleet.rest.accounts import Login
    from meshfleet.service.accounts.bearer import BearerAuthenticator, TokenSigner
    from meshfleet.service.accounts.passwords import PasswordVerifier
    from meshfleet.service.accounts.throttle import LoginThrottle
    from meshfleet.service.clock import Now
    from meshfleet.service.metrics import Metrics

_MAX_PENDING_CHECKS: Final = 10
"""Maximum concurrent password checks per client network, so that one network does not delay others."""

_MAX_PENDING_CHECKS_AFTER_FAILURES: Final = 1
"""Maximum concurrent password checks of a client network from which logins of many user names failed.

The limit is lower than for other networks, so that password guessing does not occupy all threads.
"""


class Logins:
    """Creates, refreshes and ends the sessions of users, and throttles failed logins."""

    def __init__(  # noqa: PLR0913 # keyword-only collaborators
        self,
        database: Database,
        *,
        verifier: PasswordVerifier,
        throttle: LoginThrottle,
        signer: TokenSigner,
        authenticator: BearerAuthenticator,
        metrics: Metrics,
        now: Now,
        monotonic: Now,
    ) -> None:
        """Create the login service. `now` is the wall clock for tokens, `monotonic` the clock for delays.

        Both return milliseconds.
        """
        self._database = database
        self._verifier = verifier
        self._throttle = throttle
        self._signer = signer
        self._authenticator = authenticator
        self._metrics = metrics
        self._now = now
        self._monotonic = monotonic
        self._pending_checks = Counter[str | None]()
        self._locks: WeakValueDictionary[tuple[str, str | None], asyncio.Lock] = WeakValueDictionary()

    async def log_in(self, login: Login, address: str | None) -> LoggedIn:
        """Check user name and password, create a session, and return its first access token.

        Replace the stored password hash if its cost parameters are outdated. Raise `WrongCredentials` or
        `TooManyAttempts`.
        """
        username = normalize_username(login.username)
        hashed = await self.check_password(username, login.password, address)
        if self._verifier.is_outdated(hashed):
            renewed = await self._verifier.hash(login.password)
            await self._database.write(
                user_store.update_password_hash, username, before=hashed, after=renewed
            )
            hashed = renewed
        actor = Actor(name=username, role=Role.VIEWER, kind="user", address=address)
        session = await self._database.write(
            user_store.insert_session, actor, checked_hash=hashed, now=self._now()
        )
        return self._issue_token(username, session)

    async def refresh(self, actor: Actor) -> LoggedIn:
        """Return a new access token for the actor's session (auth-8, auth-9).

        Raise `NotLoggedIn` if the session has ended or is too old to be refreshed.
        """
        session_id = _require_session(actor)
        session = await self._database.read(user_store.find_session, session_id, now=self._now())
        if session is None or not session.is_refreshable:
            raise NotLoggedIn("the session has ended; log in again")
        return self._issue_token(actor.name, session_id)

    async def log_out(self, actor: Actor) -> None:
        """Delete the actor's session, which invalidates its access tokens at once (auth-10)."""
        await self._database.write(
            user_store.delete_session, _require_session(actor), by=actor, now=self._now()
        )
        self._authenticator.invalidate()

    async def change_password(self, actor: Actor, ask: NewPassword) -> None:
        """Change the actor's own password and end the actor's other sessions (auth-12)."""
        _require_session(actor)
        password = parse_password(ask.password)
        current_hash = await self.check_password(actor.name, ask.current, actor.address)
        hashed = await self._verifier.hash(password)
        await self._database.write(
            user_store.update_own_password, hashed, checked_hash=current_hash, by=actor, now=self._now()
        )
        self._authenticator.invalidate()

    async def check_password(self, username: str, password: str, address: str | None) -> str:
        """Check the password of a user and return the stored hash.

        Raise `WrongCredentials` or `TooManyAttempts`.
        """
        network = None if address is None else to_network(address)
        has_failures = self._throttle.delay_after_failure(network, self._monotonic() / 1000)
        if self._pending_checks[network] >= (
            _MAX_PENDING_CHECKS_AFTER_FAILURES if has_failures else _MAX_PENDING_CHECKS
        ):
            raise TooManyAttempts(1)
        self._pending_checks[network] += 1
        try:
            return await self._check_one_at_a_time(username, password, network)
        finally:
            self._pending_checks[network] -= 1
            if not self._pending_checks[network]:
                del self._pending_checks[network]

    async def _check_one_at_a_time(self, username: str, password: str, network: str | None) -> str:
        """Check a password when no other check for this user name and network is running."""
        # One at a time per name and network, so that parallel correct logins do not count as failures.
        lock = self._locks.setdefault((username, network), asyncio.Lock())
        async with lock:
            decision = self._throttle.count_attempt(username, network, self._monotonic() / 1000)
            if decision.wait:
                self._metrics.count_login("throttled")
                raise TooManyAttempts(decision.wait)
            hashed = await self._verify_password(username, password, network)
        if hashed is None:
            self._metrics.count_login("failed")
            if decision.wait_if_failed:
                raise TooManyAttempts(decision.wait_if_failed)
            raise WrongCredentials("wrong user name or password")
        self._metrics.count_login("succeeded")
        return hashed

    async def _verify_password(self, username: str, password: str, network: str | None) -> str | None:
        """Return the stored password hash of a user if the password matches, else None.

        If the check itself fails, the attempt does not count as a failed login.
        """
        try:
            hashed = await self._database.read(user_store.find_password_hash, username)
            matches = await self._verifier.verify(hashed, password)
        except FleetError:
            self._throttle.withdraw_attempt(username, network)
            raise
        if matches:
            self._throttle.clear_failures(username, network)
        return hashed if matches else None

    def _issue_token(self, username: str, session: str) -> LoggedIn:
        return LoggedIn(auth_token=self._signer.issue(username, session, self._now() / 1000))


def normalize_username(name: str) -> str:
    """Return the normalized user name, or for an invalid name a placeholder that no user can have."""
    try:
        return parse_username(name)
    except MalformedText:
        return f"?{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()}"


def _require_session(actor: Actor) -> str:
    if actor.session is None:
        raise Conflict("an API key has no session and no password; log in as a user")
    return actor.session
