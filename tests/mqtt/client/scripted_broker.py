"""Broker that a test controls: a real peer on a TCP port of the loopback interface.

It decodes with the server side of the codec and records everything. By itself it only responds to CONNECT,
with `connack`, and closes when the client has; a test can change even that.
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
"""Seconds until a test gives up waiting; reached only in a failing test."""

QUICK_OPTIONS: Final = MqttOptions(timeout=10, backoff=ExponentialBackoff(initial=0.01, maximum=0.05))
NO_RECONNECT: Final = ExponentialBackoff(initial=3600, maximum=3600)
"""Backoff of a client that must not reconnect during the test."""

PING_INTERVALS: Final = tuple(limit / 4 for limit in RETRY_TIMEOUTS)
"""Seconds between two pings of clients in tests.

A slow machine may exceed an interval, so that a ping gets its response too late: then the test tries the
next.
"""

_RECEIVE_BUFFER_BYTES: Final = 0x4000
"""Bytes that the kernel buffers for a peer that does not read, small so that it is full soon."""


async def with_timeout(awaitable: Awaitable[_Result]) -> _Result:
    """Await with a timeout."""
    async with asyncio.timeout(TIMEOUT):
        return await awaitable


async def wait_until(condition: Callable[[], object]) -> None:
    """Wait for a condition with a timeout."""
    await eventually_async(condition)


async def wait_until_stable(value: Callable[[], int]) -> int:
    """Wait until a number no longer changes. Stopping too early hides a failure but never causes one."""
    last, unchanged = value(), 0
    async with asyncio.timeout(TIMEOUT):
        while unchanged < 40:
            await asyncio.sleep(0.005)
            now = value()
            last, unchanged = now, unchanged + 1 if now == last else 0
    return last


class Peer(asyncio.Protocol):
    """One client, as the broker sees it."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._parser = PacketParser(FROM_CLIENTS)
        self._transport: asyncio.Transport | None = None
        self._read = 0
        self._changed = asyncio.Event()
        self.received: list[Packet] = []
        self.finished = False
        """Whether the client has closed its writing side."""
        self.gone = False
        """Whether the connection has ended."""
        self.fault: Exception | None = None
        """Error that ended the connection; None if it was closed in order."""
        self.lingers = False
        """Whether to stay open when the client has closed its writing side."""

    # Called by tests

    async def next(self) -> Packet:
        """Return the next packet."""
        async with asyncio.timeout(TIMEOUT):
            while self._read == len(self.received):
                assert not self.gone, "the client has disconnected"
                self._changed.clear()
                await self._changed.wait()
        self._read += 1
        return self.received[self._read - 1]

    async def expect(self, kind: type[_Packet]) -> _Packet:
        """Return the next packet, which must be of this type."""
        packet = await self.next()
        assert isinstance(packet, kind), packet
        return packet

    async def publishes(self, count: int) -> list[Publish]:
        """Return the next packets, which must be messages."""
        return [await self.expect(Publish) for _ in range(count)]

    @property
    def unread(self) -> list[Packet]:
        """Packets that were received and not read by the test."""
        return self.received[self._read :]

    def send(self, *packets: Packet | bytes) -> None:
        """Send packets or any bytes in one write."""
        raw = [packet if isinstance(packet, bytes) else encode_packet(packet) for packet in packets]
        self.transport.write(b"".join(raw))

    def acknowledge(self, messages: Iterable[Publish]) -> None:
        """Send a PUBACK for each message."""
        self.send(*(Puback(message.packet_id) for message in messages))

    async def grant(self, *codes: int) -> Subscribe:
        """Read a SUBSCRIBE and send SUBACK, with the requested QoS or with these codes."""
        subscribe = await self.expect(Subscribe)
        self.send(Suback(subscribe.packet_id, codes or tuple(qos for _, qos in subscribe.filters)))
        return subscribe

    def stall(self) -> None:
        """Stop reading."""
        self.transport.pause_reading()

    def resume(self) -> None:
        """Read again."""
        self.transport.resume_reading()

    def close(self) -> None:
        """Send pending output and close."""
        self.transport.close()

    def reset(self) -> None:
        """Reset the connection, as a machine does after a power failure."""
        with socket.socket(fileno=os.dup(self.transport.get_extra_info("socket").fileno())) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    @property
    def waiting(self) -> int:
        """Bytes in the write buffer."""
        return self.transport.get_write_buffer_size()

    @property
    def transport(self) -> asyncio.Transport:
        """Transport of the connection."""
        assert self._transport is not None
        return self._transport

    # Called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport has another base class, but the same methods.
        self._transport = cast("asyncio.Transport", transport)
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
    """Listener that passes each accepted client to the test."""

    def __init__(self, connack: Connack | None = Connack()) -> None:  # noqa: B008 # immutable
        self.connack = connack
        """Response to every CONNECT; None leaves it to the test."""
        self.peers: list[Peer] = []
        self.refused = 0
        """Number of refused clients."""
        self._arrived: deque[Peer] = deque()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Self:
        listening_socket = socket.socket()
        listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        listening_socket.bind(("127.0.0.1", 0))
        self.port = listening_socket.getsockname()[1]
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Peer(self), sock=listening_socket)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for peer in self.peers:
            peer.transport.abort()
        await wait_until(lambda: all(peer.gone for peer in self.peers))
        await self._server.wait_closed()

    async def accept(self) -> Peer:
        """Return the next client, after its CONNECT and CONNACK unless the test sends that itself."""
        await wait_until(lambda: self._arrived)
        peer = self._arrived.popleft()
        if self.connack is not None:
            await peer.expect(Connect)
        return peer

    def refuse(self) -> None:
        """Refuse all clients from now on, as in an outage."""
        self.connack = Connack(code=ConnectReturnCode.SERVER_UNAVAILABLE)

    def on_connection(self, peer: Peer) -> None:
        """Add a connection."""
        self.peers.append(peer)
        if self.connack is None:
            self._arrived.append(peer)

    def on_connect(self, peer: Peer) -> None:
        """Respond to the CONNECT of a client."""
        if self.connack is None:
            return
        peer.send(self.connack)
        if self.connack.code == ConnectReturnCode.ACCEPTED:
            self._arrived.append(peer)
        else:
            self.refused += 1

    @property
    def address(self) -> BrokerAddress:
        """Address of the listener."""
        return BrokerAddress(host="127.0.0.1", port=self.port)

    def create_client(
        self,
        *,
        clean: bool = False,
        will: Will | None = None,
        user: tuple[str, str | None] | None = None,
        **settings: Any,
    ) -> MqttClient:
        """Create a client of this broker, with the quick options of tests except for these settings."""
        address = self.address
        if user is not None:
            address = replace(address, user=user[0], password=user[1])
        return MqttClient(address, "ours", clean=clean, will=will, options=replace(QUICK_OPTIONS, **settings))


@asynccontextmanager
async def connect_with_short_timeout(
    **settings: Any,
) -> AsyncIterator[tuple[ScriptedBroker, MqttClient, Peer]]:
    """Connect a client with a short timeout. The test closes it.

    The timeout applies to connecting as well, and a slow machine may exceed it: then the next one is tried.
    """
    for timeout in RETRY_TIMEOUTS:
        async with ScriptedBroker() as broker:
            client = broker.create_client(timeout=timeout, **settings)
            try:
                await client.__aenter__()
            except BrokerUnreachable:
                continue
            yield broker, client, await broker.accept()
            return
    raise AssertionError(f"no client connected within {RETRY_TIMEOUTS[-1]:g} s")


async def answer_pings(peer: Peer, count: int) -> bool:
    """Respond to the next packets, which must be PINGREQ. Return False if the client disconnected."""
    for _ in range(count):
        await wait_until(lambda: peer.unread or peer.gone)
        if peer.gone:
            return False
        await peer.expect(Pingreq)
        peer.send(Pingresp())
    return True
