"""A conversation over a WebSocket: a token first, then subscriptions, and events all the while (rest-152)."""

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
    MalformedPayload,
    NotAllowed,
    NotLoggedIn,
    TooManySubscriptions,
    TooSlow,
    WentAway,
    WireError,
    plain,
)
from meshfleet.service.live.allowance import Allowance
from meshfleet.service.live.event import as_frame, framed
from meshfleet.service.live.listener import GONE, Ending, Listener
from meshfleet.service.live.want import read_want
from meshfleet.wire import rest
from meshfleet.wire.rest import FieldProblem
from meshfleet.wire.rest.live import LiveError, LiveFrame, LivePong, LiveRefusal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from litestar import WebSocket

    from meshfleet.service.accounts.gatekeeper import Gatekeeper
    from meshfleet.service.live.live import Live
    from meshfleet.service.live.want import Want

_SUBSCRIPTIONS: Final = 100
_NAMED: Final = 5000
"""Devices, gateways and jobs that all subscriptions of a conversation may name."""

_FRAMES, _FRAMES_PER_SECOND = 200.0, 20.0
"""Frames that are heard at once, and then in a second; all others wait."""

_WEIGHT: Final = 4096
"""Bytes of a frame that count as another one."""

_RESUMED, _RESUMED_PER_SECOND = 100.0, 1.0
"""Subscriptions that may be resumed at once, and then in a second."""

_FILTERS: Final = {name.lower(): name for name in ("Types", "Ids", "Gateway", "Jobs")}

_CLOSE: Final = 4000
"""Close codes are this and the status that REST would answer with."""

_LONGEST_REASON: Final = 123
"""Bytes of a close frame's reason."""

_INTERNAL: Final = 500


class Conversation:
    """One WebSocket, from its first frame to its last."""

    def __init__(self, socket: WebSocket[Any, Any, Any], live: Live, gatekeeper: Gatekeeper) -> None:
        self._socket = socket
        self._live = live
        self._gatekeeper = gatekeeper
        self._listener: Listener | None = None
        self._error: FleetError | None = None
        self._now = asyncio.get_running_loop().time
        self._frames = Allowance(_FRAMES, _FRAMES_PER_SECOND, self._now())
        self._resumed = Allowance(_RESUMED, _RESUMED_PER_SECOND, self._now())

    async def hold(self) -> None:
        """Hold it, until one of both ends it."""
        await self._socket.accept()
        try:
            await self._introduce()
        except FleetError as exc:
            self._error = exc
            await self._close(_ending(exc))
            return
        listener = cast("Listener", self._listener)
        try:
            await self._converse(listener)
            if listener.ending is not None:
                await self._close(listener.ending)
        finally:
            self._live.hub.leave(listener)

    async def _introduce(self) -> None:
        if self._socket.scope["query_string"]:
            raise InvalidRequest([Fault("query", "there is none here: filters and the token go into frames")])
        try:
            async with asyncio.timeout(self._live.pace.first_frame):
                frame = await self._next_frame()
        except TimeoutError:
            raise TooSlow("the first frame, with the token, did not come") from None
        if frame.token is UNSET:
            raise NotLoggedIn('the first frame must be {"token": ...}')
        standing = await self._gatekeeper.standing(frame.token)
        listener = Listener(as_frame, standing.actor, frame.token)
        try:
            await self._live.admit(listener)
        except BaseException:
            self._live.hub.leave(listener)
            raise
        self._listener = listener

    async def _converse(self, listener: Listener) -> None:
        async with asyncio.TaskGroup() as tasks:
            hearing = tasks.create_task(self._hear(listener), name="live.hear")
            try:
                while (chunk := await listener.take()) is not None:
                    await self._send(chunk)
            except (ClientDisconnected, WebSocketDisconnect):
                listener.end(GONE)
            hearing.cancel()

    async def _hear(self, listener: Listener) -> None:
        try:
            while listener.ending is None:
                await self._heed(listener, await self._next_frame())
        except (WentAway, ClientDisconnected, WebSocketDisconnect):
            listener.end(GONE)
        except FleetError as exc:
            self._error = exc
            listener.end(_ending(exc))

    async def _send(self, frames: bytes) -> None:
        """Send whole frames, which may be made once for all; see `Socket`."""
        await self._socket.send(cast("Any", {"type": "websocket.send", "frames": frames}))

    async def _next_frame(self) -> LiveFrame:
        message = await self._socket.receive()
        if message["type"] != "websocket.receive":
            raise WentAway("the client left")
        text = message.get("text")
        # Even if that is not at all, others have their turn between two frames.
        await asyncio.sleep(self._frames.take(1 + len(text or "") / _WEIGHT, self._now()))
        if text is None:
            raise InvalidRequest([Fault("frame", "is binary; we talk JSON as text here")])
        frame = _decode(text)
        said = (frame.token, frame.subscribe, frame.unsubscribe, frame.ping)
        if sum(each is not UNSET for each in said) != 1:
            raise InvalidRequest([Fault("frame", "has not one of token, subscribe, unsubscribe and ping")])
        if frame.last_event_id is not UNSET and frame.subscribe is UNSET:
            raise InvalidRequest([Fault("lastEventId", "goes with subscribe alone")])
        return frame

    async def _heed(self, listener: Listener, frame: LiveFrame) -> None:
        if frame.token is not UNSET:
            await self._renew(listener, frame.token)
        elif frame.ping is not UNSET:
            # Past all that waits: it is no event, and is not lost with those that are too many.
            await self._send(framed(msgspec.json.encode(LivePong(pong=frame.ping))))
        elif frame.subscribe is not UNSET:
            want = _read(frame.subscribe)
            _check_room(listener, want)
            after = None if frame.last_event_id is UNSET else frame.last_event_id
            if after is not None and self._resumed.take(1, self._now()) > 0:
                raise TooManySubscriptions("subscriptions are resumed too often here")
            self._live.hub.subscribe(listener, want, after)
        elif frame.unsubscribe is not UNSET and not self._live.hub.unsubscribe(
            listener, _read(frame.unsubscribe)
        ):
            raise InvalidRequest([Fault("unsubscribe", "there is no subscription with these filters")])

    async def _renew(self, listener: Listener, token: str) -> None:
        """Go on with another token of the same account (rest-154)."""
        standing = await self._gatekeeper.standing(token)
        if (standing.actor.kind, standing.actor.name) != listener.account:
            raise NotAllowed("this token is of another account")
        listener.bearer = token
        listener.actor = standing.actor
        await self._live.guard.check(listener)

    async def _close(self, ending: Ending) -> None:
        """Say why, and end it."""
        if ending is GONE or isinstance(self._error, WentAway):
            return
        told = _refusal(self._error, ending)
        try:
            await self._socket.send_text(msgspec.json.encode(told).decode())
            reason = ending.reason.encode()[:_LONGEST_REASON].decode(errors="ignore")
            await self._socket.close(ending.code, reason)
        except (ClientDisconnected, WebSocketDisconnect):
            pass  # it went first


def _decode(text: str) -> LiveFrame:
    try:
        return rest.decode(LiveFrame, text.encode())
    except MalformedPayload as exc:
        field = "frame" if exc.field == "body" else exc.field
        raise InvalidRequest([Fault(field, exc.reason)]) from None


def _read(filters: Mapping[str, Sequence[str]]) -> Want:
    """Read filters, whose names are in any case (rest-153)."""
    spelt: dict[str, Sequence[str]] = {}
    faults = []
    for name, values in filters.items():
        known = _FILTERS.get(name.lower())
        if known is None:
            faults.append(Fault(plain(name), f"is no filter; there are {', '.join(_FILTERS.values())}"))
        elif known in spelt:
            faults.append(Fault(known, "is given more than once"))
        else:
            spelt[known] = values
    if faults:
        raise InvalidRequest(faults)
    return read_want(spelt)


def _check_room(listener: Listener, want: Want) -> None:
    wants = {*listener.since, want}
    if len(wants) > _SUBSCRIPTIONS:
        raise TooManySubscriptions(f"there are {_SUBSCRIPTIONS} subscriptions here already")
    if sum(each.size for each in wants) > _NAMED:
        raise TooManySubscriptions(f"all subscriptions together name more than {_NAMED} things")


def _ending(error: FleetError) -> Ending:
    reason = "this is not possible now" if error.http >= _INTERNAL else str(error)
    return Ending(_CLOSE + error.http, error.code, reason)


def _refusal(error: FleetError | None, ending: Ending) -> LiveRefusal:
    match error:
        case InvalidRequest():
            faults = tuple(FieldProblem(field=field, message=message) for field, message in error.faults)
        case WireError():
            faults = (FieldProblem(field=error.field, message=error.reason),)
        case _:
            faults = ()
    return LiveRefusal(error=LiveError(code=ending.word, detail=ending.reason, errors=faults))
