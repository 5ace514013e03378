"""Fetching a body over HTTP from an address that somebody else gave us, and that may be signed.

Nothing of an address but its host is ever logged or put into an error: the rest may be as good as a password.
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
"""The bytes as they are: sizes and hashes are of those."""


class _UrlRedactionFilter(logging.Filter):
    """Cuts addresses in the log of httpx down to their hosts: it logs every request, with its query."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(redact_url(arg) if isinstance(arg, httpx.URL) else arg for arg in record.args)
        return True


logging.getLogger("httpx").addFilter(_UrlRedactionFilter())
# Below that it logs headers, and with them where redirects lead.
logging.getLogger("httpcore").setLevel(logging.INFO)


def redact_url(url: httpx.URL) -> str:
    """The part of an address that may be shown."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


async def download_image(
    http: AsyncClient, uri: str, *, max_bytes: int, idle_timeout: float, total_timeout: float
) -> bytes:
    """The body behind an address, of at most `limit` bytes.

    Waits `silence` seconds for each next sign of life, and `within` seconds in all: who sends byte by byte
    is always alive.
    """
    # Without a limit for the pool: thousands of gateways may share a client, and wait their turn.
    timeout = httpx.Timeout(idle_timeout, pool=None)
    try:
        async with asyncio.timeout(total_timeout):
            request = http.build_request("GET", uri, headers=_HEADERS, timeout=timeout)
            return await _follow_redirects(http, request, max_bytes)
    except (TimeoutError, httpx.TimeoutException):
        problem = "the server of the image does not send it in time"
    except httpx.ConnectError:
        problem = "the server of the image cannot be reached"
    except (httpx.InvalidURL, UnicodeError):  # the latter for hosts that IDNA does not allow
        problem = "the address of the image is none"
    except httpx.HTTPError:
        problem = "the server of the image breaks off, or speaks no proper HTTP"
    # Without its cause, which carries the whole address.
    raise ImageUnavailable(problem) from None


async def read_body(response: Response, *, max_bytes: int) -> bytes | None:
    """The body of an answer; None: it is longer than that. No more than the limit is ever kept."""
    if int(response.headers.get("Content-Length", 0)) > max_bytes:
        return None
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > max_bytes:
            return None
    return bytes(body)


async def _follow_redirects(http: AsyncClient, request: Request, limit: int) -> bytes:
    for _ in range(1 + _MAX_REDIRECTS):
        _check_url(request.url)
        # The client's own credentials are for somebody else.
        response = await http.send(request, stream=True, auth=None, follow_redirects=False)
        try:
            if response.next_request is None:
                return await _read_image_body(response, limit)
            request = response.next_request
        finally:
            await response.aclose()
    raise ImageUnavailable(f"{redact_url(request.url)} redirects too often")


def _check_url(url: httpx.URL) -> None:
    if url.scheme not in {"http", "https"} or not url.host:
        raise ImageUnavailable("the address of the image is not one of http or https")


async def _read_image_body(response: Response, limit: int) -> bytes:
    if response.status_code != httpx.codes.OK:
        raise ImageUnavailable(f"{redact_url(response.url)} answers with HTTP status {response.status_code}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ImageUnavailable(
            f"{redact_url(response.url)} sends the image in an encoding that was not asked for"
        )
    body = await read_body(response, max_bytes=limit)
    if body is None:
        raise ImageBroken(f"the image at {redact_url(response.url)} has more than {limit} bytes")
    return body
