"""A conversation over a WebSocket: a token first, then subscriptions, and events all the while (rest-152)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
from litestar.exceptions import WebSocketDisconnect
from msgspec import UNSET
from uvicorn.protocols.utils import ClientDisconnected

from meshfleet import rest
from meshfleet.errors import (
    Fault,
    FleetError,
    InvalidRequest,
    NotAllowed,
    NotLoggedIn,
    TooManySubscriptions,
    TooSlow,
    WentAway,
    quote_name,
)
from meshfleet.errors.protocol import MalformedPayload, WireError
from meshfleet.rest import FieldProblem
from meshfleet.rest.live import LiveError, LiveFrame, LivePong, LiveRefusal
from meshfleet.service.live.event import build_text_frame, encode_websocket_frame
from meshfleet.service.live.filters import parse_event_filter
from meshfleet.service.live.subscriber import CLIENT_LEFT, CloseReason, LiveSubscriber

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from litestar import WebSocket

    from meshfleet.service.accounts.bearer import BearerAuthenticator
    from meshfleet.service.live.filters import EventFilter
    from meshfleet.service.live.live_events import LiveEvents


# How much of something one may have: so much at once, and then so much in a second.


class TokenBucket:
    """What is left, by the clock of the caller."""

    def __init__(self, burst: float, per_second: float, now: float) -> None:
        self._burst = self._left = burst
        self._per_second = per_second
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take some, and tell how many seconds too early that is."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second) - amount
        self._at = now
        return max(0.0, -self._left / self._per_second)


_MAX_SUBSCRIPTIONS: Final = 100
_MAX_NAMED: Final = 5000
"""Devices, gateways and jobs that all subscriptions of a conversation may name."""

_FRAME_BURST, _FRAMES_PER_SECOND = 200.0, 20.0
"""Frames that are heard at once, and then in a second; all others wait."""

_BYTES_PER_FRAME: Final = 4096
"""Bytes of a frame that count as another one."""

_RESUME_BURST, _RESUMES_PER_SECOND = 100.0, 1.0
"""Subscriptions that may be resumed at once, and then in a second."""

_FILTER_NAMES: Final = {name.lower(): name for name in ("Types", "Ids", "Gateway", "Jobs")}

_CLOSE_CODE_BASE: Final = 4000
"""Close codes are this and the status that REST would answer with."""

_MAX_REASON_BYTES: Final = 123
"""Bytes of a close frame's reason."""

_INTERNAL: Final = 500


class WebSocketSession:
    """One WebSocket, from its first frame to its last."""

    def __init__(
        self, socket: WebSocket[Any, Any, Any], live: LiveEvents, authenticator: BearerAuthenticator
    ) -> None:
        self._socket = socket
        self._live = live
        self._authenticator = authenticator
        self._subscriber: LiveSubscriber | None = None
        self._error: FleetError | None = None
        self._now = asyncio.get_running_loop().time
        self._frame_bucket = TokenBucket(_FRAME_BURST, _FRAMES_PER_SECOND, self._now())
        self._resume_bucket = TokenBucket(_RESUME_BURST, _RESUMES_PER_SECOND, self._now())

    async def run(self) -> None:
        """Hold it, until one of both ends it."""
        await self._socket.accept()
        try:
            await self._authenticate()
        except FleetError as exc:
            self._error = exc
            await self._close(_to_close_reason(exc))
            return
        listener = cast("LiveSubscriber", self._subscriber)
        try:
            await self._exchange_frames(listener)
            if listener.close_reason is not None:
                await self._close(listener.close_reason)
        finally:
            self._live.hub.remove(listener)

    async def _authenticate(self) -> None:
        if self._socket.scope["query_string"]:
            raise InvalidRequest([Fault("query", "there is none here: filters and the token go into frames")])
        try:
            async with asyncio.timeout(self._live.timings.first_frame):
                frame = await self._next_frame()
        except TimeoutError:
            raise TooSlow("the first frame, with the token, did not come") from None
        if frame.token is UNSET:
            raise NotLoggedIn('the first frame must be {"token": ...}')
        standing = await self._authenticator.authenticate(frame.token)
        listener = LiveSubscriber(encode_websocket_frame, standing.actor, frame.token)
        try:
            await self._live.add_subscriber(listener)
        except BaseException:
            self._live.hub.remove(listener)
            raise
        self._subscriber = listener

    async def _exchange_frames(self, subscriber: LiveSubscriber) -> None:
        async with asyncio.TaskGroup() as tasks:
            hearing = tasks.create_task(self._receive_frames(subscriber), name="live.hear")
            try:
                while (chunk := await subscriber.next_chunk()) is not None:
                    await self._send(chunk)
            except (ClientDisconnected, WebSocketDisconnect):
                subscriber.close(CLIENT_LEFT)
            hearing.cancel()

    async def _receive_frames(self, subscriber: LiveSubscriber) -> None:
        try:
            while subscriber.close_reason is None:
                await self._handle_frame(subscriber, await self._next_frame())
        except (WentAway, ClientDisconnected, WebSocketDisconnect):
            subscriber.close(CLIENT_LEFT)
        except FleetError as exc:
            self._error = exc
            subscriber.close(_to_close_reason(exc))

    async def _send(self, frames: bytes) -> None:
        """Send whole frames, which may be made once for all; see `Socket`."""
        await self._socket.send(cast("Any", {"type": "websocket.send", "frames": frames}))

    async def _next_frame(self) -> LiveFrame:
        message = await self._socket.receive()
        if message["type"] != "websocket.receive":
            raise WentAway("the client left")
        text = message.get("text")
        # Even if that is not at all, others have their turn between two frames.
        await asyncio.sleep(self._frame_bucket.take(1 + len(text or "") / _BYTES_PER_FRAME, self._now()))
        if text is None:
            raise InvalidRequest([Fault("frame", "is binary; we talk JSON as text here")])
        frame = _decode(text)
        said = (frame.token, frame.subscribe, frame.unsubscribe, frame.ping)
        if sum(each is not UNSET for each in said) != 1:
            raise InvalidRequest([Fault("frame", "has not one of token, subscribe, unsubscribe and ping")])
        if frame.last_event_id is not UNSET and frame.subscribe is UNSET:
            raise InvalidRequest([Fault("lastEventId", "goes with subscribe alone")])
        return frame

    async def _handle_frame(self, subscriber: LiveSubscriber, frame: LiveFrame) -> None:
        if frame.token is not UNSET:
            await self._renew_token(subscriber, frame.token)
        elif frame.ping is not UNSET:
            # Past all that waits: it is no event, and is not lost with those that are too many.
            await self._send(build_text_frame(msgspec.json.encode(LivePong(pong=frame.ping))))
        elif frame.subscribe is not UNSET:
            want = _parse_filters(frame.subscribe)
            _check_limits(subscriber, want)
            after = None if frame.last_event_id is UNSET else frame.last_event_id
            if after is not None and self._resume_bucket.take(1, self._now()) > 0:
                raise TooManySubscriptions("subscriptions are resumed too often here")
            self._live.hub.subscribe(subscriber, want, after)
        elif frame.unsubscribe is not UNSET and not self._live.hub.unsubscribe(
            subscriber, _parse_filters(frame.unsubscribe)
        ):
            raise InvalidRequest([Fault("unsubscribe", "there is no subscription with these filters")])

    async def _renew_token(self, subscriber: LiveSubscriber, token: str) -> None:
        """Go on with another token of the same account (rest-154)."""
        standing = await self._authenticator.authenticate(token)
        if (standing.actor.kind, standing.actor.name) != subscriber.account:
            raise NotAllowed("this token is of another account")
        subscriber.bearer = token
        subscriber.actor = standing.actor
        await self._live.reauthorizer.check(subscriber)

    async def _close(self, ending: CloseReason) -> None:
        """Say why, and end it."""
        if ending is CLIENT_LEFT or isinstance(self._error, WentAway):
            return
        told = _build_refusal(self._error, ending)
        try:
            await self._socket.send_text(msgspec.json.encode(told).decode())
            reason = ending.reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore")
            await self._socket.close(ending.code, reason)
        except (ClientDisconnected, WebSocketDisconnect):
            pass  # it went first


def _decode(text: str) -> LiveFrame:
    try:
        return rest.decode_body(LiveFrame, text.encode())
    except MalformedPayload as exc:
        field = "frame" if exc.field == "body" else exc.field
        raise InvalidRequest([Fault(field, exc.reason)]) from None


def _parse_filters(filters: Mapping[str, Sequence[str]]) -> EventFilter:
    """Read filters, whose names are in any case (rest-153)."""
    spelt: dict[str, Sequence[str]] = {}
    faults = []
    for name, values in filters.items():
        known = _FILTER_NAMES.get(name.lower())
        if known is None:
            faults.append(
                Fault(quote_name(name), f"is no filter; there are {', '.join(_FILTER_NAMES.values())}")
            )
        elif known in spelt:
            faults.append(Fault(known, "is given more than once"))
        else:
            spelt[known] = values
    if faults:
        raise InvalidRequest(faults)
    return parse_event_filter(spelt)


def _check_limits(listener: LiveSubscriber, want: EventFilter) -> None:
    wants = {*listener.subscriptions, want}
    if len(wants) > _MAX_SUBSCRIPTIONS:
        raise TooManySubscriptions(f"there are {_MAX_SUBSCRIPTIONS} subscriptions here already")
    if sum(each.named_count for each in wants) > _MAX_NAMED:
        raise TooManySubscriptions(f"all subscriptions together name more than {_MAX_NAMED} things")


def _to_close_reason(error: FleetError) -> CloseReason:
    reason = "this is not possible now" if error.http >= _INTERNAL else str(error)
    return CloseReason(_CLOSE_CODE_BASE + error.http, error.code, reason)


def _build_refusal(error: FleetError | None, ending: CloseReason) -> LiveRefusal:
    match error:
        case InvalidRequest():
            faults = tuple(FieldProblem(field=field, message=message) for field, message in error.faults)
        case WireError():
            faults = (FieldProblem(field=error.field, message=error.reason),)
        case _:
            faults = ()
    return LiveRefusal(error=LiveError(code=ending.error_code, detail=ending.reason, errors=faults))
