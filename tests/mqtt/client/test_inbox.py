"""Batches of received messages: their content, size, and order of acknowledgements."""

from __future__ import annotations

import gc
import weakref

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.mqtt.client.inbox import AckQueue, Inbox, MessageBatch
from meshfleet.mqtt.codec.encoder import encode_pubacks
from meshfleet.mqtt.codec.packets import Publish


class Broker:
    """Recorder of the acknowledgements that one connection would send."""

    def __init__(self) -> None:
        self.received = b""
        self.acks = AckQueue(self._record)

    def _record(self, data: bytes) -> None:
        assert data, "an empty write is useless"
        self.received += data


def _message(packet_id: int) -> Publish:
    return Publish("t", b"", qos=int(packet_id > 0), packet_id=packet_id)


def _batches(broker: Broker, *ids: list[int]) -> list[MessageBatch]:
    inbox, batches = Inbox(), []
    for each in ids:
        inbox.put([_message(packet_id) for packet_id in each], len(each), broker.acks)
        batches.append(inbox.pop())
    return batches


def test_messages_of_several_reads_are_one_batch_in_the_order_of_arrival() -> None:
    inbox, broker = Inbox(), Broker()
    inbox.put([_message(1), _message(2)], 20, broker.acks)
    inbox.put([_message(3)], 7, broker.acks)
    assert (len(inbox), inbox.size) == (1, 27)
    batch = inbox.pop()
    assert [message.packet_id for message in batch.messages] == [1, 2, 3]
    assert (batch.size, len(inbox), inbox.size) == (27, 0, 0)


def test_messages_received_after_a_fetch_are_another_batch() -> None:
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


def test_acknowledgements_are_sent_on_the_connection_of_the_messages_only() -> None:
    inbox, old, new = Inbox(), Broker(), Broker()
    inbox.put([_message(1)], 5, old.acks)
    inbox.put([_message(2)], 5, new.acks)
    first, second = inbox.pop(), inbox.pop()
    second.acknowledge()
    assert (old.received, new.received) == (b"", encode_pubacks([2]))
    first.acknowledge()
    assert (old.received, new.received) == (encode_pubacks([1]), encode_pubacks([2]))


batches = st.lists(st.lists(st.integers(0, 65_535), min_size=1, max_size=5), min_size=1, max_size=6)


@given(batches, st.data())
def test_acknowledgements_are_sent_in_the_order_of_arrival(ids: list[list[int]], data: st.DataObject) -> None:
    broker = Broker()
    created = _batches(broker, *ids)
    acknowledged: set[int] = set()
    for index in data.draw(st.permutations(range(len(ids)))):
        created[index].acknowledge()
        acknowledged.add(index)
        # A batch with only QoS 0 messages needs no acknowledgement.
        due = next(
            (each for each in range(len(ids)) if each not in acknowledged and any(ids[each])), len(ids)
        )
        # [MQTT-4.6.0-2]
        assert broker.received == encode_pubacks([each for batch in ids[:due] for each in batch if each])


def test_messages_at_qos_0_are_not_acknowledged() -> None:
    broker = Broker()
    mixed, without = _batches(broker, [0, 5, 0, 6], [0, 0])
    without.acknowledge()
    mixed.acknowledge()
    assert broker.received == encode_pubacks([5, 6])


def test_batches_at_qos_0_do_not_delay_later_acknowledgements() -> None:
    broker = Broker()
    _, second = _batches(broker, [0, 0], [7])
    second.acknowledge()
    assert broker.received == encode_pubacks([7])


def test_an_acknowledged_batch_that_waits_for_another_frees_its_messages() -> None:
    broker = Broker()
    first, second, third = _batches(broker, [1], [2], [0])
    message = weakref.ref(second)
    second.acknowledge()
    third.acknowledge()
    del second, third
    gc.collect()
    assert message() is None
    first.acknowledge()
    assert broker.received == encode_pubacks([1, 2])


def test_acknowledging_twice_sends_one_acknowledgement() -> None:
    broker = Broker()
    first, second = _batches(broker, [1], [2])
    for _ in range(2):
        second.acknowledge()
    for _ in range(2):
        first.acknowledge()
    second.acknowledge()
    assert broker.received == encode_pubacks([1, 2])


def test_a_batch_is_acknowledged_while_a_later_one_is_not_fetched() -> None:
    inbox, broker = Inbox(), Broker()
    inbox.put([_message(1)], 1, broker.acks)
    first = inbox.pop()
    inbox.put([_message(2)], 1, broker.acks)
    first.acknowledge()
    assert broker.received == encode_pubacks([1])
