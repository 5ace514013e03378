"""A stream of server-sent events (rest-147 to rest-150)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from litestar.response.base import ASGIResponse

from meshfleet.service.live.event import encode_sse
from meshfleet.service.live.subscriber import CLIENT_LEFT, LiveSubscriber

if TYPE_CHECKING:
    from litestar.types import Receive, Scope, Send

    from meshfleet.service.actor import Actor
    from meshfleet.service.live.filters import EventFilter
    from meshfleet.service.live.live_events import LiveEvents

SSE_MEDIA_TYPE: Final = "text/event-stream"

_HEADERS: Final = {
    "cache-control": "no-store",
    "x-accel-buffering": "no",
}
_FIRST_COMMENT: Final = b": you listen\n\n"
"""Something at once, so that nobody on the way waits for more."""

_COMMENT: Final = b": still here\n\n"


class EventStream(ASGIResponse):
    """An answer that ends when its listener does."""

    def __init__(
        self, live: LiveEvents, actor: Actor, bearer: str, event_filter: EventFilter, after: str | None
    ) -> None:
        super().__init__(media_type=SSE_MEDIA_TYPE, headers=_HEADERS)
        self._live = live
        self._actor = actor
        self._bearer = bearer
        self._event_filter = event_filter
        self._after = after

    async def start_response(self, send: Send) -> None:
        """Say that it comes, and not how much."""
        headers = [each for each in self.encode_headers() if each[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell all that is wanted, until somebody ends it."""
        state: dict[str, Any] = scope["state"]
        listener = LiveSubscriber(
            encode_sse, self._actor, self._bearer, abort=state.get("abort"), comment=_COMMENT
        )
        try:
            await self._live.add_subscriber(listener)
            self._live.hub.subscribe(listener, self._event_filter, self._after)
            await self.start_response(send)
            if not state.get("only_head"):
                await _send_until_closed(listener, receive, send)
            if listener.close_reason is not CLIENT_LEFT:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._live.hub.remove(listener)


async def _send_until_closed(listener: LiveSubscriber, receive: Receive, send: Send) -> None:
    async with asyncio.TaskGroup() as tasks:
        leaving = tasks.create_task(_watch_disconnect(listener, receive), name="live.leaving")
        chunk: bytes | None = _FIRST_COMMENT
        try:
            while chunk is not None:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await listener.next_chunk()
        except (OSError, RuntimeError):  # as ASGI and uvloop say that nobody is there any more
            listener.close(CLIENT_LEFT)
        leaving.cancel()
    if listener.close_reason is not None and listener.close_reason is not CLIENT_LEFT:
        last = f": {listener.close_reason.reason}\n\n".encode()
        await send({"type": "http.response.body", "body": last, "more_body": True})


async def _watch_disconnect(listener: LiveSubscriber, receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    listener.close(CLIENT_LEFT)
