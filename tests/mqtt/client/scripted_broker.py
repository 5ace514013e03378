"""A broker that does what a test tells it: a real peer on a TCP port of the loopback interface.

It reads with the server's side of our codec and records everything. By itself it only answers CONNECT, with
`welcome`, and closes when the client has; a test that wants even that to be different says so.
"""

from __future__ import annotations

import asyncio
import os
import socket
import struct
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from msgspec.structs import replace

from meshfleet.errors.mqtt import BrokerUnreachable
from meshfleet.mqtt.client import BrokerAddress, ExponentialBackoff, MqttClient, MqttOptions, Will
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import (
    Connack,
    Connect,
    ConnectReturnCode,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Publish,
    Suback,
    Subscribe,
)
from meshfleet.mqtt.codec.parser import PacketParser
from tests.eventually import RETRY_TIMEOUTS, eventually_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

_Packet = TypeVar("_Packet", bound=Packet)
_Result = TypeVar("_Result")

TIMEOUT: Final = 10.0
"""Seconds until a test gives up waiting; reached only when something is broken."""

QUICK_OPTIONS: Final = MqttOptions(timeout=10, backoff=ExponentialBackoff(initial=0.01, maximum=0.05))
NO_RECONNECT: Final = ExponentialBackoff(initial=3600, maximum=3600)
"""Delays of a link that is not to come back while the test lasts."""

PING_INTERVALS: Final = tuple(limit / 4 for limit in RETRY_TIMEOUTS)
"""Seconds between two pings of links in tests.

A machine may stall for such an interval, and a ping is answered too late: then the test tries the next one.
"""

_ROOM: Final = 0x4000
"""Bytes that the network takes for a peer that does not read, so that it soon takes no more."""


async def with_timeout(awaitable: Awaitable[_Result]) -> _Result:
    """Wait for a deed, but not for ever."""
    async with asyncio.timeout(TIMEOUT):
        return await awaitable


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition, but not for ever."""
    await eventually_async(condition)


async def wait_until_stable(value: Callable[[], int]) -> int:
    """Wait until a number moves no more. Called too early, it hides a failure but never makes one."""
    last, same = value(), 0
    async with asyncio.timeout(TIMEOUT):
        while same < 40:
            await asyncio.sleep(0.005)
            now = value()
            last, same = now, same + 1 if now == last else 0
    return last


class Peer(asyncio.Protocol):
    """One client, seen from the broker."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._parser = PacketParser(FROM_CLIENTS)
        self._transport: asyncio.Transport | None = None
        self._read = 0
        self._changed = asyncio.Event()
        self.received: list[Packet] = []
        self.finished = False
        """The client has said that nothing follows."""
        self.gone = False
        self.fault: Exception | None = None
        """Why it is gone, unless it left in order."""
        self.lingers = False
        """Whether to stay when the client has finished."""

    # What a test tells it

    async def next(self) -> Packet:
        """The next packet."""
        async with asyncio.timeout(TIMEOUT):
            while self._read == len(self.received):
                assert not self.gone, "the client is gone"
                self._changed.clear()
                await self._changed.wait()
        self._read += 1
        return self.received[self._read - 1]

    async def expect(self, kind: type[_Packet]) -> _Packet:
        """The next packet, which must be one of these."""
        packet = await self.next()
        assert isinstance(packet, kind), packet
        return packet

    async def publishes(self, count: int) -> list[Publish]:
        """The next packets, which must be messages."""
        return [await self.expect(Publish) for _ in range(count)]

    @property
    def unread(self) -> list[Packet]:
        """Packets that came and were not asked for yet."""
        return self.received[self._read :]

    def send(self, *packets: Packet | bytes) -> None:
        """Send packets, or bytes that need not be any, in one piece."""
        raw = [packet if isinstance(packet, bytes) else encode_packet(packet) for packet in packets]
        self.transport.write(b"".join(raw))

    def acknowledge(self, messages: Iterable[Publish]) -> None:
        """Send the PUBACKs of messages."""
        self.send(*(Puback(message.packet_id) for message in messages))

    async def grant(self, *codes: int) -> Subscribe:
        """Read a SUBSCRIBE and answer it: with what it asks for, or with these codes."""
        asked = await self.expect(Subscribe)
        self.send(Suback(asked.packet_id, codes or tuple(qos for _, qos in asked.filters)))
        return asked

    def stall(self) -> None:
        """Stop reading."""
        self.transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        self.transport.resume_reading()

    def close(self) -> None:
        """Send what is due and close."""
        self.transport.close()

    def reset(self) -> None:
        """Break the connection off, as a machine does that was switched off and is back."""
        with socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    @property
    def waiting(self) -> int:
        """Bytes that the network did not take yet."""
        return self.transport.get_write_buffer_size()

    @property
    def transport(self) -> asyncio.Transport:
        """Its end of the connection."""
        assert self._transport is not None
        return self._transport

    # What asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none, but behaves like one
        self._broker.on_connection(self)

    def data_received(self, data: bytes) -> None:
        packets = self._parser.feed(data)
        assert self._parser.fault is None
        self.received += packets
        if packets and isinstance(packets[0], Connect):
            self._broker.on_connect(self)
        self._changed.set()

    def eof_received(self) -> bool:
        self.finished = True
        self._changed.set()
        return self.lingers

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone = True
        self.fault = exc
        self._changed.set()


class ScriptedBroker:
    """Listens, and hands each client that it lets in to the test."""

    def __init__(self, connack: Connack | None = Connack()) -> None:  # noqa: B008 # frozen
        self.connack = connack
        """The answer to every CONNECT; None leaves it to the test."""
        self.peers: list[Peer] = []
        self.refused = 0
        self._arrived: deque[Peer] = deque()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _ROOM)
        listening.bind(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Peer(self), sock=listening)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self.peers:
            peer.transport.abort()
        await wait_until(lambda: all(peer.gone for peer in self.peers))
        await self._server.wait_closed()

    async def accept(self) -> Peer:
        """The next client: its CONNECT has been read and answered, unless that is left to the test."""
        await wait_until(lambda: self._arrived)
        peer = self._arrived.popleft()
        if self.connack is not None:
            await peer.expect(Connect)
        return peer

    def refuse(self) -> None:
        """Let nobody in from now on: an outage."""
        self.connack = Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)

    def on_connection(self, peer: Peer) -> None:
        """A client is there."""
        self.peers.append(peer)
        if self.connack is None:
            self._arrived.append(peer)

    def on_connect(self, peer: Peer) -> None:
        """And has said who it is."""
        if self.connack is None:
            return
        peer.send(self.connack)
        if self.connack.code == ConnectReturnCode.ACCEPTED:
            self._arrived.append(peer)
        else:
            self.refused += 1

    @property
    def address(self) -> BrokerAddress:
        """Where it listens."""
        return BrokerAddress(host="127.0.0.1", port=self.port)

    def create_client(
        self,
        *,
        clean: bool = False,
        will: Will | None = None,
        user: tuple[str, str | None] | None = None,
        **settings: Any,
    ) -> MqttClient:
        """A link to here, with the quick options of tests except for these settings."""
        address = self.address
        if user is not None:
            address = replace(address, user=user[0], password=user[1])
        return MqttClient(address, "ours", clean=clean, will=will, options=replace(QUICK_OPTIONS, **settings))


@asynccontextmanager
async def impatient_link(**settings: Any) -> AsyncIterator[tuple[ScriptedBroker, MqttClient, Peer]]:
    """Connect a link that soon gives up waiting for its broker. The test closes it.

    The same limit holds for connecting, and a machine may stall until it is over: then the next one is tried.
    """
    for limit in RETRY_TIMEOUTS:
        async with ScriptedBroker() as broker:
            link = broker.create_client(timeout=limit, **settings)
            try:
                await link.__aenter__()
            except BrokerUnreachable:
                continue
            yield broker, link, await broker.accept()
            return
    raise AssertionError(f"no link was connected within {RETRY_TIMEOUTS[-1]:g} s")


async def answered_pings(peer: Peer, count: int) -> bool:
    """Answer the next packets, which must be pings. Return False if the client left meanwhile."""
    for _ in range(count):
        await wait_until(lambda: peer.unread or peer.gone)
        if peer.gone:
            return False
        await peer.expect(Pingreq)
        peer.send(Pingresp())
    return True
