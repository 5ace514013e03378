"""Login to a service, and renewal of access tokens (auth-6 to auth-10).

An access token is valid for half an hour and is exchanged for a new token before it expires. Twelve hours
after the login, the password is needed again. Concurrent calls share one attempt to log in.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import time
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from meshfleet.client.rest.http_messages import HttpRequest, encode_body
from meshfleet.client.rest.problems import decode_error
from meshfleet.errors import FleetError, NotLoggedIn, ServiceRefused, ServiceUnreachable, WrongCredentials
from meshfleet.errors.protocol import MalformedInput, MalformedText
from meshfleet.protocol.decoders import get_decoder
from meshfleet.rest.accounts import TOKEN_LIFETIME, LoggedIn, Login
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.inputs import parse_bearer
from meshfleet.rest.paths import LOGIN_PATH, REFRESH_PATH

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.client.rest.http_messages import HttpResponse
    from meshfleet.client.rest.transport import HttpTransport

_RENEWAL_MARGIN: Final = 1 / 6
"""Remaining fraction of an access token's lifetime at which the token is renewed."""

_RETRY_RENEWAL_SECONDS: Final = 30.0
"""Seconds between a failed attempt to renew an access token and the next attempt."""


class Session(Struct, frozen=True, kw_only=True):
    """Login to a service that a program may store and use later. Keep it secret: the token grants access."""

    url: str
    user: str | None
    """User name; None if only an access token or an API key was given."""
    token: str
    """Access token or API key."""

    def __repr__(self) -> str:
        return f"Session(url={self.url!r}, user={self.user!r}, token=…)"

    def __rich_repr__(self) -> list[tuple[str, str | None]]:
        return [("url", self.url), ("user", self.user)]


class _Token(Struct, frozen=True, kw_only=True):
    """Access token or API key, and the time at which to renew it."""

    text: str
    renew_at: float
    """Time of the monotonic clock, in seconds, at which to renew the token; infinity for an API key."""


class _Claims(Struct, frozen=True):
    """Times in an access token: when it was issued and when it expires (Unix time in seconds)."""

    iat: float
    exp: float


class Credentials:
    """User name and password, or API key, of one account, and its current access token."""

    def __init__(
        self,
        transport: HttpTransport,
        *,
        user: str | None,
        password: str | None,
        token: str | None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._transport = transport
        self.user = user
        self._password = password
        self._now = now
        self._token = None if token is None else _wrap_given_token(token, now())
        self._renewal: asyncio.Task[None] | None = None
        self._login_error: WrongCredentials | None = None

    @property
    def token(self) -> str | None:
        """Current access token or API key; None if not logged in."""
        return None if self._token is None else self._token.text

    @property
    def secrets(self) -> tuple[str, ...]:
        """Password and access token, which must not appear in error messages."""
        return tuple(filter(None, (self._password, self.token)))

    async def get_token(self) -> str:
        """Return a valid access token. Renew a token that expires soon; log in if there is no token."""
        if self._token is None or self._now() >= self._token.renew_at:
            await self.renew()
        if self._token is None:
            raise NotLoggedIn("logged out")
        return self._token.text

    @property
    def seconds_until_renewal(self) -> float:
        """Seconds until the access token must be renewed; infinity without a token or for an API key."""
        return math.inf if self._token is None else max(0.0, self._token.renew_at - self._now())

    async def renew(self) -> None:
        """Get a new access token by renewal or login. Concurrent callers share one attempt."""
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._renew_token(), name="client.login")
            self._renewal.add_done_callback(self._on_renewal_done)
        await asyncio.shield(self._renewal)

    def discard_token(self, rejected: str) -> bool:
        """Discard an access token that the service rejected. Return whether `get_token` can get a new token.

        Without a password, the token is kept and the result is False.
        """
        if self._token is not None and self._token.text == rejected:
            if self._password is None:
                return False
            self._token = None
        return True

    async def wait_for_renewal(self) -> None:
        """Wait until a renewal of the access token that is in progress has ended."""
        if self._renewal is not None:
            await asyncio.wait([self._renewal])

    def clear_token(self) -> None:
        """Discard the access token after a logout."""
        self._token = None

    def change_password(self, password: str) -> None:
        """Use this password for future logins, unless only a token or an API key is used."""
        if self._password is not None:
            self._password = password
            self._login_error = None

    async def close(self) -> None:
        """Cancel a renewal of the access token that is in progress."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])

    def _on_renewal_done(self, renewal: asyncio.Task[None]) -> None:
        self._renewal = None
        if not renewal.cancelled():
            renewal.exception()  # marked as retrieved; waiting callers get it too

    async def _renew_token(self) -> None:
        if self._token is None or not await self._refresh_token(self._token):
            await self._log_in()

    async def _refresh_token(self, current: _Token) -> bool:
        """Exchange an access token for a new token. Return False if the caller must log in instead."""
        request = HttpRequest(method="POST", path=REFRESH_PATH, is_repeatable=True)
        try:
            response = await self._transport.send(request, current.text)
        except ServiceUnreachable:
            response = None
        if self._token is not current:  # logged out or rejected meanwhile: waiting callers may need a login
            return self._password is None
        if response is not None and response.is_success:
            self._token = self._decode_token(response)
        elif response is not None and response.status == NotLoggedIn.http:
            return False
        else:  # still valid for some minutes; the next call raises the error if it persists
            self._token = _Token(text=current.text, renew_at=self._now() + _RETRY_RENEWAL_SECONDS)
        return True

    async def _log_in(self) -> None:
        if self._login_error is not None:  # further attempts would only throttle the account
            raise WrongCredentials(*self._login_error.args)
        if self.user is None or self._password is None:
            expired = "the login has expired, and there is no password to log in again"
            raise NotLoggedIn(
                "a token, or a user and a password, is required" if self._token is None else expired
            )
        body = encode_body(Login(username=self.user, password=self._password))
        request = HttpRequest(method="POST", path=LOGIN_PATH, body=body, is_repeatable=True)
        response = await self._transport.send(request, None)
        if not response.is_success:
            error = decode_error(response, str(self._transport.base_url), self.secrets)
            self._login_error = error if isinstance(error, WrongCredentials) else None
            raise error
        self._token = self._decode_token(response)

    def _decode_token(self, response: HttpResponse) -> _Token:
        try:
            token = check_token(decode_body(LoggedIn, response.body).auth_token)
        except MalformedInput:
            problem: FleetError = ServiceRefused(f"{self._transport.base_url} is not a Meshfleet service")
        else:
            claims = _decode_claims(token)
            lifetime = TOKEN_LIFETIME.total_seconds() if claims is None else claims.exp - claims.iat
            return _Token(text=token, renew_at=self._now() + lifetime * (1 - _RENEWAL_MARGIN))
        raise problem


def check_token(token: str) -> str:
    """Return an access token or API key unchanged. Raise `MalformedText` for invalid characters.

    The error message does not contain the token.
    """
    if parse_bearer(f"Bearer {token}") is None:
        raise MalformedText("token", "has characters that are not valid in an access token or API key")
    return token


def _wrap_given_token(token: str, now: float) -> _Token:
    """Return the token or API key that a program passed, with its time of renewal.

    `now` is the time of the monotonic clock in seconds.
    """
    claims = _decode_claims(check_token(token))
    if claims is None:
        return _Token(text=token, renew_at=math.inf)
    lifetime = claims.exp - claims.iat
    remaining = min(lifetime, claims.exp - time.time())
    return _Token(text=token, renew_at=now + remaining - lifetime * _RENEWAL_MARGIN)


def _decode_claims(token: str) -> _Claims | None:
    """Decode the times in an access token without verifying the token; None for an API key."""
    parts = token.split(".")
    if len(parts) != 3:  # noqa: PLR2004 # header, claims, signature
        return None
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return get_decoder(_Claims).decode(text)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None
