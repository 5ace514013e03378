"""Batches: which messages are together, what they weigh, and in which order they are acknowledged."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.mqtt.client.inbox import AckQueue, Inbox, MessageBatch
from meshfleet.mqtt.codec.encoder import encode_pubacks
from meshfleet.mqtt.codec.packets import Publish


class Broker:
    """What one connection's broker would get."""

    def __init__(self) -> None:
        self.got = b""
        self.acks = AckQueue(self._take)

    def _take(self, data: bytes) -> None:
        assert data, "nothing is not worth a write"
        self.got += data


def _message(packet_id: int) -> Publish:
    return Publish("t", b"", qos=int(packet_id > 0), packet_id=packet_id)


def _batches(broker: Broker, *ids: list[int]) -> list[MessageBatch]:
    inbox, batches = Inbox(), []
    for each in ids:
        inbox.put([_message(packet_id) for packet_id in each], len(each), broker.acks)
        batches.append(inbox.pop())
    return batches


def test_what_several_reads_brought_is_one_batch_in_the_order_of_arrival() -> None:
    inbox, broker = Inbox(), Broker()
    inbox.put([_message(1), _message(2)], 20, broker.acks)
    inbox.put([_message(3)], 7, broker.acks)
    assert (len(inbox), inbox.size) == (1, 27)
    batch = inbox.pop()
    assert [message.packet_id for message in batch.messages] == [1, 2, 3]
    assert (batch.size, len(inbox), inbox.size) == (27, 0, 0)


def test_what_comes_after_a_fetch_is_another_batch() -> None:
    inbox, broker = Inbox(), Broker()
    inbox.put([_message(1)], 5, broker.acks)
    first = inbox.pop()
    inbox.put([_message(2)], 6, broker.acks)
    assert [message.packet_id for message in first.messages] == [1]
    assert [message.packet_id for message in inbox.pop().messages] == [2]


def test_a_batch_belongs_to_one_connection() -> None:
    inbox, old, new = Inbox(), Broker(), Broker()
    inbox.put([_message(1)], 5, old.acks)
    inbox.put([_message(1), _message(2)], 9, new.acks)
    inbox.put([_message(3)], 4, new.acks)
    assert (len(inbox), inbox.size) == (2, 18)
    first, second = inbox.pop(), inbox.pop()
    assert (first.ack_queue, first.size) == (old.acks, 5)
    assert (second.ack_queue, second.size) == (new.acks, 13)
    assert inbox.size == 0


def test_acknowledging_tells_the_connection_that_brought_the_messages_and_no_other() -> None:
    inbox, old, new = Inbox(), Broker(), Broker()
    inbox.put([_message(1)], 5, old.acks)
    inbox.put([_message(2)], 5, new.acks)
    first, second = inbox.pop(), inbox.pop()
    second.acknowledge()
    assert (old.got, new.got) == (b"", encode_pubacks([2]))
    first.acknowledge()
    assert (old.got, new.got) == (encode_pubacks([1]), encode_pubacks([2]))


batches = st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=5), min_size=1, max_size=6)


@given(batches, st.data())
def test_acknowledgements_leave_in_the_order_of_arrival(ids: list[list[int]], data: st.DataObject) -> None:
    broker = Broker()
    made = _batches(broker, *ids)
    told: set[int] = set()
    for turn in data.draw(st.permutations(range(len(ids)))):
        made[turn].acknowledge()
        told.add(turn)
        # A batch of QoS 0 alone has nothing to wait for.
        due = next((each for each in range(len(ids)) if each not in told and any(ids[each])), len(ids))
        assert broker.got == encode_pubacks(
            [each for batch in ids[:due] for each in batch if each]
        )  # [MQTT-4.6.0-2]


def test_messages_at_qos_0_are_not_acknowledged() -> None:
    broker = Broker()
    mixed, without = _batches(broker, [0, 5, 0, 6], [0, 0])
    without.acknowledge()
    mixed.acknowledge()
    assert broker.got == encode_pubacks([5, 6])


def test_messages_at_qos_0_that_are_never_acknowledged_keep_nobody_waiting() -> None:
    broker = Broker()
    _, second = _batches(broker, [0, 0], [7])
    second.acknowledge()
    assert broker.got == encode_pubacks([7])


def test_a_batch_that_waits_for_another_to_be_acknowledged_does_not_keep_its_messages() -> None:
    broker = Broker()
    first, second, third = _batches(broker, [1], [2], [0])
    message = weakref.ref(second)
    second.acknowledge()
    third.acknowledge()
    del second, third
    gc.collect()
    assert message() is None
    first.acknowledge()
    assert broker.got == encode_pubacks([1, 2])


def test_acknowledging_twice_tells_once() -> None:
    broker = Broker()
    first, second = _batches(broker, [1], [2])
    for _ in range(2):
        second.acknowledge()
    for _ in range(2):
        first.acknowledge()
    second.acknowledge()
    assert broker.got == encode_pubacks([1, 2])


def test_a_batch_that_was_not_fetched_keeps_those_after_it_waiting() -> None:
    inbox, broker = Inbox(), Broker()
    inbox.put([_message(1)], 1, broker.acks)
    first = inbox.pop()
    inbox.put([_message(2)], 1, broker.acks)
    first.acknowledge()
    assert broker.got == encode_pubacks([1])
