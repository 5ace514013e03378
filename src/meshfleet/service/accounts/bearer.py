"""Authenticates HTTP requests by their bearer credential: an access token or an API key."""

from __future__ import annotations

import secrets
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import jwt
from msgspec import Struct
from msgspec.structs import replace

from meshfleet.errors import NotLoggedIn
from meshfleet.rest.accounts import TOKEN_LIFETIME, ApiKeyKind
from meshfleet.service.accounts import api_key_store, user_store
from meshfleet.service.actor import Actor

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.db import Database


# Access tokens of users: JSON Web Tokens (auth-6, auth-7).

_ALGORITHM: Final = "HS256"
"""Signature algorithm of access tokens; symmetric, because only the service verifies its tokens."""

_AUDIENCE: Final = "meshfleet"
_REQUIRED_CLAIMS: Final = ["aud", "exp", "iat", "jti", "sid", "sub"]

_SKEW_SECONDS: Final = 5
"""Tolerated clock difference between two hosts of one service, in seconds."""


class TokenClaims(Struct, frozen=True, kw_only=True):
    """Claims of an access token whose signature was verified."""

    username: str
    session: str
    expires_at: int
    """Expiry of the access token as Unix time in seconds."""


class TokenSigner:
    """Issues and verifies access tokens. Callers pass Unix times in seconds."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def issue(self, username: str, session: str, now: float) -> str:
        """Return a signed access token for a session."""
        issued_at = int(now)
        claims = {
            "aud": _AUDIENCE,
            "sub": username,
            "sid": session,
            "jti": secrets.token_urlsafe(12),
            "iat": issued_at,
            "exp": issued_at + int(TOKEN_LIFETIME.total_seconds()),
        }
        return jwt.encode(claims, self._secret, algorithm=_ALGORITHM)

    def verify(self, text: str, now: float) -> TokenClaims:
        """Return the claims of an access token. Raise `NotLoggedIn` if the token is invalid or expired."""
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                self._secret,
                algorithms=[_ALGORITHM],
                audience=_AUDIENCE,
                options={"require": _REQUIRED_CLAIMS, "verify_exp": False, "verify_iat": False},
            )
        except jwt.InvalidTokenError:
            raise NotLoggedIn("the access token is invalid or expired") from None
        if not claims["iat"] - _SKEW_SECONDS <= now < claims["exp"]:
            raise NotLoggedIn("the access token has expired; log in again")
        return TokenClaims(username=claims["sub"], session=claims["sid"], expires_at=claims["exp"])


_CACHE_MS: Final = 1000
"""Milliseconds for which an authentication is cached; changes by other processes apply after this time."""

_CACHE_SIZE: Final = 10_000


class Authentication(NamedTuple):
    """Actor of a checked bearer credential, and until when the result of the check may be used."""

    actor: Actor
    checked_at: int
    """Unix time in milliseconds at which the credential was checked in the database."""
    valid_until: int
    """Unix time in milliseconds at which the credential expires or must be checked again."""


class BearerAuthenticator:
    """Checks bearer credentials and caches the results.

    Account changes by this process apply at once (see `invalidate`), changes by other processes within a
    second.
    """

    def __init__(self, database: Database, signer: TokenSigner, now: Callable[[], int]) -> None:
        self._database = database
        self._signer = signer
        self._now = now
        self._cache: OrderedDict[str, Authentication] = OrderedDict()
        self._revision = 0

    async def identify(self, bearer: str, address: str | None) -> Actor:
        """Return the actor of a bearer credential, with `address` as the client address.

        Raise `NotLoggedIn` if the credential is invalid.
        """
        authentication = await self.authenticate(bearer)
        return replace(authentication.actor, address=address)

    async def authenticate(self, bearer: str) -> Authentication:
        """Return the actor of a bearer credential, and until when the result is valid.

        Raise `NotLoggedIn` if the credential is invalid.
        """
        now = self._now()
        found = self._cache.get(bearer)
        if found is None or not 0 <= now - found.checked_at < _CACHE_MS or now >= found.valid_until:
            found = await self._check_uncached(bearer, now)
        return found

    @property
    def revision(self) -> int:
        """Number that increases whenever this process changes an account, session or API key."""
        return self._revision

    def invalidate(self) -> None:
        """Drop all cached authentications after an account, session or API key was changed."""
        self._revision += 1
        self._cache.clear()

    async def _check_uncached(self, bearer: str, now: int) -> Authentication:
        """Check a bearer credential by signature and database, and cache the result."""
        revision = self._revision
        authentication = await (
            self._authenticate_api_key
            if bearer.startswith(api_key_store.API_KEY_PREFIX)
            else self._authenticate_token
        )(bearer, now)
        if revision == self._revision:  # else the result may be older than a change made meanwhile
            self._cache[bearer] = authentication
            if len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
        return authentication

    async def _authenticate_api_key(self, key: str, now: int) -> Authentication:
        holder = await self._database.read(api_key_store.find_api_key_holder, key, now=now)
        if holder is None:
            raise NotLoggedIn("the API key is invalid, expired or revoked")
        if holder.kind is ApiKeyKind.HOMEASSISTANT:
            raise NotLoggedIn("this API key is for Home Assistant, and valid only for MQTT")
        return Authentication(
            holder.actor, now, now + _CACHE_MS if holder.expires_at is None else holder.expires_at
        )

    async def _authenticate_token(self, text: str, now: int) -> Authentication:
        token = self._signer.verify(text, now / 1000)
        session = await self._database.read(user_store.find_session, token.session, now=now)
        if session is None or session.username != token.username:
            raise NotLoggedIn("the session has ended; log in again")
        actor = Actor(name=session.username, role=session.role, kind="user", session=token.session)
        return Authentication(actor, now, token.expires_at * 1000)
