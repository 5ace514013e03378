"""A stream of server-sent events (rest-147 to rest-150)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from litestar.response.base import ASGIResponse

from meshfleet.service.live.event import as_server_sent
from meshfleet.service.live.listener import GONE, Listener

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

    from meshfleet.service.accounts.model import Actor
    from meshfleet.service.live.live import Live
    from meshfleet.service.live.want import Want

MEDIA_TYPE: Final = "text/event-stream"

_HEADERS: Final = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
_BEGINNING: Final = b": you listen\n\n"
"""Something at once, so that nobody on the way waits for more."""

_COMMENT: Final = b": still here\n\n"


class EventStream(ASGIResponse):
    """An answer that ends when its listener does."""

    def __init__(self, live: Live, actor: Actor, bearer: str, want: Want, after: str | None) -> None:
        super().__init__(media_type=MEDIA_TYPE, headers=_HEADERS)
        self._live = live
        self._actor = actor
        self._bearer = bearer
        self._want = want
        self._after = after

    async def start_response(self, send: Send) -> None:
        """Say that it comes, and not how much."""
        headers = [each for each in self.encode_headers() if each[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell all that is wanted, until somebody ends it."""
        state: dict[str, Any] = scope["state"]
        listener = Listener(
            as_server_sent, self._actor, self._bearer, abort=state.get("abort"), comment=_COMMENT
        )
        try:
            await self._live.admit(listener)
            self._live.hub.subscribe(listener, self._want, self._after)
            await self.start_response(send)
            if not state.get("only_head"):
                await _tell_until_gone(listener, receive, send)
            if listener.ending is not GONE:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._live.hub.leave(listener)


async def _tell_until_gone(listener: Listener, receive: Receive, send: Send) -> None:
    async with asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(_notice_leaving(listener, receive), name="live.leaving")
        chunk: bytes | None = _BEGINNING
        try:
            while chunk is not None:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await listener.take()
        except (OSError, RuntimeError):  # as ASGI and uvloop say that nobody is there any more
            listener.end(GONE)
        leaving.cancel()
    if listener.ending is not None and listener.ending is not GONE:
        last = f": {listener.ending.reason}\n\n".encode()
        await send({"type": "http.response.body", "body": last, "more_body": True})


async def _notice_leaving(listener: Listener, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    listener.end(GONE)
