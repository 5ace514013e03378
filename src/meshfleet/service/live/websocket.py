"""WebSocket session for live events (rest-152).

The client first sends an access token, then subscriptions. The service sends the matching live events.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from litestar.exceptions import WebSocketDisconnect
from msgspec import UNSET
from uvicorn.protocols.utils import ClientDisconnected

from meshfleet.errors import (
    Fault,
    FleetError,
    InvalidRequest,
    NotAllowed,
    NotLoggedIn,
    RequestAborted,
    RequestTimeout,
    TooManySubscriptions,
    quote_name,
)
from meshfleet.errors.protocol import MalformedInput, MalformedPayload
from meshfleet.rest.bodies import decode_body
from meshfleet.rest.live import LiveError, LiveFrame, LivePong, LiveRefusal
from meshfleet.rest.problems import FieldProblem
from meshfleet.service.live.event import build_text_frame, encode_websocket_frame
from meshfleet.service.live.filters import EventFilter, parse_event_filter
from meshfleet.service.live.subscriber import CLIENT_LEFT, CloseReason, LiveSubscriber

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from litestar import WebSocket

    from meshfleet.service.accounts.bearer import BearerAuthenticator
    from meshfleet.service.live.live_events import LiveEvents


# Rate limit that allows bursts.


class TokenBucket:
    """Rate limit that allows bursts (token bucket). The caller passes monotonic times in seconds."""

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst = self._available = burst
        self._per_second = per_second
        self._updated_at = now

    def take(self, amount: float, now: float) -> float:
        """Take tokens, even if too few are available. Return the seconds to wait until none is owed."""
        self._available = (
            min(self._burst, self._available + (now - self._updated_at) * self._per_second) - amount
        )
        self._updated_at = now
        return max(0.0, -self._available / self._per_second)


_MAX_SUBSCRIPTIONS: Final = 100
"""Maximum number of live-event subscriptions of a WebSocket session."""
_MAX_NAMED: Final = 5000
"""Maximum number of devices, gateways and jobs named in all subscriptions of a WebSocket session."""

_FRAME_BURST: Final = 200.0
"""Number of WebSocket frames accepted from a client in a burst; further frames are delayed."""
_FRAMES_PER_SECOND: Final = 20.0
"""Number of WebSocket frames accepted from a client per second after a burst."""

_BYTES_PER_FRAME: Final = 4096
"""Number of bytes in a WebSocket frame that count as one more frame in the rate limit."""

_RESUME_BURST: Final = 100.0
"""Number of subscriptions that a WebSocket session may resume in a burst."""
_RESUMES_PER_SECOND: Final = 1.0
"""Number of subscriptions that a WebSocket session may resume per second after a burst."""

_FILTER_NAMES: Final = {name.lower(): name for name in ("Types", "Ids", "Gateway", "Jobs")}

_CLOSE_CODE_BASE: Final = 4000
"""Base of WebSocket close codes: the code is 4000 + the HTTP status that REST would return."""

_MAX_REASON_BYTES: Final = 123
"""Maximum size of the reason in a WebSocket close frame in bytes."""

_INTERNAL_ERROR: Final = 500


class WebSocketSession:
    """Session of one WebSocket client for live events: authentication, subscriptions and delivery."""

    def __init__(
        self, socket: WebSocket[Any, Any, Any], live: LiveEvents, authenticator: BearerAuthenticator
    ) -> None:
        self._socket = socket
        self._live = live
        self._authenticator = authenticator
        self._subscriber: LiveSubscriber | None = None
        self._error: FleetError | None = None
        """Error that ends the session, to be sent in the last frame; None if there is none."""
        self._now = asyncio.get_running_loop().time
        self._frame_bucket = TokenBucket(_FRAME_BURST, _FRAMES_PER_SECOND, self._now())
        self._resume_bucket = TokenBucket(_RESUME_BURST, _RESUMES_PER_SECOND, self._now())

    async def run(self) -> None:
        """Run the WebSocket session until the client or the service closes it."""
        await self._socket.accept()
        try:
            await self._authenticate()
        except FleetError as exc:
            self._error = exc
            await self._close(_build_close_reason(exc))
            return
        subscriber = cast("LiveSubscriber", self._subscriber)
        try:
            await self._exchange_frames(subscriber)
            if subscriber.close_reason is not None:
                await self._close(subscriber.close_reason)
        finally:
            self._live.hub.remove(subscriber)

    async def _authenticate(self) -> None:
        """Wait for the frame with the access token, and register the session as a subscriber.

        Raise `NotLoggedIn` if the token is invalid, and other errors if the frame is invalid or late.
        """
        if self._socket.scope["query_string"]:
            raise InvalidRequest([Fault("query", "must be empty: send the token and the filters in frames")])
        try:
            async with asyncio.timeout(self._live.timings.first_frame):
                frame = await self._receive_frame()
        except TimeoutError:
            raise RequestTimeout("the first frame, with the token, was not sent in time") from None
        if frame.token is UNSET:
            raise NotLoggedIn('the first frame must be {"token": ...}')
        authentication = await self._authenticator.authenticate(frame.token)
        subscriber = LiveSubscriber(encode_websocket_frame, authentication.actor, frame.token)
        try:
            await self._live.add_subscriber(subscriber)
        except BaseException:
            self._live.hub.remove(subscriber)
            raise
        self._subscriber = subscriber

    async def _exchange_frames(self, subscriber: LiveSubscriber) -> None:
        """Send live events and handle frames of the client, until the session ends."""
        async with asyncio.TaskGroup() as tasks:
            receive_task = tasks.create_task(self._receive_frames(subscriber), name="live.receive")
            try:
                while (chunk := await subscriber.next_chunk()) is not None:
                    await self._send_frames(chunk)
            except (ClientDisconnected, WebSocketDisconnect):
                subscriber.close(CLIENT_LEFT)
            receive_task.cancel()

    async def _receive_frames(self, subscriber: LiveSubscriber) -> None:
        """Handle frames of the client until the session ends. Close the session after an invalid frame."""
        try:
            while subscriber.close_reason is None:
                await self._handle_frame(subscriber, await self._receive_frame())
        except (RequestAborted, ClientDisconnected, WebSocketDisconnect):
            subscriber.close(CLIENT_LEFT)
        except FleetError as exc:
            self._error = exc
            subscriber.close(_build_close_reason(exc))

    async def _send_frames(self, frames: bytes) -> None:
        """Send WebSocket frames that are already encoded. The same bytes may be sent to many clients."""
        await self._socket.send(cast("Any", {"type": "websocket.send", "frames": frames}))

    async def _receive_frame(self) -> LiveFrame:
        """Wait for the next frame of the client, within the rate limit. Raise an error if it is invalid."""
        message = await self._socket.receive()
        if message["type"] != "websocket.receive":
            raise RequestAborted("the client disconnected")
        text = message.get("text")
        # Even a delay of zero lets other tasks run between two frames.
        await asyncio.sleep(self._frame_bucket.take(1 + len(text or "") / _BYTES_PER_FRAME, self._now()))
        if text is None:
            raise InvalidRequest([Fault("frame", "must be JSON in a text frame, not binary")])
        frame = _decode_frame(text)
        operations = (frame.token, frame.subscribe, frame.unsubscribe, frame.ping)
        if sum(each is not UNSET for each in operations) != 1:
            raise InvalidRequest(
                [Fault("frame", "must have exactly one of token, subscribe, unsubscribe and ping")]
            )
        if frame.last_event_id is not UNSET and frame.subscribe is UNSET:
            raise InvalidRequest([Fault("lastEventId", "is allowed only with subscribe")])
        return frame

    async def _handle_frame(self, subscriber: LiveSubscriber, frame: LiveFrame) -> None:
        """Renew the token, answer a ping, subscribe or unsubscribe, as a frame of the client requests."""
        if frame.token is not UNSET:
            await self._renew_token(subscriber, frame.token)
        elif frame.ping is not UNSET:
            # A pong bypasses the queue, so that it is not lost when the queue is dropped.
            await self._send_frames(build_text_frame(msgspec.json.encode(LivePong(pong=frame.ping))))
        elif frame.subscribe is not UNSET:
            event_filter = _parse_filters(frame.subscribe)
            _check_limits(subscriber, event_filter)
            after = None if frame.last_event_id is UNSET else frame.last_event_id
            if after is not None and self._resume_bucket.take(1, self._now()) > 0:
                raise TooManySubscriptions("subscriptions are resumed too often in this session")
            self._live.hub.subscribe(subscriber, event_filter, after)
        elif frame.unsubscribe is not UNSET and not self._live.hub.unsubscribe(
            subscriber, _parse_filters(frame.unsubscribe)
        ):
            raise InvalidRequest([Fault("unsubscribe", "no subscription with these filters")])

    async def _renew_token(self, subscriber: LiveSubscriber, token: str) -> None:
        """Replace the access token of the session by another token of the same account (rest-154)."""
        authentication = await self._authenticator.authenticate(token)
        if (authentication.actor.kind, authentication.actor.name) != subscriber.account:
            raise NotAllowed("this token belongs to another account")
        subscriber.bearer = token
        subscriber.actor = authentication.actor
        await self._live.reauthorizer.check_subscriber(subscriber)

    async def _close(self, reason: CloseReason) -> None:
        """Send the reason in a last frame, and close the WebSocket."""
        if reason is CLIENT_LEFT or isinstance(self._error, RequestAborted):
            return
        refusal = _build_refusal(self._error, reason)
        try:
            await self._socket.send_text(msgspec.json.encode(refusal).decode())
            text = reason.reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
            await self._socket.close(reason.code, text)
        except (ClientDisconnected, WebSocketDisconnect):
            pass  # the client closed first


def _decode_frame(text: str) -> LiveFrame:
    try:
        return decode_body(LiveFrame, text.encode())
    except MalformedPayload as exc:
        field = "frame" if exc.field == "body" else exc.field
        raise InvalidRequest([Fault(field, exc.reason)]) from None


def _parse_filters(filters: Mapping[str, Sequence[str]]) -> EventFilter:
    """Parse the filters of a subscription, whose names are case-insensitive (rest-153)."""
    by_name: dict[str, Sequence[str]] = {}
    faults = []
    for name, values in filters.items():
        filter_name = _FILTER_NAMES.get(name.lower())
        if filter_name is None:
            faults.append(
                Fault(quote_name(name), f"is not a filter; use {', '.join(_FILTER_NAMES.values())}")
            )
        elif filter_name in by_name:
            faults.append(Fault(filter_name, "must not be repeated"))
        else:
            by_name[filter_name] = values
    if faults:
        raise InvalidRequest(faults)
    return parse_event_filter(by_name)


def _check_limits(subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
    """Raise `TooManySubscriptions` if a session cannot have one more subscription with this filter."""
    filters = {*subscriber.subscriptions, event_filter}
    if len(filters) > _MAX_SUBSCRIPTIONS:
        raise TooManySubscriptions(f"a session may have at most {_MAX_SUBSCRIPTIONS} subscriptions")
    if sum(each.named_count for each in filters) > _MAX_NAMED:
        raise TooManySubscriptions(
            f"the subscriptions of a session may name at most {_MAX_NAMED} devices, gateways and jobs"
        )


def _build_close_reason(error: FleetError) -> CloseReason:
    """Build the close reason for an error. Do not tell clients the details of an internal error."""
    reason = "the service is unavailable, try again later" if error.http >= _INTERNAL_ERROR else str(error)
    return CloseReason(_CLOSE_CODE_BASE + error.http, error.code, reason)


def _build_refusal(error: FleetError | None, reason: CloseReason) -> LiveRefusal:
    """Build the last frame of a session: why the session ends, with the faults of an invalid frame."""
    match error:
        case InvalidRequest():
            faults = tuple(FieldProblem(field=field, message=message) for field, message in error.faults)
        case MalformedInput():
            faults = (FieldProblem(field=error.field, message=error.reason),)
        case _:
            faults = ()
    return LiveRefusal(error=LiveError(code=reason.error_code, detail=reason.reason, errors=faults))
