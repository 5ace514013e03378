"""The way to a service: HTTP, one question at a time, and again where that does no harm.

Errors carry no cause from here: the exceptions of httpx hold the request, and that our token or password.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final, TypeVar

import httpx

from meshfleet.client.rest.calls import JSON, Answer
from meshfleet.client.rest.problems import error_in
from meshfleet.client.rest.retries import pause_after, pause_after_loss
from meshfleet.errors import LinkClosed, ServiceRefused, ServiceUnreachable, WireError
from meshfleet.link import tls
from meshfleet.wire import rest

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from meshfleet.client.rest.address import Base
    from meshfleet.client.rest.calls import Call
    from meshfleet.errors import FleetError

Reached = TypeVar("Reached")

_AT_ONCE: Final = 50
"""Questions that are under way together; others wait for their turn, for as long as it takes."""

_LARGEST: Final = 64 * 1024 * 1024
"""Bytes of an answer. A page has up to 1000 samples, and a sample may have some KiB."""


class Transport:
    """One service, and the connections to it."""

    def __init__(self, base: Base, *, tls_ca: Path | None, timeout: float) -> None:
        self.base = base
        self._timeout = timeout
        self._turns = asyncio.Semaphore(_AT_ONCE)
        self._http = httpx.AsyncClient(
            verify=_trust(base, tls_ca),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_AT_ONCE),
            follow_redirects=False,
        )

    async def close(self) -> None:
        """End all connections."""
        await self._http.aclose()

    async def ask(self, call: Call, bearer: str | None) -> Answer:
        """Ask, and again after what may pass by itself. Gives any answer, good or bad."""
        return await self._persist(call, lambda: self._ask_once(call, bearer))

    async def open(self, call: Call, bearer: str | None, *, silence: float) -> Answer | Stream:
        """Ask for an answer that comes in pieces; a bad answer comes as a whole.

        `silence` is how many seconds may pass between two pieces.
        """
        return await self._persist(call, lambda: self._open_once(call, bearer, silence))

    async def _persist(self, call: Call, once: Callable[[], Awaitable[Reached]]) -> Reached:
        tries = 1
        while True:
            try:
                answer = await once()
            except ServiceUnreachable as loss:
                pause = pause_after_loss(call, loss, tries)
                if pause is None:
                    raise
            else:
                if not isinstance(answer, Answer) or answer.is_good:
                    return answer
                pause = pause_after(call, answer, error_in(answer, str(self.base)), tries)
                if pause is None:
                    return answer
            await asyncio.sleep(pause)
            tries += 1

    async def _open_once(self, call: Call, bearer: str | None, silence: float) -> Answer | Stream:
        request = self._request(call, bearer, self._timeout, silence)
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._http.send(request, stream=True, auth=None)
                if not response.is_success:
                    return await self._whole(response)
            if _content_type(response) == call.accept:
                return Stream(self.base, response)
            await response.aclose()
            problem: FleetError = ServiceRefused(f"{self.base} does not answer with {call.accept}")
        except TimeoutError:
            problem = _too_slow(self.base)
        except httpx.HTTPError as exc:
            problem = _error(self.base, exc)
        raise problem

    async def _ask_once(self, call: Call, bearer: str | None) -> Answer:
        seconds = self._timeout + call.patience
        request = self._request(call, bearer, seconds, seconds)
        try:
            # As a whole: httpx has only each part of it in mind.
            async with self._turns, asyncio.timeout(seconds):
                return await self._whole(await self._http.send(request, stream=True, auth=None))
        except TimeoutError:
            problem: FleetError = _too_slow(self.base)
        except httpx.HTTPError as exc:
            problem = _error(self.base, exc)
        raise problem

    def _request(self, call: Call, bearer: str | None, seconds: float, silence: float) -> httpx.Request:
        if self._http.is_closed:
            raise LinkClosed("the Fleet is closed: make another one")
        headers = {"Accept": call.accept, "Accept-Encoding": "identity", **dict(call.headers)}
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        if call.body is not None:
            headers["Content-Type"] = JSON
        content: bytes | AsyncIterator[bytes] | None = call.body
        if call.upload is not None:
            headers |= {"Content-Type": call.upload.content_type, "Content-Length": str(call.upload.size)}
            content = call.upload.pieces()
        # Half of the time for the way there, so that there is time for another try.
        timeout = httpx.Timeout(seconds, connect=self._timeout / 2, read=silence, pool=None)
        return self._http.build_request(
            call.method, self._url(call), headers=headers, content=content, timeout=timeout
        )

    def _url(self, call: Call) -> httpx.URL:
        try:
            return self.base.at(call.target)
        except httpx.InvalidURL:
            pass
        raise WireError("request", "is too long for a URL: ask for less at once")

    async def _whole(self, response: httpx.Response) -> Answer:
        stream = Stream(self.base, response)
        body = bytearray()
        try:
            while (piece := await stream.next()) is not None:
                body += piece
                if len(body) > _LARGEST:
                    raise ServiceRefused(f"{self.base} answers with more than {_LARGEST} bytes")
        finally:
            await stream.close()
        return Answer(
            status=response.status_code,
            body=bytes(body),
            content_type=_content_type(response),
            retry_after=rest.parse_retry_after(response.headers.get("Retry-After", "")),
        )


class Stream:
    """An answer that comes in pieces."""

    def __init__(self, base: Base, response: httpx.Response) -> None:
        self._base = base
        self._response = response
        self._pieces = response.aiter_raw()
        self._is_plain = response.headers.get("Content-Encoding", "identity") == "identity"

    async def next(self) -> bytes | None:
        """The next piece; None: that was all."""
        if not self._is_plain:
            raise ServiceRefused(f"{self._base} answers in an encoding that was not asked for")
        try:
            return await anext(self._pieces, None)
        except httpx.HTTPError as exc:
            problem = _error(self._base, exc)
        raise problem

    async def close(self) -> None:
        """Let go, whether all came or not."""
        await self._response.aclose()


def _content_type(response: httpx.Response) -> str:
    return str(response.headers.get("Content-Type", "")).partition(";")[0].strip().lower()


def _error(base: Base, exc: httpx.HTTPError) -> ServiceRefused | ServiceUnreachable:
    match exc:
        case httpx.ConnectTimeout():
            return ServiceUnreachable(f"{base} cannot be reached in time", is_slow=True)
        case httpx.TimeoutException():
            return _too_slow(base)
        case httpx.ConnectError() | httpx.ProxyError():
            return _unreachable(base, exc)
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return ServiceUnreachable(f"the connection to {base} was lost", was_sent=True)
    return ServiceRefused(f"{base} is not a Meshfleet service: it speaks no proper HTTP")


def _too_slow(base: Base) -> ServiceUnreachable:
    return ServiceUnreachable(f"{base} does not answer in time", was_sent=True, is_slow=True)


def _unreachable(base: Base, exc: httpx.HTTPError) -> ServiceRefused | ServiceUnreachable:
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            words = f"shows a certificate that does not hold: {cause.verify_message}"
            return ServiceRefused(f"{base} {words}")
        cause = cause.__cause__ or cause.__context__
    return ServiceUnreachable(f"{base} cannot be reached: {exc}")


def _trust(base: Base, authorities: Path | None) -> ssl.SSLContext:
    if authorities is not None:
        return tls.context(authorities=authorities)
    # Reading all authorities of the world takes a while, and who comes without TLS does not need them.
    return tls.system() if base.is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
