"""Server side of the connection of one MQTT client, from its first byte to its end."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from meshfleet.errors import quote_input
from meshfleet.errors.protocol import MalformedInput, UnsupportedProtocol
from meshfleet.mqtt.broker.auth import NO_PERMISSIONS, Account, AccountKind, TopicPermissions
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, FROM_HOME_ASSISTANT
from meshfleet.mqtt.codec.encoder import PINGRESP, encode_packet, encode_pubacks
from meshfleet.mqtt.codec.packets import (
    Connack,
    Connect,
    ConnectReturnCode,
    Disconnect,
    OversizedPublish,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Pubrel,
    Subscribe,
    Unsubscribe,
    Will,
    packet_name,
)
from meshfleet.mqtt.codec.parser import PacketParser

if TYPE_CHECKING:
    from meshfleet.mqtt.broker.handshake import ConnectHandler
    from meshfleet.mqtt.broker.packet_handler import PacketHandler
    from meshfleet.mqtt.broker.session import MqttSession
    from meshfleet.mqtt.broker_limits import BrokerLimits


_log = logging.getLogger(__name__)

_ONLY_MESSAGES: Final = {Publish}

_FLUSH_BYTES: Final = 64 * 1024
"""Maximum bytes of output collected before they are written to the transport."""

_STUCK_SECONDS: Final = 30.0
"""Seconds after which a client that reads none of the bytes sent to it is disconnected."""

_HOME_ASSISTANT_FILTERS_PER_PACKET: Final = 25
"""Topic filters or retained messages that cost Home Assistant as much of its packet budget as one packet. It
subscribes to thousands of filters at once, and would see no state of a device whose filter is refused."""

_CLOSE_SECONDS: Final = 5.0
"""Seconds to send the last bytes after `close`, before the connection is aborted."""


class ServerConnection(asyncio.BufferedProtocol):
    """asyncio protocol of one client connection: parses packets, dispatches them, and collects output.

    Output is collected for one iteration of the event loop. All connections of a broker read into one buffer:
    asyncio would allocate 256 KiB for every read, which takes longer than everything else.
    """

    __slots__ = (
        "_buffer",
        "_close_timer",
        "_connect_handler",
        "_deadline",
        "_early_packets",
        "_filters_per_packet",
        "_is_accepted",
        "_is_closed",
        "_is_cut_off",
        "_is_throttled",
        "_limits",
        "_loop",
        "_packet_budget",
        "_packet_handler",
        "_parser",
        "_pending_bytes",
        "_pending_output",
        "_read_holds",
        "_transport",
        "account",
        "address",
        "consumer_only_prefix",
        "counts_as_failure",
        "has_received",
        "is_writable",
        "keep_alive",
        "number",
        "permissions",
        "routes_version",
        "session",
        "will",
    )

    def __init__(
        self,
        connect_handler: ConnectHandler,
        packet_handler: PacketHandler,
        limits: BrokerLimits,
        buffer: memoryview,
        address: str = "",
    ) -> None:
        self._connect_handler = connect_handler
        self._packet_handler = packet_handler
        self._limits = limits
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._parser = PacketParser(FROM_CLIENTS, limit=limits.packet_size, skip_oversized=True)
        self._packet_budget: float = limits.publish_rate
        """Number of packets that the client may still send in this second; negative if it sent too many."""
        self._filters_per_packet = 1
        """Number of topic filters or retained messages that cost the client as much as one packet."""
        self._is_throttled = False
        self._pending_output: list[bytes] = []
        self._pending_bytes = 0
        self._early_packets: list[Packet] | None = None
        """Packets received after CONNECT and before its CONNACK; None at any other time."""
        self._is_closed = self._is_cut_off = self._is_accepted = False
        self._read_holds = 0
        """Number of `hold_reading` calls without `release_reading`; reading is paused while it is above 0."""
        self._deadline = self._loop.time() + limits.connect_seconds
        self._close_timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.address = address
        self.account: Account | None = None
        self.permissions = NO_PERMISSIONS
        self.routes_version = -1
        self.consumer_only_prefix: str | None = None
        """Topic prefix below which only the report consumer receives messages; valid for `routes_version`."""
        self.session: MqttSession | None = None
        self.will: Will | None = None
        self.keep_alive = 0.0
        """Keep alive interval in seconds; 0 turns the keep alive off."""
        self.counts_as_failure = True
        """Whether the end of this connection before a login counts as a failed login; False after an error of
        the service."""
        self.number = 0
        """Sequence number of this connection's CONNECT among all CONNECTs, from 1; 0 before CONNECT."""
        self.has_received = False
        """Whether a packet was received since the last check of the keep alive."""
        self.is_writable = True

    def __str__(self) -> str:
        return f"{self.account or 'unauthenticated client'} at {self.address}"

    # Called by the broker

    @property
    def is_open(self) -> bool:
        """Whether the connection is neither closed nor about to be cut off."""
        return not self._is_closed and not self._is_cut_off

    def accept(self, *, session_present: bool) -> None:
        """Accept the client: send CONNACK before any other packet [MQTT-3.2.0-1].

        Then handle the packets that the client sent before it received CONNACK.
        """
        self._pending_output.insert(0, encode_packet(Connack(session_present)))
        self._is_accepted = self.has_received = True
        self._flush()
        self._loop.call_soon(self._handle_early_packets)

    def refuse(self, code: ConnectReturnCode) -> None:
        """Send CONNACK with this return code and close the connection."""
        if not self._is_closed and self._transport is not None:
            self._transport.write(encode_packet(Connack(code=code)))
            self.close(f"CONNECT refused with return code {code:d}")

    def send(self, data: bytes) -> None:
        """Send bytes to the client, together with the other output of this event loop iteration."""
        if self._is_closed or self._is_cut_off:
            return
        if not self._pending_output and self._is_accepted:
            self._loop.call_soon(self._flush)
        self._pending_output.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes > _FLUSH_BYTES:
            self._flush()

    def send_pubacks(self, packet_ids: list[int]) -> None:
        """Send a PUBACK for each packet identifier."""
        if not packet_ids:
            return
        acks = b"\x40\x02" + packet_ids[0].to_bytes(2) if len(packet_ids) == 1 else encode_pubacks(packet_ids)
        if self._pending_output or not self.is_writable or self._is_closed or self._transport is None:
            self.send(acks)
        else:
            self._transport.write(acks)

    def hold_reading(self) -> None:
        """Stop reading from the client until `release_reading` was called as often as this method."""
        self._read_holds += 1
        if self._read_holds == 1 and self._transport is not None:
            self._transport.pause_reading()

    def release_reading(self) -> None:
        """Undo one call of `hold_reading`, and resume reading from the client after the last one."""
        if self._read_holds:
            self._read_holds -= 1
            if not self._read_holds and not self._is_closed and self._transport is not None:
                self._transport.resume_reading()

    def admit(self, account: Account, permissions: TopicPermissions) -> None:
        """Set the account of the client, which was authenticated, with its permissions and limits."""
        self.account, self.permissions = account, permissions
        if account.kind is AccountKind.HOME_ASSISTANT:
            self._parser.limit = account.adapt_limits(self._limits).packet_size
            self._parser.decoders = FROM_HOME_ASSISTANT
            self._filters_per_packet = _HOME_ASSISTANT_FILTERS_PER_PACKET

    def charge_packets(self, count: int) -> None:
        """Reduce the packet budget of the client for `count` topic filters or retained messages."""
        self._packet_budget -= count / self._filters_per_packet

    @property
    def is_over_budget(self) -> bool:
        """Whether the client has used more packets than it may send in two seconds."""
        return self._packet_budget < -self._limits.publish_rate

    def check_deadlines(self, now: float) -> None:
        """Refill the packet budget, and close the connection if the client is silent or stuck for too long.

        Called every second; `now` is the time of the event loop in seconds.
        """
        self._packet_budget = min(self._limits.publish_rate, self._packet_budget + self._limits.publish_rate)
        if self._is_throttled and self._packet_budget > 0:
            self._is_throttled = False
            self.release_reading()
        if not self.is_writable:
            self._check_progress(now)
        if self._read_holds or (self.has_received and self.session is not None):
            # While reading is held, packets of the client may wait in the socket.
            self.has_received = False
            self._deadline = now + 1.5 * self.keep_alive  # [MQTT-3.1.2-24]
        elif now > self._deadline and (self.session is None or self.keep_alive):
            self.close("no packet received in time")

    def cut_off(self, reason: str) -> None:
        """Log a warning and close the connection soon, because its client does not keep up.

        Closing at once could recurse: the will message of this client may cut off other slow clients, whose
        will messages may cut off more clients.
        """
        if self._is_cut_off or self._is_closed or self.session is None:
            return
        self._is_cut_off = True
        _log.warning("client %s of %s is cut off: %s", quote_input(self.session.client_id), self, reason)
        self._connect_handler.count_cut_off(self.session)
        self._loop.call_soon(partial(self.close, "the client was cut off", at_once=True))

    def close(self, reason: str, *, at_once: bool = False) -> None:
        """Close the connection to the client, and log the reason. Do nothing if it is closed already.

        Pending output is still sent, unless `at_once` is set.
        """
        if self._is_closed:
            return
        _log.info("connection of %s closed: %s", self, reason)
        self._flush()
        self._is_closed = True
        if self._transport is not None:
            if at_once:
                self._abort()
            else:
                self._transport.close()
                self._close_timer = self._loop.call_later(_CLOSE_SECONDS, self._abort)
        self._connect_handler.handle_disconnect(self)

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Register the connection; abort it if a limit is reached."""
        # uvloop's transport has another base class, but the same methods.
        self._transport = cast("asyncio.Transport", transport)
        if not self.address and (peer := transport.get_extra_info("peername")):
            self.address = peer[0]
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # for clients without a keep alive
        if not self._connect_handler.register(self):
            self._is_closed = True
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the shared read buffer: no other connection uses it before `buffer_updated` returns."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Handle the bytes of one read. A single PUBLISH, the most frequent case, takes the fast path."""
        data = bytes(self._buffer[:nbytes])
        session = self.session
        if session is not None and self._early_packets is None and not self._is_closed:
            message = self._parser.parse_single_publish(data)
            if message is not None:
                self.has_received = True
                self._packet_handler.handle_publish(self, session, (message,), nbytes)
                self._packet_budget -= 1
                if self._packet_budget < 0:
                    self._throttle()
                return
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and handle the packets that are complete."""
        if self._is_closed:
            return
        parser, session = self._parser, self.session if self._early_packets is None else None
        if session is not None and (packet_ids := parser.parse_pubacks(data)):
            self.has_received = True
            self._packet_budget -= len(packet_ids) - session.handle_pubacks(packet_ids)
            if self._packet_budget < 0:
                self._throttle()
            return
        packets = parser.feed(data)
        if session is not None:
            self._handle_packets(session, packets, len(data))
        elif packets:
            self._handle_first_packets(packets)
        if parser.fault is not None and not self._is_closed:
            self._handle_fault(parser.fault)

    def pause_writing(self) -> None:
        """Stop sending queued messages: the write buffer is full."""
        self.is_writable = False

    def resume_writing(self) -> None:
        """Send queued messages again: the write buffer has space."""
        self.is_writable = True
        if self.session is not None and not self._is_closed:
            self.session.update_backlog(0, 0)
            self.session.send_queued()

    def eof_received(self) -> bool:
        """Return False, so that asyncio closes the transport when the client has closed its side."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Release the connection after the client closed it or the network failed."""
        del exc
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._transport = None  # asyncio cannot abort a closed transport that still had bytes to send
        self.close("the client or the network closed it")

    # Internal

    def _abort(self) -> None:
        """Close the network connection at once, without sending what is still in the write buffer."""
        if self._transport is not None:
            self._transport.abort()

    def _handle_first_packets(self, packets: list[Packet]) -> None:
        """Handle CONNECT, which must be the first packet [MQTT-3.1.0-1]. Later packets wait for CONNACK."""
        if self._early_packets is not None:
            self._early_packets += packets
            return
        first, *rest = packets
        if not isinstance(first, Connect):
            self.close(f"the first packet is {packet_name(first)}, not CONNECT")
            return
        self._early_packets = rest
        self.hold_reading()
        self._connect_handler.handle_connect(self, first)

    def _handle_early_packets(self) -> None:
        """Handle the packets that arrived between CONNECT and its CONNACK."""
        packets, self._early_packets = self._early_packets or [], None
        self.release_reading()
        if self.session is not None:
            self._handle_packets(self.session, packets, 0)

    def _handle_packets(self, session: MqttSession, packets: list[Packet], size: int) -> None:
        """Handle the packets of one read of `size` bytes, and charge them to the packet budget."""
        if not packets or self._is_closed:
            return
        self.has_received = True
        if set(map(type, packets)) == _ONLY_MESSAGES:
            self._packet_handler.handle_publish(self, session, packets, size)  # type: ignore[arg-type] # checked above
        else:
            for packet in packets:
                if self.is_open:
                    self._handle_packet(session, packet)
        self._packet_budget -= len(packets)
        if self._packet_budget < 0:
            self._throttle()

    def _handle_packet(self, session: MqttSession, packet: Packet) -> None:
        match packet:
            case OversizedPublish():
                self._packet_handler.handle_oversized(self, packet)
            case Publish():
                self._packet_handler.handle_publish(
                    self, session, (packet,), len(packet.topic) + len(packet.payload)
                )
            case Puback():
                session.handle_pubacks((packet.packet_id,))
            case Pubrel():
                self._packet_handler.handle_pubrel(self, session, packet.packet_id)
            case Subscribe():
                self._packet_handler.handle_subscribe(self, session, packet)
            case Unsubscribe():
                self._packet_handler.handle_unsubscribe(self, session, packet)
            case Pingreq():
                self.send(PINGRESP)
            case Disconnect():
                self.will = None  # [MQTT-3.14.4-3]
                self.close("DISCONNECT received")
            case _:  # a second CONNECT [MQTT-3.1.0-2], or PUBREC or PUBCOMP: the broker never sends at QoS 2
                self.close(f"unexpected {packet_name(packet)}")

    def _throttle(self) -> None:
        """Stop reading from a client that sends too fast, until its packet budget is refilled."""
        if not self._is_throttled and not self._is_closed:
            self._is_throttled = True
            self.hold_reading()

    def _handle_fault(self, fault: MalformedInput) -> None:
        """Close the connection after a protocol violation [MQTT-4.8.0-1].

        If the client uses another MQTT version, refuse the connection with a CONNACK first.
        """
        if isinstance(fault, UnsupportedProtocol) and self._early_packets is None and self.session is None:
            code = ConnectReturnCode.UNACCEPTABLE_PROTOCOL  # [MQTT-3.1.2-2]
            self._connect_handler.refuse(self, code, fault.reason)
        else:
            self.close(f"protocol violation: {fault}")

    def _flush(self) -> None:
        """Write the collected output. Bytes that stay in the write buffer count as queued for the client."""
        if not self._pending_output or not self._is_accepted or self._is_closed or self._transport is None:
            return
        chunks, self._pending_output, self._pending_bytes = self._pending_output, [], 0
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self._transport.write(data)
        if not self.is_writable and self.session is not None:
            self.session.update_backlog(len(data), self._transport.get_write_buffer_size())

    def _check_progress(self, now: float) -> None:
        """Cut off the client if bytes wait to be sent and it has read none of them for too long."""
        session = self.session
        if session is None or self._is_closed or self._transport is None:
            return
        session.update_backlog(0, backlog := self._transport.get_write_buffer_size())
        if session.measure_stall(now) > _STUCK_SECONDS:
            self.cut_off(
                f"it has read nothing for {_STUCK_SECONDS:g} seconds, {backlog} bytes are waiting to be sent"
            )
