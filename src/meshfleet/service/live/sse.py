"""HTTP response that streams live events as server-sent events (rest-147 to rest-150)."""

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
_FIRST_COMMENT: Final = b": connected\n\n"
"""First bytes of an event stream, sent at once so that proxies forward the response immediately."""

_COMMENT: Final = b": keep-alive\n\n"


class EventStream(ASGIResponse):
    """HTTP response that streams server-sent events until its subscriber is closed."""

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
        """Send the head of the HTTP response without a content length."""
        headers = [each for each in self.encode_headers() if each[0] != b"content-length"]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send live events that match the filter until the client or the service closes the stream."""
        state: dict[str, Any] = scope["state"]
        subscriber = LiveSubscriber(
            encode_sse, self._actor, self._bearer, abort=state.get("abort"), comment=_COMMENT
        )
        try:
            await self._live.add_subscriber(subscriber)
            self._live.hub.subscribe(subscriber, self._event_filter, self._after)
            await self.start_response(send)
            if not state.get("only_head"):
                await _send_until_closed(subscriber, receive, send)
            if subscriber.close_reason is not CLIENT_LEFT:
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            self._live.hub.remove(subscriber)


async def _send_until_closed(subscriber: LiveSubscriber, receive: Receive, send: Send) -> None:
    """Send the queued events of a subscriber until it is closed, and then the reason."""
    async with asyncio.TaskGroup() as tasks:
        disconnect_task = tasks.create_task(_watch_disconnect(subscriber, receive), name="live.disconnect")
        chunk: bytes | None = _FIRST_COMMENT
        try:
            while chunk is not None:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
                chunk = await subscriber.next_chunk()
        except (OSError, RuntimeError):  # raised by ASGI servers and uvloop when the client is gone
            subscriber.close(CLIENT_LEFT)
        disconnect_task.cancel()
    if subscriber.close_reason is not None and subscriber.close_reason is not CLIENT_LEFT:
        last_comment = f": {subscriber.close_reason.reason}\n\n".encode()
        await send({"type": "http.response.body", "body": last_comment, "more_body": True})


async def _watch_disconnect(subscriber: LiveSubscriber, receive: Receive) -> None:
    """Close a subscriber when its HTTP client disconnects."""
    while (await receive())["type"] != "http.disconnect":
        pass
    subscriber.close(CLIENT_LEFT)
