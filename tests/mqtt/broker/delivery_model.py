"""Model of one client with a persistent session, and of the messages that the broker must deliver to it.

Messages are numbered in the order in which they are published, each at QoS 1. These are always true: a
message that was acknowledged to the publisher is delivered until the client acknowledges it; messages arrive
in order and without gaps; a repetition has the packet identifier of the first delivery and the dup flag; and
a message that the client acknowledged is not delivered again, unless the broker may have missed the
acknowledgement or was killed before it was committed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Packet, Puback, Publish, Suback, Subscribe, Unsuback, Unsubscribe
from tests.mqtt.broker.messages import TOPIC, load_stored, session_of
from tests.mqtt.broker.running_broker import REPORTS, RunningBroker, report

if TYPE_CHECKING:
    from collections.abc import Collection

    from tests.mqtt.broker.raw_client import RawClient

ELSEWHERE = report(kind="heartbeat")

FILTERS = {REPORTS: {TOPIC, ELSEWHERE}, TOPIC: {TOPIC}, ELSEWHERE: {ELSEWHERE}}
"""Filters to subscribe to, and the topics that they match."""


class Killed(Exception):
    """Raised by the consumer in place of a commit, so that the broker ends and writes nothing more."""


class DeliveryModel:
    """Messages that the client must receive, and those that it has received."""

    def __init__(self, server: RunningBroker, window: int) -> None:
        self._server = server
        self._window = window
        self._gateway: RawClient
        self._client: RawClient | None = None
        self._subscriptions: dict[str, int] = {}
        self._published_count = 0
        self._pending: list[int] = []
        """Numbers of messages that must be delivered and are not acknowledged."""
        self._received: list[Publish] = []
        """Messages received on this connection and not acknowledged."""
        self._last_received = 0
        """Number of the last message received on this connection."""
        self._expected_qos0: list[int] = []
        """Numbers of QoS 0 messages that must still arrive."""
        self._unread_acks: set[int] = set()
        """Acknowledged messages whose PUBACK the broker may not have read yet."""
        self._uncommitted_acks: set[int] = set()
        """Acknowledged messages whose deletion may not be committed yet."""
        self._may_repeat: set[int] = set()
        """Acknowledged messages that may be delivered again nevertheless."""
        self._ids: dict[int, int] = {}
        """Packet identifiers of received messages, by number."""
        self._expected_dup: set[int] = set()
        """Messages that arrive with the dup flag after a start, whether they were sent before or not."""
        self._perhaps_sent: set[int] = set()
        """Messages that may have been sent and did not arrive."""
        self._may_seem_connected = False
        """Whether the broker may not have noticed yet that the connection broke."""

    async def start(self) -> None:
        """Connect the gateway and the client."""
        self._gateway = await self._server.gateway()
        await self.connect()

    # Steps

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected."""
        return self._client is not None

    async def publish(self, topic: str, count: int) -> None:
        """Publish messages, and wait for their acknowledgements."""
        numbers = range(self._published_count + 1, self._published_count + count + 1)
        self._gateway.send(*(Publish(topic, b"%d" % n, 1, packet_id=n) for n in numbers))
        for n in numbers:
            assert await self._gateway.expect(Puback) == Puback(n)
            self._expect_delivery(n, topic)
        self._uncommitted_acks.clear()
        await self._check_received()

    async def subscribe(self, topic_filter: str, qos: int) -> None:
        """Subscribe to a filter."""
        await self._request(Subscribe(1, ((topic_filter, qos),)), Suback(1, (qos,)))
        self._subscriptions[topic_filter] = qos

    async def unsubscribe(self, topic_filter: str) -> None:
        """Remove a subscription."""
        await self._request(Unsubscribe(1, (topic_filter,)), Unsuback(1))
        self._subscriptions.pop(topic_filter, None)

    async def acknowledge(self, indexes: Collection[int], *, wait: bool) -> None:
        """Acknowledge some received messages in any order; with `wait`, until the broker has read it."""
        assert self._client is not None
        messages = [self._received[index] for index in indexes if index < len(self._received)]
        for message in messages:
            self._client.send(Puback(message.packet_id))
            self._received.remove(message)
            self._pending.remove(int(message.payload))
            self._unread_acks.add(int(message.payload))
        if wait:
            await self._check_received()

    async def cut(self, *, noticed: bool) -> None:
        """Break the connection. With `noticed`, wait until the broker has noticed it."""
        assert self._client is not None
        self._client.abort()
        self._record_disconnect()
        if noticed:
            await self._server.until(lambda: session_of(self._server, "viewer").connection is None)
        self._may_seem_connected = not noticed

    async def connect(self) -> None:
        """Connect the client, or connect it again, which closes its other connection."""
        if self._client is not None:
            self._record_disconnect()
        self._client = await self._server.client("viewer", clean=False)
        self._may_seem_connected = False
        self._last_received = 0
        await self._check_received()
        self._perhaps_sent.clear()

    async def restart(self) -> None:
        """Stop and start the broker."""
        await self._server.restart()
        await self._record_start()

    async def kill(self) -> None:
        """End the broker in the middle of a commit, and start it again."""
        self._server.consumer.failures.append(Killed())
        self._gateway.send(Publish(TOPIC, b"%d" % (self._published_count + 1), 1, packet_id=1))
        assert await self._gateway.receive_until_closed() == []
        with pytest.raises(ExceptionGroup) as caught:
            await self._server.stop()
        assert caught.group_contains(Killed)
        assert self._server.consumer.failures == []
        await self._server.start()
        self._may_repeat |= self._uncommitted_acks
        await self._record_start()

    async def settle(self) -> None:
        """Check that every pending message arrives in the end, and that nothing is left in the database."""
        if not self.is_connected:
            await self.connect()
        await self._check_received()
        while self._pending:
            await self.acknowledge(range(len(self._received)), wait=True)
        await self.restart()
        await self.connect()
        assert (await load_stored(self._server)).messages == []

    # Checks

    def _expect_delivery(self, number: int, topic: str) -> None:
        self._published_count = number
        granted = [qos for topic_filter, qos in self._subscriptions.items() if topic in FILTERS[topic_filter]]
        if max(granted, default=0):
            self._pending.append(number)
            if self._may_seem_connected:
                self._perhaps_sent.add(number)
        elif granted and self.is_connected:
            self._expected_qos0.append(number)

    async def _request(self, request: Packet, response: Packet) -> None:
        assert self._client is not None
        self._client.send(request)
        while (packet := await self._client.receive()) != response:
            self._receive(packet)
        self._mark_acks_read()
        self._uncommitted_acks.clear()
        await self._check_received()

    async def _check_received(self) -> None:
        """Receive all packets that were sent, and compare them with the model."""
        if self._client is None:
            return
        for packet in await self._client.receive_until_pong():
            self._receive(packet)
        assert self._expected_qos0 == []
        self._mark_acks_read()
        numbers = [int(message.payload) for message in self._received]
        assert numbers == self._pending[: len(numbers)]
        assert len(numbers) >= min(self._window, len(self._pending))
        self._settle_may_repeat(all_received=len(numbers) < self._window)

    def _settle_may_repeat(self, *, all_received: bool) -> None:
        """Remove messages from `_may_repeat` that would have been repeated by now."""
        acknowledged = {
            number for number in self._may_repeat if all_received or number <= self._last_received
        }
        self._uncommitted_acks |= acknowledged
        self._may_repeat -= acknowledged

    def _receive(self, packet: Packet | None) -> None:
        assert isinstance(packet, Publish), packet
        if packet.qos:
            self._record_qos1(packet, int(packet.payload))
        else:
            assert int(packet.payload) == self._expected_qos0.pop(0)

    def _record_qos1(self, message: Publish, number: int) -> None:
        assert number > self._last_received
        self._last_received = number
        if number in self._may_repeat:
            self._may_repeat.discard(number)
            self._pending = sorted({*self._pending, number})
        assert number in self._pending
        if number in self._ids or number in self._expected_dup:
            assert message.dup
        elif number not in self._perhaps_sent:
            assert not message.dup
        assert self._ids.setdefault(number, message.packet_id) == message.packet_id
        assert message.packet_id not in {each.packet_id for each in self._received}
        self._received.append(message)

    def _mark_acks_read(self) -> None:
        """Record that the broker has read all packets of the client."""
        self._uncommitted_acks |= self._unread_acks
        self._unread_acks.clear()

    def _record_disconnect(self) -> None:
        """Record the end of the connection; packets in either direction may be lost with it."""
        if self._unread_acks:
            self._perhaps_sent |= {*self._pending}
        self._may_repeat |= self._unread_acks
        self._unread_acks.clear()
        self._received.clear()
        self._expected_qos0.clear()
        self._client = None

    async def _record_start(self) -> None:
        self._record_disconnect()
        self._may_seem_connected = False
        self._expected_dup |= {*self._pending, *self._may_repeat}
        self._gateway = await self._server.gateway()
