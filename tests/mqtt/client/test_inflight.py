"""In-flight window: packet identifiers, limit, resending, and completion of deliveries."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from msgspec.structs import replace

from meshfleet.errors.mqtt import Undelivered
from meshfleet.errors.protocol import MalformedPacket
from meshfleet.mqtt.client.inflight import LAST_PUBLISH_ID, Delivery, InFlightWindow
from meshfleet.mqtt.codec.decoder import FROM_CLIENTS
from meshfleet.mqtt.codec.packets import Publish
from meshfleet.mqtt.codec.parser import PacketParser
from tests.examples import examples
from tests.row_tables import each_row

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

QOS1_MESSAGE = Publish("a", b"x", qos=1)
QOS0_MESSAGE = Publish("a", b"x")
MALFORMED = Publish("a/#", b"x", qos=1)


def _parse(packets: Iterable[bytes]) -> list[Publish]:
    parser = PacketParser(FROM_CLIENTS)
    parsed = parser.feed(b"".join(packets))
    assert parser.fault is None
    return [packet for packet in parsed if isinstance(packet, Publish)]


def _ids(packets: Iterable[bytes]) -> list[int]:
    return [message.packet_id for message in _parse(packets)]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def _prepare_all(in_flight: InFlightWindow, messages: list[Publish], delivery: Delivery) -> list[int]:
    """Prepare messages that may be too many for one write, and return their packet identifiers."""
    packets: list[bytes] = []
    while len(packets) < len(messages):
        packets += in_flight.add_and_encode_messages(messages[len(packets) :], delivery)
    return _ids(packets)


def _create_delivery(loop: asyncio.AbstractEventLoop, remaining: int) -> Delivery:
    return Delivery(remaining, loop.create_future())


def test_packet_ids_are_1_to_60000_and_start_again(loop: asyncio.AbstractEventLoop) -> None:
    in_flight = InFlightWindow(LAST_PUBLISH_ID)
    ids = _prepare_all(in_flight, [QOS1_MESSAGE] * LAST_PUBLISH_ID, _create_delivery(loop, LAST_PUBLISH_ID))
    assert ids == list(range(1, LAST_PUBLISH_ID + 1))
    assert in_flight.acknowledge(ids)
    assert _ids(in_flight.add_and_encode_messages([QOS1_MESSAGE] * 2, _create_delivery(loop, 2))) == [1, 2]


def test_packet_ids_in_flight_are_skipped(loop: asyncio.AbstractEventLoop) -> None:
    in_flight = InFlightWindow(LAST_PUBLISH_ID)
    in_flight.add_and_encode_messages([QOS1_MESSAGE] * 5, _create_delivery(loop, 5))
    in_flight.acknowledge([1, 3])
    _prepare_all(
        in_flight, [QOS1_MESSAGE] * (LAST_PUBLISH_ID - 5), _create_delivery(loop, LAST_PUBLISH_ID - 5)
    )
    assert in_flight.free_slots == 2
    assert _ids(in_flight.add_and_encode_messages([QOS1_MESSAGE] * 2, _create_delivery(loop, 2))) == [1, 3]
    assert len(in_flight) == LAST_PUBLISH_ID


def test_a_window_is_limited_by_the_number_of_packet_ids(loop: asyncio.AbstractEventLoop) -> None:
    in_flight = InFlightWindow(10 * LAST_PUBLISH_ID)
    assert in_flight.free_slots == LAST_PUBLISH_ID
    _prepare_all(in_flight, [QOS1_MESSAGE] * LAST_PUBLISH_ID, _create_delivery(loop, LAST_PUBLISH_ID))
    assert in_flight.free_slots == 0


@each_row(("window", "reopens"), [(1, 0), (2, 1), (3, 1), (10, 5), (11, 5)])
def test_a_full_window_opens_again_at_half(
    loop: asyncio.AbstractEventLoop, window: int, reopens: int
) -> None:
    in_flight = InFlightWindow(window)
    ids = _ids(in_flight.add_and_encode_messages([QOS1_MESSAGE] * window, _create_delivery(loop, window)))
    for left in range(window - 1, reopens, -1):
        assert not in_flight.acknowledge([ids.pop()])
        assert (len(in_flight), in_flight.free_slots) == (left, 0)
    assert in_flight.acknowledge([ids.pop()]), "a caller may wait for this"
    assert in_flight.free_slots == window - reopens


def test_a_window_that_was_never_full_has_its_remaining_slots(loop: asyncio.AbstractEventLoop) -> None:
    in_flight = InFlightWindow(10)
    in_flight.add_and_encode_messages([QOS1_MESSAGE] * 9, _create_delivery(loop, 9))
    assert in_flight.free_slots == 1
    assert not in_flight.acknowledge([1])
    assert in_flight.free_slots == 2


def test_messages_at_qos_0_use_no_packet_id_and_no_slot(loop: asyncio.AbstractEventLoop) -> None:
    in_flight = InFlightWindow(2)
    assert _ids(
        in_flight.add_and_encode_messages(
            [QOS0_MESSAGE, QOS1_MESSAGE, QOS0_MESSAGE], _create_delivery(loop, 1)
        )
    ) == [
        0,
        1,
        0,
    ]
    assert (len(in_flight), in_flight.free_slots) == (1, 1)
    assert _ids(in_flight.encode_for_resend()) == [1]


def test_a_malformed_message_prevents_all_others_of_its_call(loop: asyncio.AbstractEventLoop) -> None:
    in_flight = InFlightWindow(10)
    in_flight.add_and_encode_messages([QOS1_MESSAGE], _create_delivery(loop, 1))
    before = in_flight.encode_for_resend()
    with pytest.raises(MalformedPacket):
        in_flight.add_and_encode_messages([QOS1_MESSAGE, QOS1_MESSAGE, MALFORMED], _create_delivery(loop, 3))
    assert (len(in_flight), in_flight.free_slots, in_flight.encode_for_resend()) == (1, 9, before)
    ids = _ids(in_flight.add_and_encode_messages([QOS1_MESSAGE] * 9, _create_delivery(loop, 9)))
    assert len({1, *ids}) == 10


def test_messages_too_large_for_one_write_are_prepared_in_several_calls(
    loop: asyncio.AbstractEventLoop,
) -> None:
    in_flight, delivery = InFlightWindow(100), _create_delivery(loop, 10)
    messages = [Publish("a", bytes(100_000), 1)] * 10
    assert _ids(in_flight.add_and_encode_messages(messages, delivery)) == [1, 2, 3]
    assert (len(in_flight), in_flight.free_slots, delivery.remaining) == (3, 97, 10)
    assert _prepare_all(in_flight, messages[3:], delivery) == list(range(4, 11))
    assert len(in_flight.add_and_encode_messages([Publish("a", bytes(10**6))] * 2, delivery)) == 1, (
        "at least one is prepared"
    )


def test_unknown_packet_ids_are_ignored(loop: asyncio.AbstractEventLoop) -> None:
    in_flight, delivery = InFlightWindow(10), _create_delivery(loop, 2)
    in_flight.add_and_encode_messages([QOS1_MESSAGE] * 2, delivery)
    in_flight.acknowledge([7, 65_535, 1, 1])
    assert (len(in_flight), delivery.remaining, delivery.done.done()) == (1, 1, False)
    assert in_flight.acknowledge([2])
    assert delivery.done.done()


def test_a_message_whose_caller_was_canceled_is_acknowledged(loop: asyncio.AbstractEventLoop) -> None:
    in_flight, delivery = InFlightWindow(10), _create_delivery(loop, 1)
    in_flight.add_and_encode_messages([QOS1_MESSAGE], delivery)
    delivery.done.cancel()
    assert in_flight.acknowledge([1])
    assert len(in_flight) == 0


def test_fail_all_fails_every_pending_delivery(loop: asyncio.AbstractEventLoop) -> None:
    in_flight = InFlightWindow(10)
    waiting, acknowledged, canceled = (
        _create_delivery(loop, 2),
        _create_delivery(loop, 1),
        _create_delivery(loop, 1),
    )
    for delivery in (acknowledged, waiting, canceled):
        in_flight.add_and_encode_messages([QOS1_MESSAGE] * delivery.remaining, delivery)
    in_flight.acknowledge([1])
    canceled.done.cancel()
    reason = Undelivered(3)
    in_flight.fail_all(reason)
    assert waiting.done.exception() is reason
    assert acknowledged.done.exception() is None
    assert canceled.done.cancelled()
    assert (len(in_flight), in_flight.encode_for_resend()) == (0, [])


class InFlightSteps(RuleBasedStateMachine):
    """Any order of publishes and acknowledgements, next to a plain list of the messages in flight."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.window = 7
        self.in_flight = InFlightWindow(self.window)
        self.is_full = False
        self.expected: list[tuple[Publish, Delivery]] = []
        self.deliveries: list[Delivery] = []

    def teardown(self) -> None:
        self.loop.close()

    @precondition(lambda self: self.in_flight.free_slots)
    @rule(data=st.data())
    def add_and_encode_messages(self, data: st.DataObject) -> None:
        message = st.builds(Publish, st.just("t"), st.binary(max_size=3), st.integers(0, 1), st.booleans())
        messages = data.draw(st.lists(message, max_size=self.in_flight.free_slots))
        delivery = _create_delivery(self.loop, sum(each.qos for each in messages))
        sent = _parse(self.in_flight.add_and_encode_messages(messages, delivery))
        assert [replace(each, packet_id=0) for each in sent] == messages
        self.expected += [(each, delivery) for each in sent if each.qos]
        self.is_full = len(self.expected) == self.window
        self.deliveries += [delivery] if delivery.remaining else []

    @precondition(lambda self: self.in_flight.free_slots)
    @rule(before=st.integers(0, 3))
    def prepare_malformed(self, before: int) -> None:
        with pytest.raises(MalformedPacket):
            self.in_flight.add_and_encode_messages(
                [*[QOS1_MESSAGE] * before, MALFORMED], _create_delivery(self.loop, before + 1)
            )

    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        ids = data.draw(
            st.lists(st.sampled_from([each.packet_id for each, _ in self.expected] or [9]), max_size=9)
        )
        opened = self.in_flight.acknowledge([*ids, LAST_PUBLISH_ID + 1])
        self.expected = [(each, delivery) for each, delivery in self.expected if each.packet_id not in ids]
        reopened = self.is_full and len(self.expected) <= self.window // 2
        self.is_full = self.is_full and not reopened
        assert opened == (reopened or not self.expected)

    @invariant()
    def messages_in_flight_have_unique_packet_ids_and_keep_their_order(self) -> None:
        assert len(self.in_flight) == len(self.expected)
        assert _parse(self.in_flight.encode_for_resend()) == [
            replace(each, dup=True) for each, _ in self.expected
        ]
        ids = [each.packet_id for each, _ in self.expected]
        assert len(set(ids)) == len(ids)
        assert all(1 <= each <= LAST_PUBLISH_ID for each in ids)

    @invariant()
    def slots_are_free_unless_it_was_full_and_is_not_half_empty(self) -> None:
        assert self.in_flight.free_slots == (0 if self.is_full else self.window - len(self.expected))

    @invariant()
    def a_delivery_is_done_when_its_last_message_is_acknowledged(self) -> None:
        expected = [delivery for _, delivery in self.expected]
        for delivery in self.deliveries:
            assert delivery.remaining == expected.count(delivery)
            assert delivery.done.done() == (delivery not in expected)


test_any_order_of_publishes_and_acknowledgements = InFlightSteps.TestCase
test_any_order_of_publishes_and_acknowledgements.settings = settings(
    max_examples=examples(50), stateful_step_count=30
)
