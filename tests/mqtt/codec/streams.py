"""Byte streams and the results of parsing them, and one short packet of every type."""

from __future__ import annotations

import gc
import tracemalloc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, FROM_SERVERS, PacketDecoder
from meshfleet.mqtt.codec.parser import PacketParser

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from meshfleet.errors.protocol import MalformedInput
    from meshfleet.mqtt.codec.packets import Packet


class Outcome(NamedTuple):
    """Result of parsing a stream."""

    packets: list[Packet]
    error: type[MalformedInput] | None = None
    text: str = ""


def parse_pieces(decoders: Mapping[int, PacketDecoder], pieces: Sequence[bytes]) -> Outcome:
    """Feed the pieces to a parser until a fault."""
    parser = PacketParser(decoders)
    packets: list[Packet] = []
    for piece in pieces:
        packets += parser.feed(piece)
        if parser.fault:
            return Outcome(packets, type(parser.fault), str(parser.fault))
    return Outcome(packets)


def parse_hex(raw: str, decoders: Mapping[int, PacketDecoder] = FROM_CLIENTS) -> list[Packet]:
    """Parse a valid stream, given as hex."""
    parser = PacketParser(decoders)
    packets = parser.feed(bytes.fromhex(raw))
    assert parser.fault is None
    return packets


def parse_fault(raw: str, decoders: Mapping[int, PacketDecoder] = FROM_CLIENTS) -> MalformedInput:
    """Return the fault of the only packet of a stream, given as hex."""
    parser = PacketParser(decoders)
    assert parser.feed(bytes.fromhex(raw)) == []
    assert parser.fault is not None, "the packet was accepted or is incomplete"
    return parser.fault


def add_fixed_header(first: str, body: str) -> str:
    """Add a fixed header to a body of less than 128 bytes, all of it hex."""
    length = len(bytes.fromhex(body))
    assert length < 0x80
    return f"{first}{length:02x}{body}"


def encode_field(text: bytes) -> str:
    """Encode bytes with their length in front, as hex."""
    return len(text).to_bytes(2).hex() + text.hex()


_EITHER_DIRECTION: Final = {
    "PUBACK": "40020001",
    "PUBREC": "50020001",
    "PUBREL": "62020001",
    "PUBCOMP": "70020001",
}
CLIENTS_ONLY: Final = {
    "CONNECT": "1019 00044d515454 04 f6 003c 000161 000174 000177 000175 000170",
    "SUBSCRIBE": "8206 0001 000161 00",
    "UNSUBSCRIBE": "a205 0001 000161",
    "PINGREQ": "c000",
    "DISCONNECT": "e000",
}
SERVERS_ONLY: Final = {
    "CONNACK": "20020000",
    "SUBACK": "9003 0001 00",
    "UNSUBACK": "b0020001",
    "PINGRESP": "d000",
}
SHORT: Final = [
    *[(name, raw, FROM_CLIENTS) for name, raw in {**_EITHER_DIRECTION, **CLIENTS_ONLY}.items()],
    *[(name, raw, FROM_SERVERS) for name, raw in {**_EITHER_DIRECTION, **SERVERS_ONLY}.items()],
]
"""Name, bytes and decoders of every type but PUBLISH, in every direction in which it may be sent."""


@contextmanager
def assert_memory_below(limit: int) -> Iterator[None]:
    """Check that the block leaves less than this many bytes allocated, without garbage collection."""
    gc.disable()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        yield
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert after - before < limit
