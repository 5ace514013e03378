"""The way to a service: HTTP, one question at a time, and again where that does no harm.

Errors carry no cause from here: the exceptions of httpx hold the request, and that our token or password.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final, TypeVar

import httpx

from meshfleet import rest, tls
from meshfleet.client.rest.http_messages import JSON_TYPE, HttpResponse
from meshfleet.client.rest.problems import decode_error
from meshfleet.client.rest.retries import decide_retry_after_error, decide_retry_after_loss
from meshfleet.errors import ServiceRefused, ServiceUnreachable
from meshfleet.errors.mqtt import LinkClosed
from meshfleet.errors.protocol import WireError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from meshfleet.client.rest.http_messages import BaseUrl, HttpRequest
    from meshfleet.errors import FleetError


# Bytes that come in pieces, line by line.

_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Bytes; a sample has up to 64 KiB, and a live event not much more."""


class LineSplitter:
    """Cuts a stream into lines. What comes behind the last end of a line is none."""

    def __init__(self, end: bytes) -> None:
        self._end = end
        self._buffer = bytearray()

    def feed(self, piece: bytes) -> Iterator[bytes]:
        """The lines that end in this piece, without their ends."""
        looked_at = max(0, len(self._buffer) - len(self._end) + 1)
        self._buffer += piece
        begin = 0
        while (found := self._buffer.find(self._end, max(begin, looked_at))) >= 0:
            yield bytes(self._buffer[begin:found])
            begin = found + len(self._end)
        del self._buffer[:begin]
        if len(self._buffer) > _MAX_LINE_BYTES:
            raise ServiceRefused("a line of the answer does not end: this is not a Meshfleet service")


ResultT = TypeVar("ResultT")

_MAX_CONCURRENT: Final = 50
"""Questions that are under way together; others wait for their turn, for as long as it takes."""

_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Bytes of an answer. A page has up to 1000 samples, and a sample may have some KiB."""


class HttpTransport:
    """One service, and the connections to it."""

    def __init__(self, base_url: BaseUrl, *, tls_ca: Path | None, timeout: float) -> None:
        self.base_url = base_url
        self._timeout = timeout
        self._slots = asyncio.Semaphore(_MAX_CONCURRENT)
        self._http = httpx.AsyncClient(
            verify=_build_tls_context(base_url, tls_ca),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=_MAX_CONCURRENT),
            follow_redirects=False,
        )

    async def close(self) -> None:
        """End all connections."""
        await self._http.aclose()

    async def send(self, request: HttpRequest, bearer: str | None) -> HttpResponse:
        """Ask, and again after what may pass by itself. Gives any answer, good or bad."""
        return await self._retry(request, lambda: self._send_once(request, bearer))

    async def open_stream(
        self, request: HttpRequest, bearer: str | None, *, idle_timeout: float
    ) -> HttpResponse | ResponseStream:
        """Ask for an answer that comes in pieces; a bad answer comes as a whole.

        `silence` is how many seconds may pass between two pieces.
        """
        return await self._retry(request, lambda: self._open_stream_once(request, bearer, idle_timeout))

    async def _retry(self, request: HttpRequest, attempt: Callable[[], Awaitable[ResultT]]) -> ResultT:
        tries = 1
        while True:
            try:
                answer = await attempt()
            except ServiceUnreachable as loss:
                pause = decide_retry_after_loss(request, loss, tries)
                if pause is None:
                    raise
            else:
                if not isinstance(answer, HttpResponse) or answer.is_success:
                    return answer
                pause = decide_retry_after_error(
                    request, answer, decode_error(answer, str(self.base_url)), tries
                )
                if pause is None:
                    return answer
            await asyncio.sleep(pause)
            tries += 1

    async def _open_stream_once(
        self, call: HttpRequest, bearer: str | None, idle_timeout: float
    ) -> HttpResponse | ResponseStream:
        request = self._build_httpx_request(call, bearer, self._timeout, idle_timeout)
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._http.send(request, stream=True, auth=None)
                if not response.is_success:
                    return await self._read_response(response)
            if _content_type(response) == call.accept:
                return ResponseStream(self.base_url, response)
            await response.aclose()
            problem: FleetError = ServiceRefused(f"{self.base_url} does not answer with {call.accept}")
        except TimeoutError:
            problem = _build_timeout_error(self.base_url)
        except httpx.HTTPError as exc:
            problem = _to_error(self.base_url, exc)
        raise problem

    async def _send_once(self, call: HttpRequest, bearer: str | None) -> HttpResponse:
        seconds = self._timeout + call.extra_timeout
        request = self._build_httpx_request(call, bearer, seconds, seconds)
        try:
            # As a whole: httpx has only each part of it in mind.
            async with self._slots, asyncio.timeout(seconds):
                return await self._read_response(await self._http.send(request, stream=True, auth=None))
        except TimeoutError:
            problem: FleetError = _build_timeout_error(self.base_url)
        except httpx.HTTPError as exc:
            problem = _to_error(self.base_url, exc)
        raise problem

    def _build_httpx_request(
        self, call: HttpRequest, bearer: str | None, seconds: float, idle_timeout: float
    ) -> httpx.Request:
        if self._http.is_closed:
            raise LinkClosed("the Fleet is closed: make another one")
        headers = {"Accept": call.accept, "Accept-Encoding": "identity", **dict(call.headers)}
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        if call.body is not None:
            headers["Content-Type"] = JSON_TYPE
        content: bytes | AsyncIterator[bytes] | None = call.body
        if call.upload is not None:
            headers |= {"Content-Type": call.upload.content_type, "Content-Length": str(call.upload.size)}
            content = call.upload.pieces()
        # Half of the time for the way there, so that there is time for another try.
        timeout = httpx.Timeout(seconds, connect=self._timeout / 2, read=idle_timeout, pool=None)
        return self._http.build_request(
            call.method, self._build_url(call), headers=headers, content=content, timeout=timeout
        )

    def _build_url(self, call: HttpRequest) -> httpx.URL:
        try:
            return self.base_url.join(call.path_with_query)
        except httpx.InvalidURL:
            pass
        raise WireError("request", "is too long for a URL: ask for less at once")

    async def _read_response(self, response: httpx.Response) -> HttpResponse:
        stream = ResponseStream(self.base_url, response)
        body = bytearray()
        try:
            while (piece := await stream.read()) is not None:
                body += piece
                if len(body) > _MAX_BODY_BYTES:
                    raise ServiceRefused(f"{self.base_url} answers with more than {_MAX_BODY_BYTES} bytes")
        finally:
            await stream.close()
        return HttpResponse(
            status=response.status_code,
            body=bytes(body),
            content_type=_content_type(response),
            retry_after=rest.parse_retry_after(response.headers.get("Retry-After", "")),
        )


class ResponseStream:
    """An answer that comes in pieces."""

    def __init__(self, base_url: BaseUrl, response: httpx.Response) -> None:
        self._base_url = base_url
        self._response = response
        self._pieces = response.aiter_raw()
        self._is_plain = response.headers.get("Content-Encoding", "identity") == "identity"

    async def read(self) -> bytes | None:
        """The next piece; None: that was all."""
        if not self._is_plain:
            raise ServiceRefused(f"{self._base_url} answers in an encoding that was not asked for")
        try:
            return await anext(self._pieces, None)
        except httpx.HTTPError as exc:
            problem = _to_error(self._base_url, exc)
        raise problem

    async def close(self) -> None:
        """Let go, whether all came or not."""
        await self._response.aclose()


def _content_type(response: httpx.Response) -> str:
    return str(response.headers.get("Content-Type", "")).partition(";")[0].strip().lower()


def _to_error(base: BaseUrl, exc: httpx.HTTPError) -> ServiceRefused | ServiceUnreachable:
    match exc:
        case httpx.ConnectTimeout():
            return ServiceUnreachable(f"{base} cannot be reached in time", is_timeout=True)
        case httpx.TimeoutException():
            return _build_timeout_error(base)
        case httpx.ConnectError() | httpx.ProxyError():
            return _to_connect_error(base, exc)
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return ServiceUnreachable(f"the connection to {base} was lost", was_sent=True)
    return ServiceRefused(f"{base} is not a Meshfleet service: it speaks no proper HTTP")


def _build_timeout_error(base: BaseUrl) -> ServiceUnreachable:
    return ServiceUnreachable(f"{base} does not answer in time", was_sent=True, is_timeout=True)


def _to_connect_error(base: BaseUrl, exc: httpx.HTTPError) -> ServiceRefused | ServiceUnreachable:
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            words = f"shows a certificate that does not hold: {cause.verify_message}"
            return ServiceRefused(f"{base} {words}")
        cause = cause.__cause__ or cause.__context__
    return ServiceUnreachable(f"{base} cannot be reached: {exc}")


def _build_tls_context(base: BaseUrl, authorities: Path | None) -> ssl.SSLContext:
    if authorities is not None:
        return tls.create_tls_context(authorities=authorities)
    # Reading all authorities of the world takes a while, and who comes without TLS does not need them.
    return tls.system_tls_context() if base.is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
