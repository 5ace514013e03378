"""One client's connection, from its first byte to its end."""

from __future__ import annotations

import asyncio
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Final, cast

from meshfleet.broker.access import NOBODY
from meshfleet.errors import UnsupportedProtocol, WireError, shown
from meshfleet.wire.mqtt.decoder import FROM_CLIENTS
from meshfleet.wire.mqtt.encoder import PINGRESP, encode, pubacks
from meshfleet.wire.mqtt.packets import (
    Accept,
    Connack,
    Connect,
    Disconnect,
    Oversized,
    Packet,
    Pingreq,
    Puback,
    Publish,
    Pubrel,
    Subscribe,
    Unsubscribe,
    Will,
)
from meshfleet.wire.mqtt.parser import Parser

if TYPE_CHECKING:
    from meshfleet.broker.access import Account
    from meshfleet.broker.desk import Desk
    from meshfleet.broker.lobby import Lobby
    from meshfleet.broker.session import Session
    from meshfleet.settings import Limits


_log = logging.getLogger(__name__)

_ONLY_MESSAGES: Final = {Publish}

_MANY_BYTES: Final = 64 * 1024
"""As many as are collected before they leave."""

_STUCK: Final = 30.0
"""Seconds after which a client that takes no byte of what was sent is gone for us."""

_LINGER: Final = 5.0
"""Seconds that the last bytes have to leave after the end."""


class Connection(asyncio.BufferedProtocol):
    """Reads packets and passes them on; collects what leaves in one turn of the loop.

    All connections of a broker read into one buffer: asyncio would make one of 256 KiB for every read, which
    takes longer than all the rest.
    """

    __slots__ = (
        "_buffer",
        "_closed",
        "_deadline",
        "_desk",
        "_due",
        "_early",
        "_held",
        "_is_doomed",
        "_is_slowed",
        "_left",
        "_limits",
        "_linger",
        "_lobby",
        "_loop",
        "_out",
        "_parser",
        "_transport",
        "_welcomed",
        "access",
        "account",
        "address",
        "counts_as_failure",
        "heard",
        "keep_alive",
        "quiet",
        "session",
        "turn",
        "version",
        "will",
        "writable",
    )

    def __init__(
        self, lobby: Lobby, desk: Desk, limits: Limits, buffer: memoryview, address: str = ""
    ) -> None:
        self._lobby = lobby
        self._desk = desk
        self._limits = limits
        self._buffer = buffer
        self._loop = asyncio.get_running_loop()
        self._parser = Parser(FROM_CLIENTS, limit=limits.packet_size, pass_over=True)
        self._left = limits.publish_rate
        """Packets that it may still send in this second."""
        self._is_slowed = False
        self._out: list[bytes] = []
        self._due = 0
        self._early: list[Packet] | None = None
        """What came behind a CONNECT that is not answered yet."""
        self._closed = self._is_doomed = self._welcomed = False
        self._held = 0
        self._deadline = self._loop.time() + limits.connect_seconds
        self._linger: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.address = address
        self.account: Account | None = None
        self.access = NOBODY
        self.version = -1
        self.quiet: str | None = None
        """How its reports begin as long as only the consumer wants them, at this version of the post."""
        self.session: Session | None = None
        self.will: Will | None = None
        self.keep_alive = 0.0
        self.counts_as_failure = True
        """Whether it counts as failed if it does not log in; not if that is a fault of the service."""
        self.turn = 0
        """When it introduced itself, in the order of all connections."""
        self.heard = False
        self.writable = True

    def __str__(self) -> str:
        return f"{self.account or 'somebody'} at {self.address}"

    # What the broker does

    @property
    def is_open(self) -> bool:
        """Whether it has not ended, and is not about to."""
        return not self._closed and not self._is_doomed

    def welcome(self, *, session_present: bool) -> None:
        """Let the client in. Nothing leaves before this [MQTT-3.2.0-1]; what it said early is next."""
        self._out.insert(0, encode(Connack(session_present)))
        self._welcomed = self.heard = True
        self._flush()
        self._loop.call_soon(self._attend)

    def refuse(self, code: Accept) -> None:
        """Do not let the client in."""
        if not self._closed and self._transport is not None:
            self._transport.write(encode(Connack(code=code)))
            self.close(f"refused with return code {code:d}")

    def send(self, data: bytes) -> None:
        """Send bytes at the end of this turn of the loop, together with all others of the turn."""
        if self._closed or self._is_doomed:
            return
        if not self._out and self._welcomed:
            self._loop.call_soon(self._flush)
        self._out.append(data)
        self._due += len(data)
        if self._due > _MANY_BYTES:
            self._flush()

    def acknowledge(self, packet_ids: list[int]) -> None:
        """Send a PUBACK for each."""
        if not packet_ids:
            return
        acks = b"\x40\x02" + packet_ids[0].to_bytes(2) if len(packet_ids) == 1 else pubacks(packet_ids)
        if self._out or not self.writable or self._closed or self._transport is None:
            self.send(acks)
        else:
            self._transport.write(acks)

    def hold(self) -> None:
        """Let the network wait until `release`."""
        self._held += 1
        if self._held == 1 and self._transport is not None:
            self._transport.pause_reading()

    def release(self) -> None:
        """Read on, unless there is another reason to wait."""
        if self._held:
            self._held -= 1
            if not self._held and not self._closed and self._transport is not None:
                self._transport.resume_reading()

    def charge(self, packets: int) -> None:
        """It asked for as much work as so many packets."""
        self._left -= packets

    @property
    def is_overdrawn(self) -> bool:
        """Whether it asked for more than it may in two seconds."""
        return self._left < -self._limits.publish_rate

    def check(self, now: float) -> None:
        """Let a second pass: end what has been silent, or stuck, for too long."""
        self._left = min(self._limits.publish_rate, self._left + self._limits.publish_rate)
        if self._is_slowed and self._left > 0:
            self._is_slowed = False
            self.release()
        if not self.writable:
            self._check_progress(now)
        if self._held or (self.heard and self.session is not None):
            # While it is held, what the client says is still to be read.
            self.heard = False
            self._deadline = now + 1.5 * self.keep_alive  # [MQTT-3.1.2-24]
        elif now > self._deadline and (self.session is None or self.keep_alive):
            self.close("nothing was heard in time")

    def cut_off(self, reason: str) -> None:
        """End the connection soon, with a warning in the log: its client does not keep up.

        Not now: its will may reach other slow clients, theirs again others, and so on.
        """
        if self._is_doomed or self._closed or self.session is None:
            return
        self._is_doomed = True
        _log.warning("client %s of %s is cut off: %s", shown(self.session.client_id), self, reason)
        self._lobby.count_cut_off(self.session)
        self._loop.call_soon(partial(self.close, "it was cut off", at_once=True))

    def close(self, reason: str, *, at_once: bool = False) -> None:
        """End the connection. What was to be sent before still leaves, unless it must end at once."""
        if self._closed:
            return
        _log.info("connection of %s ends: %s", self, reason)
        self._flush()
        self._closed = True
        if self._transport is not None:
            if at_once:
                self._abort()
            else:
                self._transport.close()
                self._linger = self._loop.call_later(_LINGER, self._abort)
        self._lobby.leave(self)

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See whether there is room."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none, but behaves like one
        if not self.address and (peer := transport.get_extra_info("peername")):
            self.address = peer[0]
        raw = transport.get_extra_info("socket")
        if raw is not None:
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # for those without a keep-alive
        if not self._lobby.enter(self):
            self._closed = True
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where to read to: nobody else uses it before `buffer_updated` returns."""
        del sizehint
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        """Something was read; mostly one message, which takes the shortest way."""
        data = bytes(self._buffer[:nbytes])
        session = self.session
        if session is not None and self._early is None and not self._closed:
            message = self._parser.message(data)
            if message is not None:
                self.heard = True
                self._desk.publish(self, session, (message,), nbytes)
                self._left -= 1
                if self._left < 0:
                    self._slow_down()
                return
        self.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Pass on what came."""
        if self._closed:
            return
        parser, session = self._parser, self.session if self._early is None else None
        if session is not None and (landed := parser.pubacks(data)):
            self.heard = True
            self._left -= len(landed) - session.acknowledged(landed)
            if self._left < 0:
                self._slow_down()
            return
        packets = parser.feed(data)
        if session is not None:
            self._take(session, packets, len(data))
        elif packets:
            self._introduce(packets)
        if parser.fault is not None and not self._closed:
            self._give_up(parser.fault)

    def pause_writing(self) -> None:
        """Messages wait from now on."""
        self.writable = False

    def resume_writing(self) -> None:
        """And go on."""
        self.writable = True
        if self.session is not None and not self._closed:
            self.session.wrote(0, 0)
            self.session.send_on()

    def eof_received(self) -> bool:
        """A client that says no more has left."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """The client went, or the network did."""
        del exc
        if self._linger is not None:
            self._linger.cancel()
        self._transport = None  # asyncio fails to abort what was closed with bytes to send, and is closed
        self.close("the client is gone")

    # Inside

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _introduce(self, packets: list[Packet]) -> None:
        """The first packet is a CONNECT [MQTT-3.1.0-1]; what follows waits until we know who it is."""
        if self._early is not None:
            self._early += packets
            return
        first, *rest = packets
        if not isinstance(first, Connect):
            self.close(f"it began with {type(first).__name__}")
            return
        self._early = rest
        self.hold()
        self._lobby.introduce(self, first)

    def _attend(self) -> None:
        early, self._early = self._early or [], None
        self.release()
        if self.session is not None:
            self._take(self.session, early, 0)

    def _take(self, session: Session, packets: list[Packet], size: int) -> None:
        if not packets or self._closed:
            return
        self.heard = True
        if set(map(type, packets)) == _ONLY_MESSAGES:
            self._desk.publish(self, session, packets, size)  # type: ignore[arg-type] # just seen
        else:
            for packet in packets:
                if self.is_open:
                    self._act(session, packet)
        self._left -= len(packets)
        if self._left < 0:
            self._slow_down()

    def _act(self, session: Session, packet: Packet) -> None:
        """Do what one packet asks for."""
        match packet:
            case Oversized():
                self._desk.publish_large(self, packet)
            case Publish():
                self._desk.publish(self, session, (packet,), len(packet.topic) + len(packet.payload))
            case Puback():
                session.acknowledged((packet.packet_id,))
            case Pubrel():
                self._desk.release(self, session, packet.packet_id)
            case Subscribe():
                self._desk.subscribe(self, session, packet)
            case Unsubscribe():
                self._desk.unsubscribe(self, session, packet)
            case Pingreq():
                self.send(PINGRESP)
            case Disconnect():
                self.will = None  # [MQTT-3.14.4-3]
                self.close("it took its leave")
            case _:  # a second CONNECT [MQTT-3.1.0-2], or an answer to QoS 2, at which we send nothing
                self.close(f"{type(packet).__name__} has no place here")

    def _slow_down(self) -> None:
        """Read no more from who sends too fast, until its next second begins."""
        if not self._is_slowed and not self._closed:
            self._is_slowed = True
            self.hold()

    def _give_up(self, fault: WireError) -> None:
        """Bytes that cannot be understood end a connection [MQTT-4.8.0-1]; another version is told so."""
        if isinstance(fault, UnsupportedProtocol) and self._early is None and self.session is None:
            self._lobby.refuse(self, Accept.UNACCEPTABLE_PROTOCOL, fault.reason)  # [MQTT-3.1.2-2]
        else:
            self.close(f"it broke the protocol: {fault}")

    def _flush(self) -> None:
        """Send what is collected. What the network does not take counts as waiting for this client."""
        if not self._out or not self._welcomed or self._closed or self._transport is None:
            return
        out, self._out, self._due = self._out, [], 0
        data = out[0] if len(out) == 1 else b"".join(out)
        self._transport.write(data)
        if not self.writable and self.session is not None:
            self.session.wrote(len(data), self._transport.get_write_buffer_size())

    def _check_progress(self, now: float) -> None:
        """Cut a client off that has taken nothing of what was written for too long."""
        session = self.session
        if session is None or self._closed or self._transport is None:
            return
        session.wrote(0, backlog := self._transport.get_write_buffer_size())
        if session.stalled(now) > _STUCK:
            self.cut_off(f"it has read nothing for {_STUCK:g} seconds, and {backlog} bytes wait to be sent")
