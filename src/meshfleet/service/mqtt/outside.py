"""Reports from another broker, in the place of the embedded one.

The broker keeps a session for us: what it has sent it sends again until we acknowledge it, and we do so when
the database has committed it (broker-22). So a service that stops, crashes or waits for its database loses
nothing; what comes twice is recognised where reports are stored.

What is not committed is held here only up to a limit. Beyond it nothing is read from the network, and the
reports wait at the broker.

The same link carries what the service says to gateways, and brings their answers to whoever listens to them.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.broker import Batch
from meshfleet.broker.changes import Changes
from meshfleet.broker.tree import Filters
from meshfleet.errors import DatabaseUnavailable, LinkClosed, ReadinessCode, SubscriptionRefused, Trouble
from meshfleet.link import Delays, Link, Options
from meshfleet.link.tls import context
from meshfleet.service.secrets import obtain
from meshfleet.wire.ids import EVERY_GATEWAY
from meshfleet.wire.topics import Topics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from meshfleet.broker import Consumer
    from meshfleet.link import Address
    from meshfleet.settings import Settings
    from meshfleet.wire.mqtt.packets import Publish

_log = logging.getLogger(__name__)

_BACKLOG: Final = 1024 * 1024
"""Bytes of reports that wait for their turn, with as many again in the commit before: some thousand usual
ones. The tiniest, which only somebody who means harm would send, take a hundred times as much in memory."""

_RETURN: Final = Delays(most=10.0)
"""One service in front of a broker is no crowd: it may try more often than a fleet."""

_COMMIT: Final = Delays(first=0.1, most=5.0)
"""Between two tries when the database does not answer."""

_OUTBOX: Final = 10_000
"""Messages that may wait for the broker; what does not fit any more is dropped."""

_AT_ONCE: Final = 500
"""Messages that are offered to the link together."""


def options_of(settings: Settings) -> Options:
    """How to connect to the broker that is set."""
    return Options(
        tls=None if settings.broker_ca is None else context(authorities=settings.broker_ca),
        patient=True,
        delays=_RETURN,
        backlog=_BACKLOG,
        largest=settings.limits.packet_size,
    )


def client_id(connection: Connection) -> str:
    """The name of our session: the same for the same database, and nobody else's.

    As every broker must take it: 23 letters and digits. Who knew it could throw us out of a broker that lets
    clients choose their names, so it cannot be guessed.
    """
    return f"meshfleet{obtain(connection, 'mqtt-client').hex()[:14]}"


class _Waiting(NamedTuple):
    """A message that has not left yet."""

    message: Publish
    until: float
    """When nobody wants it to leave any more, by the clock of the event loop."""


class Outside:
    """Takes reports from another broker, and acknowledges what is committed; carries messages to gateways."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        address: Address,
        client_id: str,
        *,
        prefix: str,
        consumer: Consumer,
        options: Options,
        max_age: float = 60.0,
    ) -> None:
        """`max_age`: seconds that a message may wait for a broker that is away (request-30)."""
        # What is on its way when a connection breaks is given up: a request must not fire twice, and an ack
        # that is lost is sent when its sample comes again.
        self._link = Link(address, client_id, clean=False, options=replace(options, once=True))
        self._reports = Topics(prefix).reports()
        self._pauses = options.delays
        self._consumer = consumer
        self._unsubscribed: str | None = f"{address} does not send reports yet"
        self._uncommitted: Trouble | None = None
        self._listeners: Filters[Callable[[Publish], None]] = Filters()
        self._wanted: list[str] = []
        self._word = slice(_word_at(prefix), _word_at(prefix) + len(_REPORT))
        """Where topics of reports have their word, and topics of answers another."""
        self._max_age = max_age
        self._outbox: deque[_Waiting] = deque()
        self._urgent: deque[tuple[Publish, asyncio.Future[None]]] = deque()
        """Messages whose leaving somebody waits for."""
        self._has_post = asyncio.Event()
        self.dropped = 0
        """Messages that never left: there was no room for them, or they waited too long."""

    # What the service does with it

    @property
    def trouble(self) -> Trouble | None:
        """Why no reports are taken at the moment; None: all is well."""
        if self._uncommitted is not None:
            return self._uncommitted
        if self._link.trouble is not None and not isinstance(self._link.trouble, LinkClosed):
            return Trouble(ReadinessCode.BROKER, str(self._link.trouble))
        return None if self._unsubscribed is None else Trouble(ReadinessCode.BROKER, self._unsubscribed)

    def send(self, messages: Sequence[Publish]) -> None:
        """Send messages, all of QoS 1, as soon as the broker takes them; see `Carrier`."""
        left = 0 if self._outbox else self._link.post(messages)
        room = max(0, _OUTBOX - len(self._outbox))
        until = asyncio.get_running_loop().time() + self._max_age
        self._outbox.extend(_Waiting(message, until) for message in messages[left : left + room])
        self.dropped += max(0, len(messages) - left - room)
        if self._outbox:
            self._has_post.set()

    async def offer(self, message: Publish) -> None:
        """Let a message of QoS 1 leave: a request, which is not to fire when nobody waits any more."""
        if not self._urgent and self._link.post([message]):
            return
        left = asyncio.get_running_loop().create_future()
        self._urgent.append((message, left))
        self._has_post.set()
        await left

    @property
    def muted(self) -> str | None:
        """Why nothing leaves at the moment; see `Carrier`."""
        match self._link.trouble:
            case None:
                return None
            case LinkClosed():
                return "there is no connection yet"
            case trouble:
                return str(trouble)

    def listen(self, wanted: str, heard: Callable[[Publish], None]) -> object:
        """Let somebody hear what a filter matches, which must not be reports; before `run`."""
        self._listeners.add(wanted, heard, 1)
        if wanted not in self._wanted:
            self._wanted.append(wanted)
        return heard

    def gateways(self) -> None:
        """Nobody tells us who is connected there; see `Carrier`."""
        return

    def turn(self, gateway: str) -> None:  # noqa: ARG002 # whoever it is
        """Nobody tells us; see `Carrier`."""
        return

    def last_turn(self, gateway: str) -> None:  # noqa: ARG002 # as above
        """Nobody tells us; see `Carrier`."""
        return

    async def run(self) -> None:
        """Take reports until cancelled. A broker that is away, or refuses us, is waited for."""
        async with self._link, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._subscribe_to_reports(), name="outside.subscribe")
            for wanted in self._wanted:
                tasks.create_task(self._subscribe(wanted), name=f"outside.subscribe {wanted}")
            tasks.create_task(self._receive(), name="outside.receive")
            tasks.create_task(self._deliver(), name="outside.deliver")

    # Inside

    async def _subscribe_to_reports(self) -> None:
        """Ask for reports until the broker sends them; the link asks again when the broker forgets."""
        for pause in self._pauses:
            try:
                await self._link.subscribe(self._reports)
            except SubscriptionRefused as exc:
                if str(exc) != self._unsubscribed:
                    _log.error("no reports come: %s", exc)
                self._unsubscribed = str(exc)
            else:
                self._unsubscribed = None
                return
            await asyncio.sleep(pause)

    async def _subscribe(self, wanted: str) -> None:
        """Ask for what somebody listens to. Reports come without it, so nobody is told but the log."""
        is_told = False
        for pause in self._pauses:
            try:
                await self._link.subscribe(wanted)
            except SubscriptionRefused as exc:
                if not is_told:
                    _log.error("no answers of gateways come: %s", exc)
                is_told = True
            else:
                return
            await asyncio.sleep(pause)

    async def _receive(self) -> None:
        async for received in self._link:
            if reports := self._hand_out(received.messages):
                await self._commit(Batch(reports, Changes(), b""))
            received.acknowledge()

    def _hand_out(self, messages: Sequence[Publish]) -> Sequence[Publish]:
        """Give listeners what they want; gives back what nobody listens to, which is mostly all of it."""
        word = self._word
        if all([message.topic[word] == _REPORT for message in messages]):  # noqa: C419 # twice as fast as a generator
            return messages
        rest = []
        for message in messages:
            listeners = None if message.topic[word] == _REPORT else self._listeners.find(message.topic)
            if not listeners:
                rest.append(message)
                continue
            for heard in listeners:
                heard(message)
        return rest

    async def _deliver(self) -> None:
        """Bring what waits to the broker, whenever it can take something."""
        outbox = self._outbox
        while True:
            await self._has_post.wait()
            await self._link.ready()
            if not self._post_urgent():
                continue
            self._drop_what_is_old()
            left = self._link.post([each.message for each in islice(outbox, _AT_ONCE)])
            for _ in range(left):
                outbox.popleft()
            if not outbox:
                self._has_post.clear()

    def _post_urgent(self) -> bool:
        """Let what somebody waits for leave first; whether there is room for more."""
        while self._urgent:
            message, left = self._urgent[0]
            if not left.done():  # else it is not wanted any more
                if not self._link.post([message]):
                    return False
                left.set_result(None)
            self._urgent.popleft()
        return True

    def _drop_what_is_old(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._outbox and self._outbox[0].until < now:
            self._outbox.popleft()
            self.dropped += 1

    async def _commit(self, batch: Batch) -> None:
        """Try until it is committed; until then nothing is acknowledged, and nothing is lost."""
        for pause in _COMMIT:
            try:
                await self._consumer.take(batch)
            except DatabaseUnavailable as exc:
                if self._uncommitted is None:
                    _log.error("cannot commit, reports wait at the broker: %s", exc)
                self._uncommitted = exc.trouble
            else:
                self._uncommitted = None
                return
            await asyncio.sleep(pause)


_REPORT: Final = "/device/"
"""Behind the MAC of a gateway: what follows is a report."""


def _word_at(prefix: str) -> int:
    """Where that stands in topics below a prefix."""
    return len(Topics(prefix).reports(EVERY_GATEWAY)) - len(f"{_REPORT}#")
