"""What is on its way: ids, the window, repetitions, and when a delivery is done."""

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

ONE = Publish("a", b"x", qos=1)
WITHOUT = Publish("a", b"x")
MALFORMED = Publish("a/#", b"x", qos=1)


def _read(packets: Iterable[bytes]) -> list[Publish]:
    parser = PacketParser(FROM_CLIENTS)
    read = parser.feed(b"".join(packets))
    assert parser.fault is None
    return [packet for packet in read if isinstance(packet, Publish)]


def _ids(packets: Iterable[bytes]) -> list[int]:
    return [message.packet_id for message in _read(packets)]


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def _launched(flight: InFlightWindow, messages: list[Publish], delivery: Delivery) -> list[int]:
    """The ids of messages that may be too many to leave at once."""
    packets: list[bytes] = []
    while len(packets) < len(messages):
        packets += flight.prepare(messages[len(packets) :], delivery)
    return _ids(packets)


def _delivery(loop: asyncio.AbstractEventLoop, left: int) -> Delivery:
    return Delivery(left, loop.create_future())


def test_ids_are_1_to_60000_and_begin_again(loop: asyncio.AbstractEventLoop) -> None:
    flight = InFlightWindow(LAST_PUBLISH_ID)
    ids = _launched(flight, [ONE] * LAST_PUBLISH_ID, _delivery(loop, LAST_PUBLISH_ID))
    assert ids == list(range(1, LAST_PUBLISH_ID + 1))
    assert flight.acknowledge(ids)
    assert _ids(flight.prepare([ONE] * 2, _delivery(loop, 2))) == [1, 2]


def test_ids_in_flight_are_passed_over(loop: asyncio.AbstractEventLoop) -> None:
    flight = InFlightWindow(LAST_PUBLISH_ID)
    flight.prepare([ONE] * 5, _delivery(loop, 5))
    flight.acknowledge([1, 3])
    _launched(flight, [ONE] * (LAST_PUBLISH_ID - 5), _delivery(loop, LAST_PUBLISH_ID - 5))
    assert flight.free_slots == 2
    assert _ids(flight.prepare([ONE] * 2, _delivery(loop, 2))) == [1, 3]
    assert len(flight) == LAST_PUBLISH_ID


def test_a_window_beyond_the_ids_ends_with_them(loop: asyncio.AbstractEventLoop) -> None:
    flight = InFlightWindow(10 * LAST_PUBLISH_ID)
    assert flight.free_slots == LAST_PUBLISH_ID
    _launched(flight, [ONE] * LAST_PUBLISH_ID, _delivery(loop, LAST_PUBLISH_ID))
    assert flight.free_slots == 0


@each_row(("window", "reopens"), [(1, 0), (2, 1), (3, 1), (10, 5), (11, 5)])
def test_a_full_flight_opens_again_at_half_of_its_window(
    loop: asyncio.AbstractEventLoop, window: int, reopens: int
) -> None:
    flight = InFlightWindow(window)
    ids = _ids(flight.prepare([ONE] * window, _delivery(loop, window)))
    for left in range(window - 1, reopens, -1):
        assert not flight.acknowledge([ids.pop()])
        assert (len(flight), flight.free_slots) == (left, 0)
    assert flight.acknowledge([ids.pop()]), "somebody may wait for this"
    assert flight.free_slots == window - reopens


def test_a_flight_that_was_never_full_has_the_rest_of_its_window(loop: asyncio.AbstractEventLoop) -> None:
    flight = InFlightWindow(10)
    flight.prepare([ONE] * 9, _delivery(loop, 9))
    assert flight.free_slots == 1
    assert not flight.acknowledge([1])
    assert flight.free_slots == 2


def test_messages_at_qos_0_take_no_id_and_no_room(loop: asyncio.AbstractEventLoop) -> None:
    flight = InFlightWindow(2)
    assert _ids(flight.prepare([WITHOUT, ONE, WITHOUT], _delivery(loop, 1))) == [0, 1, 0]
    assert (len(flight), flight.free_slots) == (1, 1)
    assert _ids(flight.resend_packets()) == [1]


def test_a_malformed_message_keeps_all_others_of_its_launch_back(loop: asyncio.AbstractEventLoop) -> None:
    flight = InFlightWindow(10)
    flight.prepare([ONE], _delivery(loop, 1))
    before = flight.resend_packets()
    with pytest.raises(MalformedPacket):
        flight.prepare([ONE, ONE, MALFORMED], _delivery(loop, 3))
    assert (len(flight), flight.free_slots, flight.resend_packets()) == (1, 9, before)
    ids = _ids(flight.prepare([ONE] * 9, _delivery(loop, 9)))
    assert len({1, *ids}) == 10


def test_what_is_too_much_for_one_write_leaves_in_several(loop: asyncio.AbstractEventLoop) -> None:
    flight, delivery = InFlightWindow(100), _delivery(loop, 10)
    heavy = [Publish("a", bytes(100_000), 1)] * 10
    assert _ids(flight.prepare(heavy, delivery)) == [1, 2, 3]
    assert (len(flight), flight.free_slots, delivery.remaining) == (3, 97, 10)
    assert _launched(flight, heavy[3:], delivery) == list(range(4, 11))
    assert len(flight.prepare([Publish("a", bytes(10**6))] * 2, delivery)) == 1, "one always leaves"


def test_unknown_ids_land_without_a_trace(loop: asyncio.AbstractEventLoop) -> None:
    flight, delivery = InFlightWindow(10), _delivery(loop, 2)
    flight.prepare([ONE] * 2, delivery)
    flight.acknowledge([7, 65_535, 1, 1])
    assert (len(flight), delivery.remaining, delivery.done.done()) == (1, 1, False)
    assert flight.acknowledge([2])
    assert delivery.done.done()


def test_a_delivery_whose_caller_went_away_lands_all_the_same(loop: asyncio.AbstractEventLoop) -> None:
    flight, delivery = InFlightWindow(10), _delivery(loop, 1)
    flight.prepare([ONE], delivery)
    delivery.done.cancel()
    assert flight.acknowledge([1])
    assert len(flight) == 0


def test_everybody_hears_when_it_is_given_up(loop: asyncio.AbstractEventLoop) -> None:
    flight = InFlightWindow(10)
    waiting, landed, away = _delivery(loop, 2), _delivery(loop, 1), _delivery(loop, 1)
    for delivery in (landed, waiting, away):
        flight.prepare([ONE] * delivery.remaining, delivery)
    flight.acknowledge([1])
    away.done.cancel()
    reason = Undelivered(3)
    flight.fail_all(reason)
    assert waiting.done.exception() is reason
    assert landed.done.exception() is None
    assert away.done.cancelled()
    assert (len(flight), flight.resend_packets()) == (0, [])


class Flights(RuleBasedStateMachine):
    """Any order of launches and landings, next to a plain list of what should be on its way."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.window = 7
        self.flight = InFlightWindow(self.window)
        self.full = False
        self.flying: list[tuple[Publish, Delivery]] = []
        self.deliveries: list[Delivery] = []

    def teardown(self) -> None:
        self.loop.close()

    @precondition(lambda self: self.flight.free_slots)
    @rule(data=st.data())
    def launch(self, data: st.DataObject) -> None:
        message = st.builds(Publish, st.just("t"), st.binary(max_size=3), st.integers(0, 1), st.booleans())
        messages = data.draw(st.lists(message, max_size=self.flight.free_slots))
        delivery = _delivery(self.loop, sum(each.qos for each in messages))
        sent = _read(self.flight.prepare(messages, delivery))
        assert [replace(each, packet_id=0) for each in sent] == messages
        self.flying += [(each, delivery) for each in sent if each.qos]
        self.full = len(self.flying) == self.window
        self.deliveries += [delivery] if delivery.remaining else []

    @precondition(lambda self: self.flight.free_slots)
    @rule(before=st.integers(0, 3))
    def launch_malformed(self, before: int) -> None:
        with pytest.raises(MalformedPacket):
            self.flight.prepare([*[ONE] * before, MALFORMED], _delivery(self.loop, before + 1))

    @rule(data=st.data())
    def land(self, data: st.DataObject) -> None:
        ids = data.draw(
            st.lists(st.sampled_from([each.packet_id for each, _ in self.flying] or [9]), max_size=9)
        )
        opened = self.flight.acknowledge([*ids, LAST_PUBLISH_ID + 1])
        self.flying = [(each, delivery) for each, delivery in self.flying if each.packet_id not in ids]
        reopened = self.full and len(self.flying) <= self.window // 2
        self.full = self.full and not reopened
        assert opened == (reopened or not self.flying)

    @invariant()
    def what_flies_is_known_by_unique_ids_in_its_order(self) -> None:
        assert len(self.flight) == len(self.flying)
        assert _read(self.flight.resend_packets()) == [replace(each, dup=True) for each, _ in self.flying]
        ids = [each.packet_id for each, _ in self.flying]
        assert len(set(ids)) == len(ids)
        assert all(1 <= each <= LAST_PUBLISH_ID for each in ids)

    @invariant()
    def there_is_room_unless_it_was_full_and_is_not_half_empty(self) -> None:
        assert self.flight.free_slots == (0 if self.full else self.window - len(self.flying))

    @invariant()
    def a_delivery_is_done_when_the_last_of_it_has_landed(self) -> None:
        flying = [delivery for _, delivery in self.flying]
        for delivery in self.deliveries:
            assert delivery.remaining == flying.count(delivery)
            assert delivery.done.done() == (delivery not in flying)


test_any_order_of_launches_and_landings = Flights.TestCase
test_any_order_of_launches_and_landings.settings = settings(max_examples=examples(50), stateful_step_count=30)
