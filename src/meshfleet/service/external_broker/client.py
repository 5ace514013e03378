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

from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.mqtt import LinkClosed, SubscriptionRefused
from meshfleet.errors.readiness import ReadinessCode, ReadinessProblem
from meshfleet.mqtt.broker import ReportBatch
from meshfleet.mqtt.broker.store import PendingChanges
from meshfleet.mqtt.broker.topic_tree import SubscriptionTree
from meshfleet.mqtt.client import ExponentialBackoff, MqttClient, MqttOptions
from meshfleet.protocol.ids import EVERY_GATEWAY
from meshfleet.protocol.topics import TopicCodec
from meshfleet.service.secret_store import load_or_create_secret
from meshfleet.tls import create_tls_context

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection

    from meshfleet.mqtt.broker import ReportConsumer
    from meshfleet.mqtt.client import BrokerAddress
    from meshfleet.mqtt.codec.packets import Publish
    from meshfleet.settings import Settings

_log = logging.getLogger(__name__)

_BACKLOG_BYTES: Final = 1024 * 1024
"""Bytes of reports that wait for their turn, with as many again in the commit before: some thousand usual
ones. The tiniest, which only somebody who means harm would send, take a hundred times as much in memory."""

_RECONNECT_DELAYS: Final = ExponentialBackoff(maximum=10.0)
"""One service in front of a broker is no crowd: it may try more often than a fleet."""

_COMMIT_DELAYS: Final = ExponentialBackoff(initial=0.1, maximum=5.0)
"""Between two tries when the database does not answer."""

_MAX_OUTBOX: Final = 10_000
"""Messages that may wait for the broker; what does not fit any more is dropped."""

_SEND_BATCH: Final = 500
"""Messages that are offered to the link together."""


def build_link_options(settings: Settings) -> MqttOptions:
    """How to connect to the broker that is set."""
    return MqttOptions(
        tls=None if settings.broker_ca is None else create_tls_context(authorities=settings.broker_ca),
        retry_first_connect=True,
        backoff=_RECONNECT_DELAYS,
        backlog=_BACKLOG_BYTES,
        max_packet_bytes=settings.limits.packet_size,
    )


def load_client_id(connection: Connection) -> str:
    """The name of our session: the same for the same database, and nobody else's.

    As every broker must take it: 23 letters and digits. Who knew it could throw us out of a broker that lets
    clients choose their names, so it cannot be guessed.
    """
    return f"meshfleet{load_or_create_secret(connection, 'mqtt-client').hex()[:14]}"


class _QueuedMessage(NamedTuple):
    """A message that has not left yet."""

    message: Publish
    expires_at: float
    """When nobody wants it to leave any more, by the clock of the event loop."""


class ExternalBrokerClient:
    """Takes reports from another broker, and acknowledges what is committed; carries messages to gateways."""

    def __init__(  # noqa: PLR0913 # by name
        self,
        address: BrokerAddress,
        client_id: str,
        *,
        prefix: str,
        consumer: ReportConsumer,
        options: MqttOptions,
        max_age: float = 60.0,
    ) -> None:
        """`max_age`: seconds that a message may wait for a broker that is away (request-30)."""
        # What is on its way when a connection breaks is given up: a request must not fire twice, and an ack
        # that is lost is sent when its sample comes again.
        self._link = MqttClient(
            address, client_id, clean=False, options=replace(options, discard_on_disconnect=True)
        )
        self._reports = TopicCodec(prefix).report_filter()
        self._retry_delays = options.backoff
        self._consumer = consumer
        self._subscription_trouble: str | None = f"{address} does not send reports yet"
        self._commit_trouble: ReadinessProblem | None = None
        self._callbacks: SubscriptionTree[Callable[[Publish], None]] = SubscriptionTree()
        self._topic_filters: list[str] = []
        self._report_level = slice(
            _find_report_level(prefix), _find_report_level(prefix) + len(_REPORT_LEVEL)
        )
        """Where topics of reports have their word, and topics of answers another."""
        self._max_age = max_age
        self._outbox: deque[_QueuedMessage] = deque()
        self._urgent: deque[tuple[Publish, asyncio.Future[None]]] = deque()
        """Messages whose leaving somebody waits for."""
        self._has_outgoing = asyncio.Event()
        self.dropped = 0
        """Messages that never left: there was no room for them, or they waited too long."""

    # What the service does with it

    @property
    def trouble(self) -> ReadinessProblem | None:
        """Why no reports are taken at the moment; None: all is well."""
        if self._commit_trouble is not None:
            return self._commit_trouble
        if self._link.connection_error is not None and not isinstance(
            self._link.connection_error, LinkClosed
        ):
            return ReadinessProblem(ReadinessCode.BROKER, str(self._link.connection_error))
        return (
            None
            if self._subscription_trouble is None
            else ReadinessProblem(ReadinessCode.BROKER, self._subscription_trouble)
        )

    def send(self, messages: Sequence[Publish]) -> None:
        """Send messages, all of QoS 1, as soon as the broker takes them; see `Carrier`."""
        left = 0 if self._outbox else self._link.try_publish(messages)
        room = max(0, _MAX_OUTBOX - len(self._outbox))
        until = asyncio.get_running_loop().time() + self._max_age
        self._outbox.extend(_QueuedMessage(message, until) for message in messages[left : left + room])
        self.dropped += max(0, len(messages) - left - room)
        if self._outbox:
            self._has_outgoing.set()

    async def send_urgent(self, message: Publish) -> None:
        """Let a message of QoS 1 leave: a request, which is not to fire when nobody waits any more."""
        if not self._urgent and self._link.try_publish([message]):
            return
        left = asyncio.get_running_loop().create_future()
        self._urgent.append((message, left))
        self._has_outgoing.set()
        await left

    @property
    def unavailable_reason(self) -> str | None:
        """Why nothing leaves at the moment; see `Carrier`."""
        match self._link.connection_error:
            case None:
                return None
            case LinkClosed():
                return "there is no connection yet"
            case trouble:
                return str(trouble)

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> object:
        """Let somebody hear what a filter matches, which must not be reports; before `run`."""
        self._callbacks.add(topic_filter, callback, 1)
        if topic_filter not in self._topic_filters:
            self._topic_filters.append(topic_filter)
        return callback

    def connected_gateways(self) -> None:
        """Nobody tells us who is connected there; see `Carrier`."""
        return

    def connection_number(self, gateway: str) -> None:  # noqa: ARG002 # whoever it is
        """Nobody tells us; see `Carrier`."""
        return

    def last_connection_number(self, gateway: str) -> None:  # noqa: ARG002 # as above
        """Nobody tells us; see `Carrier`."""
        return

    async def run(self) -> None:
        """Take reports until cancelled. A broker that is away, or refuses us, is waited for."""
        async with self._link, asyncio.TaskGroup() as tasks:
            tasks.create_task(self._subscribe_to_reports(), name="outside.subscribe")
            for wanted in self._topic_filters:
                tasks.create_task(self._subscribe(wanted), name=f"outside.subscribe {wanted}")
            tasks.create_task(self._receive(), name="outside.receive")
            tasks.create_task(self._send_outgoing(), name="outside.deliver")

    # Inside

    async def _subscribe_to_reports(self) -> None:
        """Ask for reports until the broker sends them; the link asks again when the broker forgets."""
        for pause in self._retry_delays:
            try:
                await self._link.subscribe(self._reports)
            except SubscriptionRefused as exc:
                if str(exc) != self._subscription_trouble:
                    _log.error("no reports come: %s", exc)
                self._subscription_trouble = str(exc)
            else:
                self._subscription_trouble = None
                return
            await asyncio.sleep(pause)

    async def _subscribe(self, topic_filter: str) -> None:
        """Ask for what somebody listens to. Reports come without it, so nobody is told but the log."""
        is_told = False
        for pause in self._retry_delays:
            try:
                await self._link.subscribe(topic_filter)
            except SubscriptionRefused as exc:
                if not is_told:
                    _log.error("no answers of gateways come: %s", exc)
                is_told = True
            else:
                return
            await asyncio.sleep(pause)

    async def _receive(self) -> None:
        async for received in self._link:
            if reports := self._dispatch_responses(received.messages):
                await self._commit(ReportBatch(reports, PendingChanges(), b""))
            received.acknowledge()

    def _dispatch_responses(self, messages: Sequence[Publish]) -> Sequence[Publish]:
        """Give listeners what they want; gives back what nobody listens to, which is mostly all of it."""
        word = self._report_level
        if all([message.topic[word] == _REPORT_LEVEL for message in messages]):  # noqa: C419 # twice as fast as a generator
            return messages
        rest = []
        for message in messages:
            listeners = (
                None
                if message.topic[word] == _REPORT_LEVEL
                else self._callbacks.find_subscribers(message.topic)
            )
            if not listeners:
                rest.append(message)
                continue
            for heard in listeners:
                heard(message)
        return rest

    async def _send_outgoing(self) -> None:
        """Bring what waits to the broker, whenever it can take something."""
        outbox = self._outbox
        while True:
            await self._has_outgoing.wait()
            await self._link.wait_writable()
            if not self._send_urgent_messages():
                continue
            self._drop_expired()
            left = self._link.try_publish([each.message for each in islice(outbox, _SEND_BATCH)])
            for _ in range(left):
                outbox.popleft()
            if not outbox:
                self._has_outgoing.clear()

    def _send_urgent_messages(self) -> bool:
        """Let what somebody waits for leave first; whether there is room for more."""
        while self._urgent:
            message, left = self._urgent[0]
            if not left.done():  # else it is not wanted any more
                if not self._link.try_publish([message]):
                    return False
                left.set_result(None)
            self._urgent.popleft()
        return True

    def _drop_expired(self) -> None:
        now = asyncio.get_running_loop().time()
        while self._outbox and self._outbox[0].expires_at < now:
            self._outbox.popleft()
            self.dropped += 1

    async def _commit(self, batch: ReportBatch) -> None:
        """Try until it is committed; until then nothing is acknowledged, and nothing is lost."""
        for pause in _COMMIT_DELAYS:
            try:
                await self._consumer.commit(batch)
            except DatabaseUnavailable as exc:
                if self._commit_trouble is None:
                    _log.error("cannot commit, reports wait at the broker: %s", exc)
                self._commit_trouble = exc.readiness_problem
            else:
                self._commit_trouble = None
                return
            await asyncio.sleep(pause)


_REPORT_LEVEL: Final = "/device/"
"""Behind the MAC of a gateway: what follows is a report."""


def _find_report_level(prefix: str) -> int:
    """Where that stands in topics below a prefix."""
    return len(TopicCodec(prefix).report_filter(EVERY_GATEWAY)) - len(f"{_REPORT_LEVEL}#")
