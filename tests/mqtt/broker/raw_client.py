"""Client that sends any packets or bytes, and returns what the broker sends."""

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
"""Seconds within which an expected packet must arrive; reached only in a failing test."""

Kind = TypeVar("Kind", bound=Packet)


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._parser = PacketParser(FROM_SERVERS)
        self._received: list[Packet] = []
        self.bytes = b""
        """All received bytes."""

    @classmethod
    async def open(cls, port: int, *, tls: ssl.SSLContext | None = None) -> Self:
        """Connect without sending anything."""
        name = "localhost" if tls is not None else None
        return cls(*await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=name))

    def send(self, *parts: Packet | bytes) -> None:
        """Send packets or bytes in one write."""
        self._writer.write(
            b"".join(part if isinstance(part, bytes) else encode_packet(part) for part in parts)
        )

    async def receive(self) -> Packet | None:
        """Return the next packet; None: the broker has closed the connection."""
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
        """Return the next bytes; empty: the broker has closed the connection."""
        async with asyncio.timeout(TIMEOUT):
            with contextlib.suppress(ConnectionError):
                return await self._reader.read(0x1_0000)
        return b""

    async def expect(self, kind: type[Kind]) -> Kind:
        """Return the next packet, which must be of this type."""
        packet = await self.receive()
        assert isinstance(packet, kind), packet
        return packet

    async def receive_until_closed(self) -> list[Packet]:
        """Return all packets until the broker closes the connection."""
        packets = []
        while (packet := await self.receive()) is not None:
            packets.append(packet)
        return packets

    async def receive_until_pong(self) -> list[Packet]:
        """Return all packets until PINGRESP: a packet that did not arrive by then was not sent."""
        self.send(PINGREQ)
        packets: list[Packet] = []
        while not isinstance(packet := await self.receive(), Pingresp):
            assert packet is not None, "the broker closed the connection"
            packets.append(packet)
        return packets

    def pause_reading(self) -> None:
        """Stop reading from the network."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined] # a socket's transport reads too

    def send_eof(self) -> None:
        """Close the writing side, and keep reading."""
        self._writer.write_eof()

    def reset(self) -> None:
        """Reset the connection, as the crash of a program does: reads and writes of the broker fail."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()

    def abort(self) -> None:
        """Close the connection without DISCONNECT."""
        self._writer.transport.abort()

    async def close(self) -> None:
        """Close the connection, and wait until it is closed."""
        self._writer.close()
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await self._writer.wait_closed()
