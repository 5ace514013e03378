"""One connection to a broker, from CONNECT to its end. It does not come back: that is the link's affair."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Final, cast

from meshfleet.errors import quote_input
from meshfleet.errors.mqtt import ConnectionLost
from meshfleet.mqtt.client.inbox import AckQueue
from meshfleet.mqtt.client.inflight import LAST_PUBLISH_ID
from meshfleet.mqtt.codec.decoder import FROM_SERVERS
from meshfleet.mqtt.codec.encoder import DISCONNECT, PINGREQ, encode_packet
from meshfleet.mqtt.codec.packets import (
    MAX_PACKET_ID,
    SUBACK_FAILURE,
    Connack,
    Connect,
    ConnectReturnCode,
    OversizedPublish,
    Packet,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)
from meshfleet.mqtt.codec.parser import PacketParser
from meshfleet.mqtt.network_errors import describe_network_error

# Short rests between reads under load.

READ_PAUSE_SECONDS: Final = 0.005
"""Seconds of a rest."""

_BUSY_PACKETS: Final = 32
"""Packets within `REST` that make a connection busy. Fewer cost less to read one by one than a rest does."""

_LARGE_READ_BYTES: Final = 0x1_0000
"""Bytes of one read that need no rest: waking is a small part of their cost, and more may be waiting."""


class ReadCoalescer:
    """Decides after every read whether a rest is due."""

    __slots__ = ("_packets", "_window_start")

    def __init__(self) -> None:
        self._window_start = 0.0
        self._packets = 0

    def should_pause(self, packets: int, size: int, now: float) -> bool:
        """Take note of a read: so many packets, so many bytes, at this time."""
        if now - self._window_start > READ_PAUSE_SECONDS:
            self._window_start = now
            self._packets = 0
        self._packets += packets
        return self._packets >= _BUSY_PACKETS and size < _LARGE_READ_BYTES


# Keep-alive: when to say something, and when the broker must be dead. The caller brings the clock.

CHECKS_PER_KEEP_ALIVE: Final = 3
"""How often to ask within a keep-alive interval, so that less than a whole one passes without a word."""


class KeepAliveAction(Enum):
    """What to do now."""

    NOTHING = auto()
    PING = auto()
    DISCONNECT = auto()


class KeepAliveCheck:
    """Watches a connection: tell it what happens, and ask it at every beat."""

    __slots__ = ("_pinged", "has_received", "has_sent")

    def __init__(self) -> None:
        self.has_received = False
        self.has_sent = False
        self._pinged = False

    def next_action(self) -> KeepAliveAction:
        """Ping, unless something was said and heard since the last beat; dead, if a ping went unheard."""
        heard, spoken, pinged = self.has_received, self.has_sent, self._pinged
        self.has_received = self.has_sent = self._pinged = False
        if heard and spoken:
            return KeepAliveAction.NOTHING
        if pinged and not heard:
            return KeepAliveAction.DISCONNECT
        self._pinged = True
        return KeepAliveAction.PING


if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class ConnectionListener(Protocol):
        """Who hears from a connection."""

        def on_messages(self, connection: ClientConnection, messages: list[Publish], size: int) -> None:
            """Messages that one read brought, and its bytes."""

        def on_pubacks(self, packet_ids: Sequence[int]) -> None:
            """Publishes that the broker acknowledged."""

        def on_writable(self) -> None:
            """The network takes bytes again."""

        def on_connection_lost(self, connection: ClientConnection, reason: ConnectionLost) -> None:
            """Nothing will come any more."""


_log = logging.getLogger(__name__)

_FLUSH_BYTES: Final = 64 * 1024
"""As many as are collected at most before they leave; then the network says whether it takes more."""


class ClientConnection(asyncio.Protocol):
    """Speaks MQTT over a transport: handshake, keep-alive, pace of reading, writes collected per turn."""

    __slots__ = (
        "_is_closing",
        "_is_coalescing",
        "_is_held",
        "_keep_alive_check",
        "_keep_alive_timer",
        "_last_id",
        "_listener",
        "_loop",
        "_parser",
        "_pending_bytes",
        "_pending_output",
        "_pending_requests",
        "_ping_interval",
        "_read_bytes",
        "_read_coalescer",
        "_transport",
        "ack_queue",
        "connack",
        "is_writable",
        "lost",
    )

    def __init__(
        self,
        connect: Connect,
        listener: ConnectionListener,
        *,
        max_packet_bytes: int,
        ping_interval: float | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._ping_interval = (
            connect.keep_alive / CHECKS_PER_KEEP_ALIVE if ping_interval is None else ping_interval
        )
        # A message too large must not end the connection: on the next the broker would send it again.
        self._parser = PacketParser(FROM_SERVERS, limit=max_packet_bytes, highest_qos=1, skip_oversized=True)
        self._read_coalescer = ReadCoalescer()
        self._keep_alive_check = KeepAliveCheck()
        self._pending_output = [encode_packet(connect)]  # leaves as soon as there is a transport
        self._pending_requests: dict[int, asyncio.Future[Any]] = {}
        self._last_id = LAST_PUBLISH_ID
        self._pending_bytes = self._read_bytes = 0
        self._is_held = self._is_coalescing = self._is_closing = False
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.ack_queue = AckQueue(self.send)
        self.is_writable = True
        self.connack: asyncio.Future[Connack] = self._loop.create_future()
        self.lost: asyncio.Future[ConnectionLost] = self._loop.create_future()
        """Done when the connection has ended, with the reason."""

    # What the caller does

    def send(self, data: bytes) -> None:
        """Send bytes at the end of this turn of the loop, together with all others of the turn."""
        if self._is_closing:
            return
        if not self._pending_output:
            self._loop.call_soon(self._flush)
        self._pending_output.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes > _FLUSH_BYTES:
            self._flush()

    async def subscribe(self, filters: Sequence[tuple[str, int]]) -> list[str]:
        """Ask for filters; those that were granted less than asked."""
        answer = await self._request(Subscribe(self._next_id(), tuple(filters)))
        if not isinstance(answer, Suback) or len(answer.codes) != len(filters):
            raise self.fail("the broker did not answer what was asked")
        granted = zip(filters, answer.codes, strict=True)
        return [wanted for (wanted, qos), code in granted if code < qos or code == SUBACK_FAILURE]

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Take filters back."""
        if not isinstance(await self._request(Unsubscribe(self._next_id(), tuple(filters))), Unsuback):
            raise self.fail("the broker did not answer what was asked")

    def check_open(self) -> None:
        """Raise the reason if the connection has ended."""
        if self.lost.done():
            raise self.lost.result()

    def hold_reading(self) -> None:
        """Let the network wait: what has arrived must be received first."""
        if not self._is_held and self._transport is not None:
            self._is_held = True
            self._transport.pause_reading()

    def release_reading(self) -> None:
        """Read on."""
        if self._is_held:
            self._is_held = False
            self._keep_alive_check.has_received = True  # what the broker said meanwhile is still to be read
            self._resume_reading_if_free()

    async def disconnect(self, timeout_seconds: float) -> None:
        """Send what is due, say good-bye, and wait until the broker has read it all."""
        self.send(DISCONNECT)
        self._flush()
        self._is_closing = True
        self._stop_keep_alive()
        self.release_reading()
        # A socket that is closed with unread bytes resets the connection, and what we sent last may be lost
        # with it. So the broker is the one to close; what it still sends is not ours any more.
        try:
            self._write_eof()
            await asyncio.wait((self.lost,), timeout=timeout_seconds)
        finally:
            self.abort()

    def fail(self, reason: str) -> ConnectionLost:
        """End it at once, for this reason."""
        lost = ConnectionLost(reason)
        self._end(lost)
        self.abort()
        return lost

    def cancel(self) -> None:
        """End it, since nobody waits for it any more; also before it has begun."""
        self.connack.cancel()
        if not self.lost.done():
            self.lost.set_result(ConnectionLost("nobody waited for the broker's answer"))
        self._stop_keep_alive()
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
        self._schedule_keep_alive()

    def data_received(self, data: bytes) -> None:
        """Pass on what came, and see whether a rest is due."""
        self._keep_alive_check.has_received = True
        if self._is_closing or self.lost.done():
            return
        if self.connack.done() and (landed := self._parser.parse_pubacks(data)):
            self._listener.on_pubacks(landed)
            if self._read_coalescer.should_pause(len(landed), len(data), self._loop.time()):
                self._pause_reads()
            return
        packets = self._parser.feed(data)
        self._read_bytes += len(data)
        if packets:
            self._handle_packets(packets, self._read_bytes)
            self._read_bytes = 0
            if self._read_coalescer.should_pause(len(packets), len(data), self._loop.time()):
                self._pause_reads()
        if self._parser.fault is not None:
            self.fail(f"the broker broke the protocol: {self._parser.fault}")

    def pause_writing(self) -> None:
        """Publishers wait from now on."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """And go on."""
        self.is_writable = True
        self._listener.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell everybody who waits."""
        self._transport = None  # asyncio fails to abort what was closed with bytes to send, and is closed
        reason = ConnectionLost(
            "the broker closed the connection" if exc is None else describe_network_error(exc)
        )
        self._end(reason)

    # Inside

    def _handle_packets(self, packets: list[Packet], size: int) -> None:
        kinds = set(map(type, packets))
        if kinds == {Publish} and self.connack.done():
            self._listener.on_messages(self, packets, size)  # type: ignore[arg-type] # just seen
            return
        if not self.connack.done():
            self._handle_connack(packets.pop(0))
            if self._is_closing or self.lost.done():
                return
        if landed := [packet.packet_id for packet in packets if type(packet) is Puback]:
            self._listener.on_pubacks(landed)
        if messages := [packet for packet in packets if isinstance(packet, Publish)]:
            self._listener.on_messages(self, messages, size)
        for packet in packets:
            if type(packet) is not Puback and type(packet) is not Publish:
                self._handle_packet(packet)

    def _handle_connack(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self.connack.set_result(packet)
            self._is_closing = (
                packet.code != ConnectReturnCode.ACCEPTED
            )  # what follows a refusal is not for us
        else:
            self.fail(f"the broker began with {_packet_name(packet)} instead of CONNACK")

    def _handle_packet(self, packet: Packet) -> None:
        match packet:
            case Pingresp():
                pass
            case OversizedPublish():
                _log.warning(
                    "%s is too large with %d bytes: passed over", quote_input(packet.topic), packet.size
                )
            case Suback() | Unsuback() if waiting := self._pending_requests.pop(packet.packet_id, None):
                if not waiting.done():
                    waiting.set_result(packet)
            case _:
                self.fail(f"the broker sent {_packet_name(packet)}, which nobody asked for")

    async def _request(self, packet: Subscribe | Unsubscribe) -> Any:
        self.check_open()
        self.send(encode_packet(packet))
        answer = self._pending_requests[packet.packet_id] = self._loop.create_future()
        return await answer

    def _next_id(self) -> int:
        self._last_id = LAST_PUBLISH_ID + 1 if self._last_id == MAX_PACKET_ID else self._last_id + 1
        return self._last_id

    def _flush(self) -> None:
        if self._pending_output:
            data, self._pending_output, self._pending_bytes = b"".join(self._pending_output), [], 0
            if self._transport is not None and not self._transport.is_closing():
                self._transport.write(data)
                self._keep_alive_check.has_sent = True

    def _write_eof(self) -> None:
        with suppress(OSError):  # the broker may have gone before us
            if self._transport is not None and self._transport.can_write_eof():
                self._transport.write_eof()

    def _pause_reads(self) -> None:
        if not self._is_coalescing and self._transport is not None:
            self._is_coalescing = True
            self._transport.pause_reading()
            self._loop.call_later(READ_PAUSE_SECONDS, self._end_read_pause)

    def _end_read_pause(self) -> None:
        self._is_coalescing = False
        self._resume_reading_if_free()

    def _resume_reading_if_free(self) -> None:
        if self._transport is not None and not (
            self._is_held or self._is_coalescing or self._transport.is_closing()
        ):
            self._transport.resume_reading()

    def _schedule_keep_alive(self) -> None:
        if self._ping_interval:
            self._keep_alive_timer = self._loop.call_later(self._ping_interval, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        # Who does not listen cannot complain of silence, nor who was too busy to be in time for the beat.
        late = (
            self._keep_alive_timer is not None
            and self._loop.time() - self._keep_alive_timer.when() > self._ping_interval / 2
        )
        self._keep_alive_check.has_received |= self._is_held or late
        match self._keep_alive_check.next_action():
            case KeepAliveAction.PING:
                self.send(PINGREQ)
            case KeepAliveAction.DISCONNECT:
                self.fail(f"nothing was heard from the broker for {self._ping_interval:.3g} seconds")
                return
        self._schedule_keep_alive()

    def _stop_keep_alive(self) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()

    def _end(self, reason: ConnectionLost) -> None:
        if self.lost.done():
            return
        self.lost.set_result(reason)
        self._stop_keep_alive()
        for waiting in (self.connack, *self._pending_requests.values()):
            if not waiting.done():
                waiting.set_exception(reason)
        self._pending_requests.clear()
        self._listener.on_connection_lost(self, reason)


def _packet_name(packet: Packet) -> str:
    return type(packet).__name__.upper()
