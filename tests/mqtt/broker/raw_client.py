"""A client that sends whatever a test wants, packets or bytes, and tells what comes back."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import struct
from typing import Self, TypeVar

from meshfleet.mqtt.codec.decoder import FROM_SERVERS
from meshfleet.mqtt.codec.encoder import PINGREQ, encode_packet
from meshfleet.mqtt.codec.packets import Packet, Pingresp
from meshfleet.mqtt.codec.parser import PacketParser

TIMEOUT = 30.0
"""Seconds until something must have come; reached only when it never does."""

Kind = TypeVar("Kind", bound=Packet)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = PacketParser(FROM_SERVERS)
        self._received: list[Packet] = []
        self.bytes = b""
        """All that came, as it came."""

    @classmethod
    async def open(cls, port: int, *, tls: ssl.SSLContext | None = None) -> Self:
        """Connect, and say nothing."""
        name = "localhost" if tls is not None else None
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name))

    def send(self, *parts: Packet | bytes) -> None:
        """Send packets or bytes, all in one piece."""
        self._writer.write(
            b"".join(part if isinstance(part, bytes) else encode_packet(part) for part in parts)
        )

    async def receive(self) -> Packet | None:
        """The next packet; None: the broker has closed the connection."""
        async with asyncio.timeout(TIMEOUT):
            while not self._received:
                try:
                    data = await self._reader.read(0x1_0000)
                except ConnectionError:
                    return None
                if not data:
                    return None
                self.bytes += data
                self._received += self._parser.feed(data)
                assert self._parser.fault is None, self._parser.fault
        return self._received.pop(0)

    async def receive_bytes(self) -> bytes:
        """What comes next, whatever it is; nothing: the broker has closed the connection."""
        async with asyncio.timeout(TIMEOUT):
            with contextlib.suppress(ConnectionError):
                return await self._reader.read(0x1_0000)
        return b""

    async def expect(self, kind: type[Kind]) -> Kind:
        """The next packet, which must be of this kind."""
        packet = await self.receive()
        assert isinstance(packet, kind), packet
        return packet

    async def receive_until_closed(self) -> list[Packet]:
        """All that comes until the broker closes the connection."""
        packets = []
        while (packet := await self.receive()) is not None:
            packets.append(packet)
        return packets

    async def receive_until_pong(self) -> list[Packet]:
        """All that comes until the broker has answered a ping: so what did not come by now was not sent."""
        self.send(PINGREQ)
        packets: list[Packet] = []
        while not isinstance(packet := await self.receive(), Pingresp):
            assert packet is not None, "the broker closed the connection"
            packets.append(packet)
        return packets

    def pause_reading(self) -> None:
        """Read no more from the network."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined] # it reads and writes

    def send_eof(self) -> None:
        """Say that nothing more follows, and go on reading."""
        self._writer.write_eof()

    def reset(self) -> None:
        """End the connection as a program does that crashes: the broker's reads and writes fail."""
        raw = self._writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def abort(self) -> None:
        """End the connection without a word."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """End the connection, and wait until it has ended."""
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self._writer.wait_closed()
