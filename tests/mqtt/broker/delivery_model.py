"""One client with a lasting session, and a simple account of what the broker has promised it.

Messages are numbered in the order in which they are published, each at QoS 1. Whatever happens, these hold:
what was acknowledged to the publisher comes until the client acknowledges it; it comes in order and without
holes; a repetition has the packet id of the first time and is marked; and what the client acknowledged does
not come again, unless the broker may have missed the acknowledgement or was killed before it was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.mqtt.codec.packets import Puback, Publish, Suback, Subscribe, Unsuback, Unsubscribe
from tests.mqtt.broker.messages import TOPIC, load_stored, session_of
from tests.mqtt.broker.running_broker import REPORTS, report

if TYPE_CHECKING:
    from collections.abc import Collection

    from meshfleet.mqtt.codec.packets import Packet
    from tests.mqtt.broker.raw_client import RawClient
    from tests.mqtt.broker.running_broker import RunningBroker

ELSEWHERE = report(kind="heartbeat")

FILTERS = {REPORTS: {TOPIC, ELSEWHERE}, TOPIC: {TOPIC}, ELSEWHERE: {ELSEWHERE}}
"""What may be asked for, and which topics that brings."""


class Killed(Exception):
    """What the consumer raises in place of a commit, so that the broker ends and writes nothing more."""


class DeliveryModel:
    """What the client is owed, and what it got."""

    def __init__(self, stage: RunningBroker, window: int) -> None:
        self._stage = stage
        self._window = window
        self._gateway: RawClient
        self._client: RawClient | None = None
        self._subscriptions: dict[str, int] = {}
        self._count = 0
        self._owed: list[int] = []
        """Promised and not acknowledged."""
        self._here: list[Publish] = []
        """Came on this connection and is not acknowledged."""
        self._last = 0
        """The last that came on this connection."""
        self._plain: list[int] = []
        """At QoS 0, still to come."""
        self._unheard: set[int] = set()
        """Acknowledged, but the broker may not know it yet."""
        self._unwritten: set[int] = set()
        """Acknowledged, but the database may not know it yet."""
        self._limbo: set[int] = set()
        """Acknowledged, and may come again all the same."""
        self._ids: dict[int, int] = {}
        """The packet ids of what came."""
        self._marked: set[int] = set()
        """What comes as a repetition whether it came before or not, after a start."""
        self._perhaps_sent: set[int] = set()
        """What may have been sent and never came."""
        self._seems_there = False
        """Whether the broker may not have noticed yet that the connection broke."""

    async def start(self) -> None:
        """Connect both."""
        self._gateway = await self._stage.gateway()
        await self.connect()

    # What happens

    @property
    def is_connected(self) -> bool:
        """Whether the client is there."""
        return self._client is not None

    async def publish(self, topic: str, count: int) -> None:
        """Publish messages, and have them acknowledged."""
        numbers = range(self._count + 1, self._count + count + 1)
        self._gateway.send(*(Publish(topic, b"%d" % n, 1, packet_id=n) for n in numbers))
        for n in numbers:
            assert await self._gateway.expect(Puback) == Puback(n)
            self._promise(n, topic)
        self._unwritten.clear()
        await self._look()

    async def subscribe(self, wanted: str, qos: int) -> None:
        """Ask for topics."""
        await self._ask(Subscribe(1, ((wanted, qos),)), Suback(1, (qos,)))
        self._subscriptions[wanted] = qos

    async def unsubscribe(self, wanted: str) -> None:
        """No longer want them."""
        await self._ask(Unsubscribe(1, (wanted,)), Unsuback(1))
        self._subscriptions.pop(wanted, None)

    async def acknowledge(self, places: Collection[int], *, wait: bool) -> None:
        """Acknowledge some of what came, in any order; perhaps without waiting until the broker knows."""
        assert self._client is not None
        taken = [self._here[place] for place in places if place < len(self._here)]
        for message in taken:
            self._client.send(Puback(message.packet_id))
            self._here.remove(message)
            self._owed.remove(int(message.payload))
            self._unheard.add(int(message.payload))
        if wait:
            await self._look()

    async def cut(self, *, noticed: bool) -> None:
        """The connection breaks."""
        assert self._client is not None
        self._client.abort()
        self._lose()
        if noticed:
            await self._stage.until(lambda: session_of(self._stage, "viewer").connection is None)
        self._seems_there = not noticed

    async def connect(self) -> None:
        """The client comes, or comes once more, which ends its other connection."""
        if self._client is not None:
            self._lose()
        self._client = await self._stage.client("viewer", clean=False)
        self._seems_there = False
        self._last = 0
        await self._look()
        self._perhaps_sent.clear()

    async def restart(self) -> None:
        """The service stops and starts."""
        await self._stage.restart()
        await self._begin_anew()

    async def kill(self) -> None:
        """The service ends in the middle of a round, and starts."""
        self._stage.consumer.failures.append(Killed())
        self._gateway.send(Publish(TOPIC, b"%d" % (self._count + 1), 1, packet_id=1))
        assert await self._gateway.receive_until_closed() == []
        with pytest.raises(ExceptionGroup) as caught:
            await self._stage.stop()
        assert caught.group_contains(Killed)
        assert self._stage.consumer.failures == []
        await self._stage.start()
        self._limbo |= self._unwritten
        await self._begin_anew()

    async def settle(self) -> None:
        """In the end everything that was promised has come, and nothing is left."""
        if not self.is_connected:
            await self.connect()
        await self._look()
        while self._owed:
            await self.acknowledge(range(len(self._here)), wait=True)
        await self.restart()
        await self.connect()
        assert (await load_stored(self._stage)).messages == []

    # What must hold

    def _promise(self, number: int, topic: str) -> None:
        self._count = number
        granted = [qos for wanted, qos in self._subscriptions.items() if topic in FILTERS[wanted]]
        if max(granted, default=0):
            self._owed.append(number)
            if self._seems_there:
                self._perhaps_sent.add(number)
        elif granted and self.is_connected:
            self._plain.append(number)

    async def _ask(self, ask: Packet, answer: Packet) -> None:
        assert self._client is not None
        self._client.send(ask)
        while (packet := await self._client.receive()) != answer:
            self._receive(packet)
        self._heard()
        self._unwritten.clear()
        await self._look()

    async def _look(self) -> None:
        """See what came, and that it is what had to come."""
        if self._client is None:
            return
        for packet in await self._client.receive_until_pong():
            self._receive(packet)
        assert self._plain == []
        self._heard()
        here = [int(message.payload) for message in self._here]
        assert here == self._owed[: len(here)]
        assert len(here) >= min(self._window, len(self._owed))
        self._decide(all_came=len(here) < self._window)

    def _decide(self, *, all_came: bool) -> None:
        """What might have come again, and would have by now, was heard."""
        heard = {number for number in self._limbo if all_came or number <= self._last}
        self._unwritten |= heard
        self._limbo -= heard

    def _receive(self, packet: Packet | None) -> None:
        assert isinstance(packet, Publish), packet
        if packet.qos:
            self._take(packet, int(packet.payload))
        else:
            assert int(packet.payload) == self._plain.pop(0)

    def _take(self, message: Publish, number: int) -> None:
        assert number > self._last
        self._last = number
        if number in self._limbo:
            self._limbo.discard(number)
            self._owed = sorted({*self._owed, number})
        assert number in self._owed
        if number in self._ids or number in self._marked:
            assert message.dup
        elif number not in self._perhaps_sent:
            assert not message.dup
        assert self._ids.setdefault(number, message.packet_id) == message.packet_id
        assert message.packet_id not in {each.packet_id for each in self._here}
        self._here.append(message)

    def _heard(self) -> None:
        """The broker has read all that the client sent."""
        self._unwritten |= self._unheard
        self._unheard.clear()

    def _lose(self) -> None:
        """The connection is gone, and with it perhaps what was under way in either direction."""
        if self._unheard:
            self._perhaps_sent |= {*self._owed}
        self._limbo |= self._unheard
        self._unheard.clear()
        self._here.clear()
        self._plain.clear()
        self._client = None

    async def _begin_anew(self) -> None:
        self._lose()
        self._seems_there = False
        self._marked |= {*self._owed, *self._limbo}
        self._gateway = await self._stage.gateway()
