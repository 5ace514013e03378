"""Sends HTTP requests to the service, and retries repeatable requests.

Errors have no `__cause__`, because exceptions of httpx contain the request with its token or password.
"""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final, TypeVar

import httpx

from meshfleet import tls
from meshfleet.client.rest.http_messages import JSON_TYPE, HttpResponse
from meshfleet.client.rest.problems import decode_error
from meshfleet.client.rest.retries import decide_retry_after_error, decide_retry_after_loss
from meshfleet.errors import ServiceRefused, ServiceUnreachable
from meshfleet.errors.mqtt import ConnectionClosed
from meshfleet.errors.protocol import MalformedInput
from meshfleet.rest.inputs import parse_retry_after

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from pathlib import Path

    from meshfleet.client.rest.http_messages import BaseUrl, HttpRequest
    from meshfleet.errors import FleetError


# Splits a byte stream into lines.

_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
"""Maximum size of a line in bytes. A sample has up to 64 KiB, and a live event is not much larger."""


class LineSplitter:
    """Splits a byte stream into lines. A last line without a line end is not returned."""

    def __init__(self, end: bytes) -> None:
        self._end = end
        self._buffer = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """Add a chunk of the stream. Return the lines that the chunk completes, without line ends."""
        searched = max(0, len(self._buffer) - len(self._end) + 1)
        self._buffer += chunk
        start = 0
        while (end := self._buffer.find(self._end, max(start, searched))) >= 0:
            yield bytes(self._buffer[start:end])
            start = end + len(self._end)
        del self._buffer[:start]
        if len(self._buffer) > _MAX_LINE_BYTES:
            raise ServiceRefused("a line of the response is too long: this is not a Meshfleet service")


ResultT = TypeVar("ResultT")

_MAX_CONCURRENT: Final = 50
"""Maximum concurrent HTTP requests. Further requests wait; the timeout starts when a request is sent."""

_MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""Maximum size of a response body in bytes. A page has up to 1000 samples of some KiB each."""


class HttpTransport:
    """Sends HTTP requests to one service over a pool of connections."""

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
        """Close all HTTP connections to the service."""
        await self._http.aclose()

    async def send(self, request: HttpRequest, bearer: str | None) -> HttpResponse:
        """Send a request, with retries. Return the response, also if it is an error response."""
        return await self._send_with_retries(request, lambda: self._send_once(request, bearer))

    async def open_stream(
        self, request: HttpRequest, bearer: str | None, *, idle_timeout: float
    ) -> HttpResponse | ResponseStream:
        """Send a request, with retries. Return a stream of the body, or a complete error response.

        `idle_timeout` is the maximum number of seconds between two chunks of the stream.
        """
        return await self._send_with_retries(
            request, lambda: self._open_stream_once(request, bearer, idle_timeout)
        )

    async def _send_with_retries(
        self, request: HttpRequest, attempt: Callable[[], Awaitable[ResultT]]
    ) -> ResultT:
        attempts = 1
        while True:
            try:
                response = await attempt()
            except ServiceUnreachable as loss:
                pause = decide_retry_after_loss(request, loss, attempts)
                if pause is None:
                    raise
            else:
                if not isinstance(response, HttpResponse) or response.is_success:
                    return response
                pause = decide_retry_after_error(
                    request, response, decode_error(response, str(self.base_url)), attempts
                )
                if pause is None:
                    return response
            await asyncio.sleep(pause)
            attempts += 1

    async def _open_stream_once(
        self, call: HttpRequest, bearer: str | None, idle_timeout: float
    ) -> HttpResponse | ResponseStream:
        request = self._build_httpx_request(call, bearer, self._timeout, idle_timeout)
        try:
            async with asyncio.timeout(self._timeout):
                response = await self._http.send(request, stream=True, auth=None)
                if not response.is_success:
                    return await self._read_response(response)
            if _get_content_type(response) == call.accept:
                return ResponseStream(self.base_url, response)
            await response.aclose()
            problem: FleetError = ServiceRefused(f"{self.base_url} does not respond with {call.accept}")
        except TimeoutError:
            problem = _build_timeout_error(self.base_url)
        except httpx.HTTPError as exc:
            problem = _to_error(self.base_url, exc)
        raise problem

    async def _send_once(self, call: HttpRequest, bearer: str | None) -> HttpResponse:
        seconds = self._timeout + call.extra_timeout
        request = self._build_httpx_request(call, bearer, seconds, seconds)
        try:
            # A timeout for request and response together: the timeouts of httpx apply to single steps.
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
            raise ConnectionClosed("the Fleet is closed: create another one")
        headers = {"Accept": call.accept, "Accept-Encoding": "identity", **dict(call.headers)}
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        if call.body is not None:
            headers["Content-Type"] = JSON_TYPE
        content: bytes | AsyncIterator[bytes] | None = call.body
        if call.upload is not None:
            headers |= {"Content-Type": call.upload.content_type, "Content-Length": str(call.upload.size)}
            content = call.upload.chunks()
        # Connecting may take half of the timeout, so that there is time for a second attempt.
        timeout = httpx.Timeout(seconds, connect=self._timeout / 2, read=idle_timeout, pool=None)
        return self._http.build_request(
            call.method, self._build_url(call), headers=headers, content=content, timeout=timeout
        )

    def _build_url(self, call: HttpRequest) -> httpx.URL:
        try:
            return self.base_url.join(call.path_with_query)
        except httpx.InvalidURL:
            pass
        raise MalformedInput("request", "is too long for a URL: use fewer or shorter filters")

    async def _read_response(self, response: httpx.Response) -> HttpResponse:
        stream = ResponseStream(self.base_url, response)
        body = bytearray()
        try:
            while (chunk := await stream.read()) is not None:
                body += chunk
                if len(body) > _MAX_BODY_BYTES:
                    raise ServiceRefused(
                        f"{self.base_url} sent a response of more than {_MAX_BODY_BYTES} bytes"
                    )
        finally:
            await stream.close()
        return HttpResponse(
            status=response.status_code,
            body=bytes(body),
            content_type=_get_content_type(response),
            retry_after=parse_retry_after(response.headers.get("Retry-After", "")),
        )


class ResponseStream:
    """Body of an HTTP response that is read in chunks."""

    def __init__(self, base_url: BaseUrl, response: httpx.Response) -> None:
        self._base_url = base_url
        self._response = response
        self._chunks = response.aiter_raw()
        self._is_plain = response.headers.get("Content-Encoding", "identity") == "identity"

    async def read(self) -> bytes | None:
        """Return the next chunk of the response body; None at the end."""
        if not self._is_plain:
            raise ServiceRefused(f"{self._base_url} sent a response in an encoding that was not requested")
        try:
            return await anext(self._chunks, None)
        except httpx.HTTPError as exc:
            problem = _to_error(self._base_url, exc)
        raise problem

    async def close(self) -> None:
        """Close the response, even if it was not read to the end."""
        await self._response.aclose()


def _get_content_type(response: httpx.Response) -> str:
    return str(response.headers.get("Content-Type", "")).partition(";")[0].strip().lower()


def _to_error(base: BaseUrl, exc: httpx.HTTPError) -> ServiceRefused | ServiceUnreachable:
    """Convert an exception of httpx to an error of the SDK, without the request and its secrets."""
    match exc:
        case httpx.ConnectTimeout():
            return ServiceUnreachable(f"{base} cannot be reached in time", is_timeout=True)
        case httpx.TimeoutException():
            return _build_timeout_error(base)
        case httpx.ConnectError() | httpx.ProxyError():
            return _to_connect_error(base, exc)
        case httpx.NetworkError() | httpx.RemoteProtocolError():
            return ServiceUnreachable(f"the connection to {base} was lost", was_sent=True)
    return ServiceRefused(f"{base} is not a Meshfleet service: it sent invalid HTTP")


def _build_timeout_error(base: BaseUrl) -> ServiceUnreachable:
    return ServiceUnreachable(f"{base} does not respond in time", was_sent=True, is_timeout=True)


def _to_connect_error(base: BaseUrl, exc: httpx.HTTPError) -> ServiceRefused | ServiceUnreachable:
    cause: BaseException | None = exc
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            reason = f"has a certificate that cannot be verified: {cause.verify_message}"
            return ServiceRefused(f"{base} {reason}")
        cause = cause.__cause__ or cause.__context__
    return ServiceUnreachable(f"{base} cannot be reached: {exc}")


def _build_tls_context(base: BaseUrl, authorities: Path | None) -> ssl.SSLContext:
    if authorities is not None:
        return tls.create_tls_context(authorities=authorities)
    # Loading the CA certificates of the system takes a while, and plain HTTP does not need them.
    return tls.system_tls_context() if base.is_secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
