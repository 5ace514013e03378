"""Logging in and staying in (auth-6 to auth-10).

A token lives half an hour, and is traded for a new one before that; twelve hours after the login only the
password helps. All who ask share one login, and one attempt at it.
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

from meshfleet import rest
from meshfleet.client.rest.http_messages import HttpRequest, encode_body
from meshfleet.client.rest.problems import decode_error
from meshfleet.errors import FleetError, NotLoggedIn, ServiceRefused, ServiceUnreachable, WrongCredentials
from meshfleet.errors.protocol import MalformedText, WireError
from meshfleet.protocol.decoders import get_decoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from meshfleet.client.rest.http_messages import HttpResponse
    from meshfleet.client.rest.transport import HttpTransport

_RENEWAL_MARGIN: Final = 1 / 6
"""Of the life of a token: so much is left when it is renewed."""

_RETRY_RENEWAL_SECONDS: Final = 30.0
"""Seconds until the next try to renew a token that still holds."""


class Session(Struct, frozen=True, kw_only=True):
    """A login that a program may keep, and go on with later. Who has it is logged in."""

    url: str
    user: str | None
    token: str

    def __repr__(self) -> str:
        return f"Session(url={self.url!r}, user={self.user!r}, token=…)"

    def __rich_repr__(self) -> list[tuple[str, str | None]]:
        return [("url", self.url), ("user", self.user)]


class _Token(Struct, frozen=True, kw_only=True):
    text: str
    renew_at: float
    """By the clock that never goes back; infinity for an API key."""


class _Claims(Struct, frozen=True):
    """What of a token is of use to who bears it."""

    iat: float
    exp: float


class Credentials:
    """Who we are to a service, and the token that proves it. Shows neither."""

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
        """The token that we would come with; None: we are not logged in."""
        return None if self._token is None else self._token.text

    @property
    def secrets(self) -> tuple[str, ...]:
        """What no error may repeat."""
        return tuple(filter(None, (self._password, self.token)))

    async def get_token(self) -> str:
        """A token that holds, as far as we know: the one that we have, or a new one."""
        if self._token is None or self._now() >= self._token.renew_at:
            await self.renew()
        if self._token is None:
            raise NotLoggedIn("logged out")
        return self._token.text

    @property
    def seconds_until_renewal(self) -> float:
        """Seconds until there should be another token."""
        return math.inf if self._token is None else max(0.0, self._token.renew_at - self._now())

    async def renew(self) -> None:
        """Get a new token; who comes while that is under way waits for the same one."""
        if self._renewal is None:
            self._renewal = asyncio.create_task(self._get_token(), name="client.login")
            self._renewal.add_done_callback(self._end_renewal)
        await asyncio.shield(self._renewal)

    def discard_token(self, refused: str) -> bool:
        """Let go of a token that the service does not take; False: there is no way to get another."""
        if self._token is not None and self._token.text == refused:
            if self._password is None:
                return False
            self._token = None
        return True

    async def wait_for_renewal(self) -> None:
        """Wait for a new token that is on its way, if there is one."""
        if self._renewal is not None:
            await asyncio.wait([self._renewal])

    def clear_token(self) -> None:
        """Be logged out."""
        self._token = None

    def change_password(self, password: str) -> None:
        """Log in with this one from now on."""
        if self._password is not None:
            self._password = password
            self._login_error = None

    async def close(self) -> None:
        """Stop logging in."""
        if self._renewal is not None:
            self._renewal.cancel()
            await asyncio.wait([self._renewal])

    def _end_renewal(self, renewal: asyncio.Task[None]) -> None:
        self._renewal = None
        if not renewal.cancelled():
            renewal.exception()  # told to those who wait, if there still are any

    async def _get_token(self) -> None:
        if self._token is None or not await self._refresh(self._token):
            await self._log_in()

    async def _refresh(self, known: _Token) -> bool:
        """Trade a token for a new one; False: it does not hold any more."""
        call = HttpRequest(method="POST", path=rest.REFRESH_PATH, is_repeatable=True)
        try:
            answer = await self._transport.send(call, known.text)
        except ServiceUnreachable:
            answer = None
        if self._token is not known:  # logged out or refused meanwhile: who waits may need another
            return self._password is None
        if answer is not None and answer.is_success:
            self._token = self._decode_token(answer)
        elif answer is not None and answer.status == NotLoggedIn.http:
            return False
        else:  # it may hold for some more minutes, and who asks next sees what is wrong
            self._token = _Token(text=known.text, renew_at=self._now() + _RETRY_RENEWAL_SECONDS)
        return True

    async def _log_in(self) -> None:
        if self._login_error is not None:  # the next attempts would only lock the account
            raise WrongCredentials(*self._login_error.args)
        if self.user is None or self._password is None:
            ended = "the login has ended, and there is no password to log in again"
            raise NotLoggedIn(
                "this needs a token, or a user and a password" if self._token is None else ended
            )
        body = encode_body(rest.Login(username=self.user, password=self._password))
        call = HttpRequest(method="POST", path=rest.LOGIN_PATH, body=body, is_repeatable=True)
        answer = await self._transport.send(call, None)
        if not answer.is_success:
            error = decode_error(answer, str(self._transport.base_url), self.secrets)
            self._login_error = error if isinstance(error, WrongCredentials) else None
            raise error
        self._token = self._decode_token(answer)

    def _decode_token(self, response: HttpResponse) -> _Token:
        try:
            token = check_token(rest.decode_body(rest.LoggedIn, response.body).auth_token)
        except WireError:
            problem: FleetError = ServiceRefused(f"{self._transport.base_url} is not a Meshfleet service")
        else:
            claims = _decode_claims(token)
            life = rest.TOKEN_LIFETIME.total_seconds() if claims is None else claims.exp - claims.iat
            return _Token(text=token, renew_at=self._now() + life * (1 - _RENEWAL_MARGIN))
        raise problem


def check_token(token: str) -> str:
    """A token or an API key that can be one; what is wrong with it is told without it."""
    if rest.parse_bearer(f"Bearer {token}") is None:
        raise MalformedText("token", "has characters that no token and no API key has")
    return token


def _wrap_given_token(token: str, now: float) -> _Token:
    """A token from somebody's hand, of which only its own words tell how old it is."""
    claims = _decode_claims(check_token(token))
    if claims is None:
        return _Token(text=token, renew_at=math.inf)
    life = claims.exp - claims.iat
    left = min(life, claims.exp - time.time())
    return _Token(text=token, renew_at=now + left - life * _RENEWAL_MARGIN)


def _decode_claims(token: str) -> _Claims | None:
    """What a token says of itself, which only the service can check; None: it is an API key."""
    parts = token.split(".")
    if len(parts) != 3:  # noqa: PLR2004 # head, claims, signature
        return None
    try:
        text = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return get_decoder(_Claims).decode(text)
    except (binascii.Error, ValueError, msgspec.DecodeError):
        return None
