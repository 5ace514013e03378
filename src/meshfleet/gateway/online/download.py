"""Fetching a body over HTTP from an address that somebody else gave us, and that may be signed.

Nothing of an address but its host is ever logged or put into an error: the rest may be as good as a password.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

import httpx

from meshfleet.errors import ImageBroken, ImageUnavailable

if TYPE_CHECKING:
    from httpx import AsyncClient, Request, Response

_REDIRECTS: Final = 3

_HEADERS: Final = {"Accept": "*/*", "Accept-Encoding": "identity"}
"""The bytes as they are: sizes and hashes are of those."""


class _Discreet(logging.Filter):
    """Cuts addresses in the log of httpx down to their hosts: it logs every request, with its query."""

    def filter(self, record: logging.LogRecord) -> bool:
        if isinstance(record.args, tuple):
            record.args = tuple(place(arg) if isinstance(arg, httpx.URL) else arg for arg in record.args)
        return True


logging.getLogger("httpx").addFilter(_Discreet())
# Below that it logs headers, and with them where redirects lead.
logging.getLogger("httpcore").setLevel(logging.INFO)


def place(url: httpx.URL) -> str:
    """The part of an address that may be shown."""
    return f"{url.scheme}://{url.netloc.decode('ascii')}"


async def download(http: AsyncClient, uri: str, *, limit: int, silence: float, within: float) -> bytes:
    """The body behind an address, of at most `limit` bytes.

    Waits `silence` seconds for each next sign of life, and `within` seconds in all: who sends byte by byte
    is always alive.
    """
    # Without a limit for the pool: thousands of gateways may share a client, and wait their turn.
    timeout = httpx.Timeout(silence, pool=None)
    try:
        async with asyncio.timeout(within):
            request = http.build_request("GET", uri, headers=_HEADERS, timeout=timeout)
            return await _follow(http, request, limit)
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


async def read(response: Response, *, limit: int) -> bytes | None:
    """The body of an answer; None: it is longer than that. No more than the limit is ever kept."""
    if int(response.headers.get("Content-Length", 0)) > limit:
        return None
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > limit:
            return None
    return bytes(body)


async def _follow(http: AsyncClient, request: Request, limit: int) -> bytes:
    for _ in range(1 + _REDIRECTS):
        _check(request.url)
        # The client's own credentials are for somebody else.
        response = await http.send(request, stream=True, auth=None, follow_redirects=False)
        try:
            if response.next_request is None:
                return await _body(response, limit)
            request = response.next_request
        finally:
            await response.aclose()
    raise ImageUnavailable(f"{place(request.url)} redirects too often")


def _check(url: httpx.URL) -> None:
    if url.scheme not in {"http", "https"} or not url.host:
        raise ImageUnavailable("the address of the image is not one of http or https")


async def _body(response: Response, limit: int) -> bytes:
    if response.status_code != httpx.codes.OK:
        raise ImageUnavailable(f"{place(response.url)} answers with HTTP status {response.status_code}")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise ImageUnavailable(f"{place(response.url)} sends the image in an encoding that was not asked for")
    body = await read(response, limit=limit)
    if body is None:
        raise ImageBroken(f"the image at {place(response.url)} has more than {limit} bytes")
    return body
