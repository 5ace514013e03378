"""One connection to an MQTT broker, from CONNECT to its end. `Reconnector` opens the next connection."""

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
    packet_name,
)
from meshfleet.mqtt.codec.parser import PacketParser
from meshfleet.mqtt.network_errors import describe_network_error

# Short pauses between reads under load, so that one wake-up handles more packets.

READ_PAUSE_SECONDS: Final = 0.005
"""Seconds of one pause between reads from the socket under load."""

_BUSY_PACKETS: Final = 32
"""Minimum packets within `READ_PAUSE_SECONDS` for a connection to count as busy. Reading fewer packets costs
less than a pause."""

_LARGE_READ_BYTES: Final = 0x1_0000
"""Minimum bytes of a large read. Reading does not pause after a large read: the wake-up was a small part of
the cost, and more bytes may wait."""


class ReadCoalescer:
    """Decides after each socket read whether to pause reading, so that more packets arrive per read."""

    __slots__ = ("_packets", "_window_start")

    def __init__(self) -> None:
        self._window_start = 0.0
        self._packets = 0

    def should_pause(self, packet_count: int, read_bytes: int, now: float) -> bool:
        """Return whether to pause reading after a read of `packet_count` packets in `read_bytes` bytes.

        `now` is the time of the event loop in seconds.
        """
        if now - self._window_start > READ_PAUSE_SECONDS:
            self._window_start = now
            self._packets = 0
        self._packets += packet_count
        return self._packets >= _BUSY_PACKETS and read_bytes < _LARGE_READ_BYTES


# Keep alive: when to send PINGREQ, and when to give up a connection. The connection owns the timer.

CHECKS_PER_KEEP_ALIVE: Final = 3
"""Number of checks per keep alive interval, so that a packet is sent before the interval has passed."""


class KeepAliveAction(Enum):
    """Action that a keep alive check asks for."""

    NOTHING = auto()
    PING = auto()
    DISCONNECT = auto()


class KeepAliveCheck:
    """Decides when to send PINGREQ and when to give up a silent connection.

    The connection sets `has_received` and `has_sent`, and its timer calls `next_action`.
    """

    __slots__ = ("_pinged", "has_received", "has_sent")

    def __init__(self) -> None:
        self.has_received = False
        """Whether bytes were received since the last check."""
        self.has_sent = False
        """Whether bytes were sent since the last check."""
        self._pinged = False

    def next_action(self) -> KeepAliveAction:
        """Return PING if nothing was sent or nothing received since the last check.

        Return DISCONNECT if nothing was received since the last PING.
        """
        has_received, has_sent, pinged = self.has_received, self.has_sent, self._pinged
        self.has_received = self.has_sent = self._pinged = False
        if has_received and has_sent:
            return KeepAliveAction.NOTHING
        if pinged and not has_received:
            return KeepAliveAction.DISCONNECT
        self._pinged = True
        return KeepAliveAction.PING


if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    class ConnectionListener(Protocol):
        """Receives the events of a `ClientConnection`."""

        def on_messages(self, connection: ClientConnection, messages: list[Publish], size: int) -> None:
            """Handle the messages of one read of `size` bytes."""

        def on_pubacks(self, packet_ids: Sequence[int]) -> None:
            """Handle acknowledgements of published messages."""

        def on_writable(self) -> None:
            """Resume sending: the write buffer has space again."""

        def on_connection_lost(self, connection: ClientConnection, reason: ConnectionLost) -> None:
            """Handle the end of the connection."""


_log = logging.getLogger(__name__)

_FLUSH_BYTES: Final = 64 * 1024
"""Maximum bytes of output collected before they are written to the transport."""


class ClientConnection(asyncio.Protocol):
    """MQTT client protocol over a transport: handshake, keep alive, one write per event loop iteration."""

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
        # An oversized message must not end the connection: the broker would resend it on the next one.
        self._parser = PacketParser(FROM_SERVERS, limit=max_packet_bytes, highest_qos=1, skip_oversized=True)
        self._read_coalescer = ReadCoalescer()
        self._keep_alive_check = KeepAliveCheck()
        self._pending_output = [encode_packet(connect)]  # sent as soon as there is a transport
        self._pending_requests: dict[int, asyncio.Future[Any]] = {}
        self._last_id = LAST_PUBLISH_ID
        self._pending_bytes = self._read_bytes = 0
        self._is_held = self._is_coalescing = self._is_closing = False
        self._keep_alive_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.ack_queue = AckQueue(self.send)
        self.is_writable = True
        self.connack: asyncio.Future[Connack] = self._loop.create_future()
        """Future of the CONNACK; the future fails if the connection ends before CONNACK arrives."""
        self.lost: asyncio.Future[ConnectionLost] = self._loop.create_future()
        """Future that is done when the connection has ended; its result is the reason."""

    # Called by the client

    def send(self, data: bytes) -> None:
        """Send bytes to the broker, together with the other output of this event loop iteration."""
        if self._is_closing:
            return
        if not self._pending_output:
            self._loop.call_soon(self._flush)
        self._pending_output.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes > _FLUSH_BYTES:
            self._flush()

    async def subscribe(self, filters: Sequence[tuple[str, int]]) -> list[str]:
        """Send SUBSCRIBE and wait for SUBACK. Return the filters that were refused or granted a lower QoS."""
        response = await self._request(Subscribe(self._next_request_id(), tuple(filters)))
        if not isinstance(response, Suback) or len(response.codes) != len(filters):
            raise self.fail("the response of the broker does not match the request")
        granted = zip(filters, response.codes, strict=True)
        return [topic_filter for (topic_filter, qos), code in granted if code < qos or code == SUBACK_FAILURE]

    async def unsubscribe(self, filters: Sequence[str]) -> None:
        """Send UNSUBSCRIBE and wait for UNSUBACK."""
        if not isinstance(
            await self._request(Unsubscribe(self._next_request_id(), tuple(filters))), Unsuback
        ):
            raise self.fail("the response of the broker does not match the request")

    def check_open(self) -> None:
        """Raise `ConnectionLost` with the reason if the connection has ended."""
        if self.lost.done():
            raise self.lost.result()

    def hold_reading(self) -> None:
        """Stop reading from the broker until `release_reading` is called."""
        if not self._is_held and self._transport is not None:
            self._is_held = True
            self._transport.pause_reading()

    def release_reading(self) -> None:
        """Resume reading from the broker after `hold_reading`."""
        if self._is_held:
            self._is_held = False
            self._keep_alive_check.has_received = True  # packets of the broker may wait in the socket
            self._resume_reading_unless_paused()

    async def disconnect(self, timeout_seconds: float) -> None:
        """Send pending output and DISCONNECT, and wait until the broker has closed the connection."""
        self.send(DISCONNECT)
        self._flush()
        self._is_closing = True
        self._stop_keep_alive()
        self.release_reading()
        # Closing a socket with unread bytes resets the connection, and the last bytes sent may be lost with
        # it. So the broker closes first; its remaining bytes are read and ignored.
        try:
            self._write_eof()
            await asyncio.wait((self.lost,), timeout=timeout_seconds)
        finally:
            self.abort()

    def fail(self, reason: str) -> ConnectionLost:
        """End the connection at once. Return a `ConnectionLost` with this reason, for the caller to raise."""
        lost = ConnectionLost(reason)
        self._handle_end(lost)
        self.abort()
        return lost

    def cancel(self) -> None:
        """End the connection, even if it is not established yet, without notifying the listener."""
        self.connack.cancel()
        if not self.lost.done():
            self.lost.set_result(ConnectionLost("the connection attempt was canceled"))
        self._stop_keep_alive()
        self.abort()

    def abort(self) -> None:
        """Close the transport at once, without sending pending output."""
        if self._transport is not None:
            self._transport.abort()

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send CONNECT and start the keep alive."""
        # uvloop's transport has another base class, but the same methods.
        self._transport = cast("asyncio.Transport", transport)
        if self.lost.done():
            self.abort()
            return
        self._flush()
        self._schedule_keep_alive()

    def data_received(self, data: bytes) -> None:
        """Parse received bytes, handle the packets that are complete, and pause reading under load."""
        self._keep_alive_check.has_received = True
        if self._is_closing or self.lost.done():
            return
        if self.connack.done() and (packet_ids := self._parser.parse_pubacks(data)):
            self._listener.on_pubacks(packet_ids)
            if self._read_coalescer.should_pause(len(packet_ids), len(data), self._loop.time()):
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
            self.fail(f"protocol violation by the broker: {self._parser.fault}")

    def pause_writing(self) -> None:
        """Stop publishing: the write buffer is full."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Resume publishing: the write buffer has space again."""
        self.is_writable = True
        self._listener.on_writable()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the connection after the broker closed it or the network failed."""
        self._transport = None  # asyncio cannot abort a closed transport that still had bytes to send
        reason = ConnectionLost(
            "the broker closed the connection" if exc is None else describe_network_error(exc)
        )
        self._handle_end(reason)

    # Internal

    def _handle_packets(self, packets: list[Packet], size: int) -> None:
        packet_types = set(map(type, packets))
        if packet_types == {Publish} and self.connack.done():
            self._listener.on_messages(self, packets, size)  # type: ignore[arg-type] # checked above
            return
        if not self.connack.done():
            self._handle_connack(packets.pop(0))
            if self._is_closing or self.lost.done():
                return
        if packet_ids := [packet.packet_id for packet in packets if type(packet) is Puback]:
            self._listener.on_pubacks(packet_ids)
        if messages := [packet for packet in packets if isinstance(packet, Publish)]:
            self._listener.on_messages(self, messages, size)
        for packet in packets:
            if type(packet) is not Puback and type(packet) is not Publish:
                self._handle_packet(packet)

    def _handle_connack(self, packet: Packet) -> None:
        if isinstance(packet, Connack):
            self.connack.set_result(packet)
            # Packets after a refusal are ignored.
            self._is_closing = packet.code != ConnectReturnCode.ACCEPTED
        else:
            self.fail(f"the broker sent {packet_name(packet)} instead of CONNACK")

    def _handle_packet(self, packet: Packet) -> None:
        match packet:
            case Pingresp():
                pass
            case OversizedPublish():
                _log.warning(
                    "payload of a message on %s skipped: its %d bytes exceed the maximum packet size",
                    quote_input(packet.topic),
                    packet.size,
                )
            case Suback() | Unsuback() if waiting := self._pending_requests.pop(packet.packet_id, None):
                if not waiting.done():
                    waiting.set_result(packet)
            case _:
                self.fail(f"the broker sent an unexpected {packet_name(packet)}")

    async def _request(self, packet: Subscribe | Unsubscribe) -> Any:
        """Send SUBSCRIBE or UNSUBSCRIBE, and return the packet with which the broker responds."""
        self.check_open()
        self.send(encode_packet(packet))
        response = self._pending_requests[packet.packet_id] = self._loop.create_future()
        return await response

    def _next_request_id(self) -> int:
        self._last_id = LAST_PUBLISH_ID + 1 if self._last_id == MAX_PACKET_ID else self._last_id + 1
        return self._last_id

    def _flush(self) -> None:
        if self._pending_output:
            data, self._pending_output, self._pending_bytes = b"".join(self._pending_output), [], 0
            if self._transport is not None and not self._transport.is_closing():
                self._transport.write(data)
                self._keep_alive_check.has_sent = True

    def _write_eof(self) -> None:
        with suppress(OSError):  # the broker may have closed the connection already
            if self._transport is not None and self._transport.can_write_eof():
                self._transport.write_eof()

    def _pause_reads(self) -> None:
        """Stop reading for `READ_PAUSE_SECONDS`, so that the next read returns more packets."""
        if not self._is_coalescing and self._transport is not None:
            self._is_coalescing = True
            self._transport.pause_reading()
            self._loop.call_later(READ_PAUSE_SECONDS, self._end_read_pause)

    def _end_read_pause(self) -> None:
        self._is_coalescing = False
        self._resume_reading_unless_paused()

    def _resume_reading_unless_paused(self) -> None:
        if self._transport is not None and not (
            self._is_held or self._is_coalescing or self._transport.is_closing()
        ):
            self._transport.resume_reading()

    def _schedule_keep_alive(self) -> None:
        if self._ping_interval:
            self._keep_alive_timer = self._loop.call_later(self._ping_interval, self._check_keep_alive)

    def _check_keep_alive(self) -> None:
        """Send PINGREQ, or end the connection, if the connection was silent since the last check."""
        # While reading is held, or if this check is late because the event loop was busy, packets of the
        # broker may wait in the socket.
        is_late = (
            self._keep_alive_timer is not None
            and self._loop.time() - self._keep_alive_timer.when() > self._ping_interval / 2
        )
        self._keep_alive_check.has_received |= self._is_held or is_late
        match self._keep_alive_check.next_action():
            case KeepAliveAction.PING:
                self.send(PINGREQ)
            case KeepAliveAction.DISCONNECT:
                self.fail(f"no packet received from the broker for {self._ping_interval:.3g} seconds")
                return
        self._schedule_keep_alive()

    def _stop_keep_alive(self) -> None:
        if self._keep_alive_timer is not None:
            self._keep_alive_timer.cancel()

    def _handle_end(self, reason: ConnectionLost) -> None:
        """Fail everything that waits on the connection, and notify the listener. Do this only once."""
        if self.lost.done():
            return
        self.lost.set_result(reason)
        self._stop_keep_alive()
        for waiting in (self.connack, *self._pending_requests.values()):
            if not waiting.done():
                waiting.set_exception(reason)
        self._pending_requests.clear()
        self._listener.on_connection_lost(self, reason)
