"""Hypothesis strategies for every packet that MQTT 3.1.1 allows, and for streams of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from hypothesis import strategies as st

from meshfleet.mqtt.codec.decoder import FROM_CLIENTS, FROM_SERVERS, PacketDecoder
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import (
    MAX_PACKET_ID,
    SUBACK_FAILURE,
    Connack,
    Connect,
    ConnectReturnCode,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
    Will,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


LONGEST_TEXT = "x" * 65_535
LONGEST_UNICODE = "é" * 32_767 + "x"

packet_ids = st.sampled_from([1, 255, 256, MAX_PACKET_ID]) | st.integers(1, MAX_PACKET_ID)
qos_levels = st.sampled_from([0, 1, 2])
payloads = st.sampled_from([b"", b"\0", b"\xff", bytes(121), bytes(122), bytes(65_535)]) | st.binary(
    max_size=40
)


def _texts(*, without: str = "", least: int = 0) -> st.SearchStrategy[str]:
    characters = st.characters(exclude_characters="\0" + without, exclude_categories=["Cs"])
    return st.text(characters, min_size=least, max_size=12)


texts = st.sampled_from(["", " ", "\ufeff", "\x7f", LONGEST_TEXT, LONGEST_UNICODE]) | _texts()
_levels = st.sampled_from(["", " ", "$SYS", "mt", "floor 7", "Zürich", "\ufeff", "😀"]) | _texts(
    without="/+#"
)


def _join_levels(levels: list[str]) -> str:
    return "/".join(levels)


topics = st.sampled_from(
    ["/", "//", " ", "/a", "a/", "$SYS/broker/uptime", LONGEST_TEXT, LONGEST_UNICODE]
) | st.lists(_levels, min_size=1, max_size=4).map(_join_levels).filter(bool)


@st.composite
def _filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.just("+") | _levels, max_size=4))
    last = draw(st.sampled_from([[], ["#"], ["+"], [""]]))
    return _join_levels([*levels, *last]) or "#"


filters = (
    st.sampled_from(["#", "+", "/", "/#", "/+", "+/", "+/+", "+/#", "$SYS/#", LONGEST_TEXT]) | _filters()
)

wills = st.builds(Will, topics, payloads, qos_levels, st.booleans())


@st.composite
def _connects(draw: st.DrawFn) -> Connect:
    clean = draw(st.booleans())
    client_id = draw(texts if clean else texts.filter(bool))  # [MQTT-3.1.3-7]
    keep_alive = draw(st.sampled_from([0, 1, 60, 65_535]))
    user = draw(st.none() | texts)
    password = None if user is None else draw(st.none() | payloads)
    return Connect(client_id, clean, keep_alive, draw(st.none() | wills), user, password)


connects = _connects()
connacks = st.builds(Connack, st.booleans()) | st.builds(
    Connack, st.just(value=False), st.sampled_from(ConnectReturnCode)
)
repeatable = st.builds(
    Publish, topics, payloads, st.sampled_from([1, 2]), st.booleans(), st.booleans(), packet_ids
)
publishes = st.builds(Publish, topics, payloads, st.just(0), st.booleans()) | repeatable
subscribes = st.builds(
    Subscribe, packet_ids, st.lists(st.tuples(filters, qos_levels), min_size=1, max_size=4).map(tuple)
)
subacks = st.builds(
    Suback,
    packet_ids,
    st.lists(st.sampled_from([0, 1, 2, SUBACK_FAILURE]), min_size=1, max_size=9).map(tuple),
)
unsubscribes = st.builds(Unsubscribe, packet_ids, st.lists(filters, min_size=1, max_size=4).map(tuple))

_either_direction: list[st.SearchStrategy[Packet]] = [
    publishes,
    *[st.builds(packet_type, packet_ids) for packet_type in (Puback, Pubrec, Pubrel, Pubcomp)],
]
from_clients = st.one_of(
    *_either_direction, connects, subscribes, unsubscribes, st.builds(Pingreq), st.builds(Disconnect)
)
from_servers = st.one_of(
    *_either_direction, connacks, subacks, st.builds(Unsuback, packet_ids), st.builds(Pingresp)
)


class SentPackets(NamedTuple):
    """Packets sent in one direction."""

    decoders: Mapping[int, PacketDecoder]
    packets: list[Packet]

    @property
    def stream(self) -> bytes:
        """Bytes of the packets."""
        return b"".join(map(encode_packet, self.packets))


def sent_packets(*, least: int = 0) -> st.SearchStrategy[SentPackets]:
    """Generate packets of either direction."""
    return st.one_of(
        [
            st.builds(SentPackets, st.just(decoders), st.lists(packets, min_size=least, max_size=4))
            for decoders, packets in ((FROM_CLIENTS, from_clients), (FROM_SERVERS, from_servers))
        ]
    )


@st.composite
def pieces(draw: st.DrawFn, stream: bytes) -> list[bytes]:
    """Split a stream anywhere, also into empty pieces."""
    cuts = sorted(draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    return [stream[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
