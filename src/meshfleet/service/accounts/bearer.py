"""Who somebody is, by the token or key they come with."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jwt
from msgspec import Struct
from msgspec.structs import replace

from meshfleet.errors import NotLoggedIn
from meshfleet.rest import TOKEN_LIFETIME
from meshfleet.service.accounts import api_key_store, user_store
from meshfleet.service.actor import Actor

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database


# The tokens that people come with: JSON Web Tokens (auth-6, auth-7).

_ALGORITHM: Final = "HS256"
"""One service writes and checks them, so one secret does; any other algorithm is refused."""

_AUDIENCE: Final = "meshfleet"
_REQUIRED_CLAIMS: Final = ["aud", "exp", "iat", "jti", "sid", "sub"]

_SKEW_SECONDS: Final = 5
"""Seconds by which the clocks of two machines of one service may differ."""


class TokenClaims(Struct, frozen=True, kw_only=True):
    """What a token says."""

    username: str
    session: str
    expires_at: int
    """In seconds."""


class TokenSigner:
    """Writes and reads tokens. Knows no clock: every call brings the time, in seconds."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def issue(self, username: str, session: str, now: float) -> str:
        """A token for a login."""
        issued = int(now)
        claims = {
            "aud": _AUDIENCE,
            "sub": username,
            "sid": session,
            "jti": secrets.token_urlsafe(12),
            "iat": issued,
            "exp": issued + int(TOKEN_LIFETIME.total_seconds()),
        }
        return jwt.encode(claims, self._secret, algorithm=_ALGORITHM)

    def verify(self, text: str, now: float) -> TokenClaims:
        """What a token says, if it is ours and of now; else NotLoggedIn, which tells no secrets."""
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                self._secret,
                algorithms=[_ALGORITHM],
                audience=_AUDIENCE,
                options={"require": _REQUIRED_CLAIMS, "verify_exp": False, "verify_iat": False},
            )
        except jwt.InvalidTokenError:
            raise NotLoggedIn("the token does not hold") from None
        if not claims["iat"] - _SKEW_SECONDS <= now < claims["exp"]:
            raise NotLoggedIn("the token has expired")
        return TokenClaims(username=claims["sub"], session=claims["sid"], expires_at=claims["exp"])


_CACHE_MS: Final = 1000
"""Milliseconds for which we believe what we found: so late we notice what another process changes."""

_CACHE_SIZE: Final = 10_000


class Authentication(NamedTuple):
    """Who somebody is."""

    actor: Actor
    checked_at: int
    """When we looked."""
    valid_until: int
    """When we must look again."""


class BearerAuthenticator:
    """Identifies who asks. What this process changes takes effect at once, see `forget`."""

    def __init__(self, database: Database, signer: TokenSigner, now: Callable[[], int]) -> None:
        self._database = database
        self._signer = signer
        self._now = now
        self._cache: OrderedDict[str, Authentication] = OrderedDict()
        self._revision = 0

    async def identify(self, bearer: str, address: str | None) -> Actor:
        """Who comes with this, from there; or NotLoggedIn."""
        standing = await self.authenticate(bearer)
        return replace(standing.actor, address=address)

    async def authenticate(self, bearer: str) -> Authentication:
        """The same for somebody who stays."""
        now = self._now()
        known = self._cache.get(bearer)
        if known is None or not 0 <= now - known.checked_at < _CACHE_MS or now >= known.valid_until:
            known = await self._look_up(bearer, now)
        return known

    @property
    def revision(self) -> int:
        """As long as this stays the same nobody lost or gained anything, in this process."""
        return self._revision

    def invalidate(self) -> None:
        """Look everybody up anew: somebody has just lost or gained something."""
        self._revision += 1
        self._cache.clear()

    async def _look_up(self, bearer: str, now: int) -> Authentication:
        changes = self._revision
        found = await (
            self._authenticate_api_key
            if bearer.startswith(api_key_store.API_KEY_PREFIX)
            else self._authenticate_token
        )(bearer, now)
        if changes == self._revision:  # else what we found may be older than the change
            self._cache[bearer] = found
            if len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
        return found

    async def _authenticate_api_key(self, key: str, now: int) -> Authentication:
        holder = await self._database.read(api_key_store.find_api_key_holder, key, now=now)
        if holder is None:
            raise NotLoggedIn("the API key does not hold")
        return Authentication(
            holder.actor, now, now + _CACHE_MS if holder.expires_at is None else holder.expires_at
        )

    async def _authenticate_token(self, text: str, now: int) -> Authentication:
        token = self._signer.verify(text, now / 1000)
        session = await self._database.read(user_store.find_session, token.session, now=now)
        if session is None or session.username != token.username:
            raise NotLoggedIn("the login has ended")
        actor = Actor(name=session.username, role=session.role, kind="user", session=token.session)
        return Authentication(actor, now, token.expires_at * 1000)
