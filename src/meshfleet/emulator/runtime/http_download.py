"""Downloads a firmware image over HTTP. The URL comes from another system and may be signed.

Only scheme and host of a URL are logged or quoted in errors: the rest may be as sensitive as a password.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import httpx

from meshfleet.errors.emulator import ImageBroken, ImageUnavailable

if TYPE_CHECKING:
    from httpx import AsyncClient, Request, Response

_MAX_REDIRECTS: Final = 3

_HEADERS: Final = {"Accept": "*/*", "Accept-Encoding": "identity"}
"""HTTP headers of an image request; they ask for uncompressed bytes, to which size and hash refer."""


class _UrlRedactionFilter(logging.Filter):
    """Reduces URLs in log lines of httpx to scheme and host, because httpx logs each URL with its query."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(redact_url(arg) if isinstance(arg, httpx.URL) else arg for arg in record.args)
        return True


logging.getLogger("httpx").addFilter(_UrlRedactionFilter())
# At debug level httpcore logs headers, which include redirect targets.
logging.getLogger("httpcore").setLevel(logging.INFO)


def redact_url(url: httpx.URL) -> str:
    """Return the part of a URL that may be logged: scheme and host."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


async def download_image(
    http: AsyncClient, uri: str, *, max_bytes: int, idle_timeout: float, total_timeout: float
) -> bytes:
    """Download the firmware image at a URL. Raise `ImageBroken` if it has more than `max_bytes` bytes.

    Wait at most `idle_timeout` seconds for each chunk and `total_timeout` seconds in all. Raise
    `ImageUnavailable` if the download fails.
    """
    # No timeout for the pool: thousands of gateways may share a client and wait for a connection.
    timeout = httpx.Timeout(idle_timeout, pool=None)
    try:
        async with asyncio.timeout(total_timeout):
            request = http.build_request("GET", uri, headers=_HEADERS, timeout=timeout)
            return await _follow_redirects(http, request, max_bytes)
    except (TimeoutError, httpx.TimeoutException):
        problem = "the image server did not send the image in time"
    except httpx.ConnectError:
        problem = "the image server cannot be reached"
    except (httpx.InvalidURL, UnicodeError):  # UnicodeError: host names that IDNA does not allow
        problem = "the URL of the image is invalid"
    except httpx.HTTPError:
        problem = "the image server closed the connection or sent invalid HTTP"
    # Drop the cause, which holds the whole URL.
    raise ImageUnavailable(problem) from None


async def read_body(response: Response, *, max_bytes: int) -> bytes | None:
    """Read the body of an HTTP response, or return None if it has more than `max_bytes` bytes."""
    if int(response.headers.get("Content-Length", 0)) > max_bytes:
        return None
    body = bytearray()
    async for chunk in response.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            return None
    return bytes(body)


async def _follow_redirects(http: AsyncClient, request: Request, max_bytes: int) -> bytes:
    """Send an HTTP request, follow up to `_MAX_REDIRECTS` redirects, and return the body of the response."""
    for _ in range(1 + _MAX_REDIRECTS):
        _check_url(request.url)
        # Send no credentials: those of the HTTP client belong to another server.
        response = await http.send(request, stream=True, auth=None, follow_redirects=False)
        try:
            if response.next_request is None:
                return await _read_image_body(response, max_bytes)
            request = response.next_request
        finally:
            await response.aclose()
    raise ImageUnavailable(f"{redact_url(request.url)} redirects too often")


def _check_url(url: httpx.URL) -> None:
    """Raise `ImageUnavailable` if a URL is not an HTTP URL with a host."""
    if url.scheme not in {"http", "https"} or not url.host:
        raise ImageUnavailable("the URL of the image must begin with http:// or https:// and a host")


async def _read_image_body(response: Response, max_bytes: int) -> bytes:
    """Return the body of a successful HTTP response. Raise an error for any other response."""
    if response.status_code != httpx.codes.OK:
        raise ImageUnavailable(f"{redact_url(response.url)} returned HTTP status {response.status_code}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ImageUnavailable(
            f"{redact_url(response.url)} sent the image in an encoding that was not requested"
        )
    body = await read_body(response, max_bytes=max_bytes)
    if body is None:
        raise ImageBroken(f"the image at {redact_url(response.url)} has more than {max_bytes} bytes")
    return body
