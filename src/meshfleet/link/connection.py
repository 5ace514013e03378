"""One connection to a broker, from CONNECT to its end. It does not come back: that is the link's affair."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from meshfleet.errors import ConnectionLost, shown
from meshfleet.link.flight import LAST_ID
from meshfleet.link.inbox import Acks
from meshfleet.link.pace import REST, Pace
from meshfleet.link.pulse import BEATS, Beat, Pulse
from meshfleet.link.words import words
from meshfleet.wire.mqtt.decoder import FROM_SERVERS
from meshfleet.wire.mqtt.encoder import DISCONNECT, PINGREQ, encode
from meshfleet.wire.mqtt.packets import (
    LARGEST_ID,
    REFUSED,
    Accept,
    Connack,
    Connect,
    Oversized,
    Packet,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from meshfleet.wire.mqtt.parser import Parser

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class Owner(Protocol):
        """Who hears from a connection."""

        def messages_came(self, connection: Connection, messages: list[Publish], size: int) -> None:
            """Messages that one read brought, and its bytes."""

        def publishes_landed(self, packet_ids: Sequence[int]) -> None:
            """Publishes that the broker acknowledged."""

        def room_came(self) -> None:
            """The network takes bytes again."""

        def connection_ended(self, connection: Connection, reason: ConnectionLost) -> None:
            """Nothing will come any more."""


_log = logging.getLogger(__name__)

_MANY_BYTES: Final = 64 * 1024
"""As many as are collected at most before they leave; then the network says whether it takes more."""


class Connection(asyncio.Protocol):
    """Speaks MQTT over a transport: handshake, keep-alive, pace of reading, writes collected per turn."""

    __slots__ = (
        "_asked",
        "_due",
        "_held",
        "_last_id",
        "_leaving",
        "_loop",
        "_out",
        "_owner",
        "_pace",
        "_parser",
        "_ping_interval",
        "_pulse",
        "_resting",
        "_size",
        "_timer",
        "_transport",
        "accepted",
        "acks",
        "lost",
        "writable",
    )

    def __init__(
        self, connect: Connect, owner: Owner, *, largest: int, ping_interval: float | None = None
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self._ping_interval = connect.keep_alive / BEATS if ping_interval is None else ping_interval
        # A message too large must not end the connection: on the next the broker would send it again.
        self._parser = Parser(FROM_SERVERS, limit=largest, highest_qos=1, pass_over=True)
        self._pace = Pace()
        self._pulse = Pulse()
        self._out = [encode(connect)]  # leaves as soon as there is a transport
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._last_id = LAST_ID
        self._due = self._size = 0
        self._held = self._resting = self._leaving = False
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.acks = Acks(self.send)
        self.writable = True
        self.accepted: asyncio.Future[Connack] = self._loop.create_future()
        self.lost: asyncio.Future[ConnectionLost] = self._loop.create_future()
        """Done when the connection has ended, with the reason."""

    # What the caller does

    def send(self, data: bytes) -> None:
        """Send bytes at the end of this turn of the loop, together with all others of the turn."""
        if self._leaving:
            return
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._due += len(data)
        if self._due > _MANY_BYTES:
            self._flush()

    async def subscribe(self, filters: Sequence[tuple[str, int]]) -> list[str]:
        """Ask for filters; those that were granted less than asked."""
        answer = await self._ask(Subscribe(self._next_id(), tuple(filters)))
        if not isinstance(answer, Suback) or len(answer.codes) != len(filters):
            raise self.fail("the broker did not answer what was asked")
        granted = zip(filters, answer.codes, strict=True)
        return [wanted for (wanted, qos), code in granted if code < qos or code == REFUSED]

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Take filters back."""
        if not isinstance(await self._ask(Unsubscribe(self._next_id(), tuple(filters))), Unsuback):
            raise self.fail("the broker did not answer what was asked")

    def check(self) -> None:
        """Raise the reason if the connection has ended."""
        if self.lost.done():
            raise self.lost.result()

    def hold(self) -> None:
        """Let the network wait: what has arrived must be received first."""
        if not self._held and self._transport is not None:
            self._held = True
            self._transport.pause_reading()

    def release(self) -> None:
        """Read on."""
        if self._held:
            self._held = False
            self._pulse.heard = True  # what the broker said meanwhile is still to be read
            self._read_on()

    async def leave(self, patience: float) -> None:
        """Send what is due, say good-bye, and wait until the broker has read it all."""
        self.send(DISCONNECT)
        self._flush()
        self._leaving = True
        self._stop_beating()
        self.release()
        # A socket that is closed with unread bytes resets the connection, and what we sent last may be lost
        # with it. So the broker is the one to close; what it still sends is not ours any more.
        try:
            self._write_eof()
            await asyncio.wait((self.lost,), timeout=patience)
        finally:
            self.abort()

    def fail(self, reason: str) -> ConnectionLost:
        """End it at once, for this reason."""
        lost = ConnectionLost(reason)
        self._end(lost)
        self.abort()
        return lost

    def abandon(self) -> None:
        """End it, since nobody waits for it any more; also before it has begun."""
        self.accepted.cancel()
        if not self.lost.done():
            self.lost.set_result(ConnectionLost("nobody waited for the broker's answer"))
        self._stop_beating()
        self.abort()

    def abort(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Introduce ourselves."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none, but behaves like one
        if self.lost.done():
            self.abort()
            return
        self._flush()
        self._wait_for_beat()

    def data_received(self, data: bytes) -> None:
        """Pass on what came, and see whether a rest is due."""
        self._pulse.heard = True
        if self._leaving or self.lost.done():
            return
        if self.accepted.done() and (landed := self._parser.pubacks(data)):
            self._owner.publishes_landed(landed)
            if self._pace.rest_is_due(len(landed), len(data), self._loop.time()):
                self._rest()
            return
        packets = self._parser.feed(data)
        self._size += len(data)
        if packets:
            self._pass_on(packets, self._size)
            self._size = 0
            if self._pace.rest_is_due(len(packets), len(data), self._loop.time()):
                self._rest()
        if self._parser.fault is not None:
            self.fail(f"the broker broke the protocol: {self._parser.fault}")

    def pause_writing(self) -> None:
        """Publishers wait from now on."""
        self.writable = False

    def resume_writing(self) -> None:
        """And go on."""
        self.writable = True
        self._owner.room_came()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits."""
        self._transport = None  # asyncio fails to abort what was closed with bytes to send, and is closed
        reason = ConnectionLost("the broker closed the connection" if exc is None else words(exc))
        self._end(reason)

    # Inside

    def _pass_on(self, packets: list[Packet], size: int) -> None:
        kinds = set(map(type, packets))
        if kinds == {Publish} and self.accepted.done():
            self._owner.messages_came(self, packets, size)  # type: ignore[arg-type] # just seen
            return
        if not self.accepted.done():
            self._open(packets.pop(0))
            if self._leaving or self.lost.done():
                return
        if landed := [packet.packet_id for packet in packets if type(packet) is Puback]:
            self._owner.publishes_landed(landed)
        if messages := [packet for packet in packets if isinstance(packet, Publish)]:
            self._owner.messages_came(self, messages, size)
        for packet in packets:
            if type(packet) is not Puback and type(packet) is not Publish:
                self._answer(packet)

    def _open(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self.accepted.set_result(packet)
            self._leaving = packet.code != Accept.ACCEPTED  # what follows a refusal is not for us
        else:
            self.fail(f"the broker began with {_name(packet)} instead of CONNACK")

    def _answer(self, packet: Packet) -> None:
        match packet:
            case Pingresp():
                pass
            case Oversized():
                _log.warning("%s is too large with %d bytes: passed over", shown(packet.topic), packet.size)
            case Suback() | Unsuback() if waiting := self._asked.pop(packet.packet_id, None):
                if not waiting.done():
                    waiting.set_result(packet)
            case _:
                self.fail(f"the broker sent {_name(packet)}, which nobody asked for")

    async def _ask(self, packet: Subscribe | Unsubscribe) -> Any:
        self.check()
        self.send(encode(packet))
        answer = self._asked[packet.packet_id] = self._loop.create_future()
        return await answer

    def _next_id(self) -> int:
        self._last_id = LAST_ID + 1 if self._last_id == LARGEST_ID else self._last_id + 1
        return self._last_id

    def _flush(self) -> None:
        if self._out:
            data, self._out, self._due = b"".join(self._out), [], 0
            if self._transport is not None and not self._transport.is_closing():
                self._transport.write(data)
                self._pulse.spoken = True

    def _write_eof(self) -> None:
        with suppress(OSError):  # the broker may have gone before us
            if self._transport is not None and self._transport.can_write_eof():
                self._transport.write_eof()

    def _rest(self) -> None:
        if not self._resting and self._transport is not None:
            self._resting = True
            self._transport.pause_reading()
            self._loop.call_later(REST, self._rested)

    def _rested(self) -> None:
        self._resting = False
        self._read_on()

    def _read_on(self) -> None:
        if self._transport is not None and not (self._held or self._resting or self._transport.is_closing()):
            self._transport.resume_reading()

    def _wait_for_beat(self) -> None:
        if self._ping_interval:
            self._timer = self._loop.call_later(self._ping_interval, self._beat)

    def _beat(self) -> None:
        # Who does not listen cannot complain of silence, nor who was too busy to be in time for the beat.
        late = self._timer is not None and self._loop.time() - self._timer.when() > self._ping_interval / 2
        self._pulse.heard |= self._held or late
        match self._pulse.beat():
            case Beat.PING:
                self.send(PINGREQ)
            case Beat.DEAD:
                self.fail(f"nothing was heard from the broker for {self._ping_interval:.3g} seconds")
                return
        self._wait_for_beat()

    def _stop_beating(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _end(self, reason: ConnectionLost) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        self._stop_beating()
        for waiting in (self.accepted, *self._asked.values()):
            if not waiting.done():
                waiting.set_exception(reason)
        self._asked.clear()
        self._owner.connection_ended(self, reason)


def _name(packet: Packet) -> str:
    return type(packet).__name__.upper()
