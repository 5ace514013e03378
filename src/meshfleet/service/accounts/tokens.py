"""The tokens that people come with: JSON Web Tokens (auth-6, auth-7)."""

from __future__ import annotations

import secrets
from typing import Any, Final

import jwt
from msgspec import Struct

from meshfleet.errors import NotLoggedIn
from meshfleet.wire.rest import TOKEN_LIFETIME

_ALGORITHM: Final = "HS256"
"""One service writes and checks them, so one secret does; any other algorithm is refused."""

_AUDIENCE: Final = "meshfleet"
_CLAIMS: Final = ["aud", "exp", "iat", "jti", "sid", "sub"]

_SKEW: Final = 5
"""Seconds by which the clocks of two machines of one service may differ."""


class Token(Struct, frozen=True, kw_only=True):
    """What a token says."""

    username: str
    session: str
    expires_at: int
    """In seconds."""


class Tokens:
    """Writes and reads tokens. Knows no clock: every call brings the time, in seconds."""

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def write(self, username: str, session: str, now: float) -> str:
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

    def read(self, text: str, now: float) -> Token:
        """What a token says, if it is ours and of now; else NotLoggedIn, which tells no secrets."""
        try:
            claims: dict[str, Any] = jwt.decode(
                text,
                self._secret,
                algorithms=[_ALGORITHM],
                audience=_AUDIENCE,
                options={"require": _CLAIMS, "verify_exp": False, "verify_iat": False},
            )
        except jwt.InvalidTokenError:
            raise NotLoggedIn("the token does not hold") from None
        if not claims["iat"] - _SKEW <= now < claims["exp"]:
            raise NotLoggedIn("the token has expired")
        return Token(username=claims["sub"], session=claims["sid"], expires_at=claims["exp"])
