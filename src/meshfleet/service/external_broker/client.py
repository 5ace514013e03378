"""Client of an external MQTT broker that replaces the embedded broker.

The broker keeps a persistent session for the service and resends each report until the service acknowledges
the report, which the service does after the database commit (broker-22). So no report is lost if the service
stops, crashes or waits for its database. Duplicates are recognized when reports are stored.

Uncommitted reports are held in memory only up to a limit. Above the limit nothing is read from the network,
and further reports wait at the broker.

The client also sends requests to gateways and receives their responses.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.errors import DatabaseUnavailable
from meshfleet.errors.mqtt import ConnectionClosed, SubscriptionRefused
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
    from meshfleet.service.transport import Transport
    from meshfleet.settings import Settings

_log = logging.getLogger(__name__)

_BACKLOG_BYTES: Final = 1024 * 1024
"""Maximum bytes of received reports that wait while another batch of this size is committed.

This is some thousand usual reports. Tiny reports, which only an attacker would send, take a hundred times as
much memory.
"""

_RECONNECT_DELAYS: Final = ExponentialBackoff(maximum=10.0)
"""Seconds between attempts to connect to the external broker, fewer than by default."""

_COMMIT_DELAYS: Final = ExponentialBackoff(initial=0.1, maximum=5.0)
"""Seconds between attempts to commit reports while the database is unavailable."""

_MAX_OUTBOX: Final = 10_000
"""Maximum number of messages to gateways that wait for the broker; further messages are dropped."""

_SEND_BATCH: Final = 500
"""Maximum number of queued messages that are passed to the MQTT client at once."""


def build_link_options(settings: Settings) -> MqttOptions:
    """Return the options of the MQTT connection to the external broker."""
    return MqttOptions(
        tls=None if settings.broker_ca is None else create_tls_context(authorities=settings.broker_ca),
        retry_first_connect=True,
        backoff=_RECONNECT_DELAYS,
        backlog=_BACKLOG_BYTES,
        max_packet_bytes=settings.limits.packet_size,
    )


def load_client_id(connection: Connection) -> str:
    """Return the MQTT client id that is stored in the database; create the id on first use.

    The id has 23 letters and digits, which every broker must accept. The id is random, because on some
    brokers any client that knows the id could take over the session.
    """
    return f"meshfleet{load_or_create_secret(connection, 'mqtt-client').hex()[:14]}"


class _QueuedMessage(NamedTuple):
    """MQTT message to a gateway that waits until the broker can be reached."""

    message: Publish
    expires_at: float
    """Time after which the message is dropped, in seconds of the event loop's monotonic clock."""


class ExternalBrokerClient:
    """Receives reports from an external MQTT broker, and sends requests to gateways through the broker.

    Reports are acknowledged after they are committed.
    """

    def __init__(  # keyword-only settings
        self,
        address: BrokerAddress,
        client_id: str,
        *,
        prefix: str,
        options: MqttOptions,
        max_age: float = 60.0,
    ) -> None:
        """Create a client; `run` connects the client to the broker.

        `max_age` is the maximum number of seconds that a message waits for the broker (request-30).
        """
        # Messages in flight when a connection breaks are discarded: a request must not be executed twice. A
        # lost acknowledgement of a sample does no harm: the device resends the sample and gets another one.
        self._link = MqttClient(
            address, client_id, clean=False, options=replace(options, discard_on_disconnect=True)
        )
        self._reports = TopicCodec(prefix).report_filter()
        self._retry_delays = options.backoff
        self._subscription_problem: str | None = f"not subscribed to reports at {address} yet"
        self._commit_problem: ReadinessProblem | None = None
        self._callbacks: SubscriptionTree[Callable[[Publish], None]] = SubscriptionTree()
        self._topic_filters: list[str] = []
        self._report_level = slice(
            _find_report_level(prefix), _find_report_level(prefix) + len(_REPORT_LEVEL)
        )
        """Position in a topic at which report topics contain `/device/`, but response topics do not."""
        self._max_age = max_age
        self._outbox: deque[_QueuedMessage] = deque()
        self._urgent: deque[tuple[Publish, asyncio.Future[None]]] = deque()
        """Messages of waiting `send_urgent` calls, each with the future to set when the message is sent."""
        self._has_outgoing = asyncio.Event()
        self.dropped = 0
        """Number of messages to gateways dropped because the queue was full or they waited too long."""

    # Interface for the service

    @property
    def transport(self) -> Transport:
        """This client, through which requests to gateways are sent."""
        return self

    @property
    def problem(self) -> ReadinessProblem | None:
        """Problem that keeps the service from receiving or committing reports; None if there is none."""
        if self._commit_problem is not None:
            return self._commit_problem
        if self._link.connection_error is not None and not isinstance(
            self._link.connection_error, ConnectionClosed
        ):
            return ReadinessProblem(ReadinessCode.BROKER, str(self._link.connection_error))
        return (
            None
            if self._subscription_problem is None
            else ReadinessProblem(ReadinessCode.BROKER, self._subscription_problem)
        )

    def set_request_max_age(self, seconds: float) -> None:
        """Change how long messages that are sent from now on may wait for an unavailable broker."""
        self._max_age = seconds

    def send(self, messages: Sequence[Publish]) -> None:
        """Send messages with QoS 1, or queue them until the broker accepts them; see `Transport`."""
        sent = 0 if self._outbox else self._link.try_publish(messages)
        free = max(0, _MAX_OUTBOX - len(self._outbox))
        expires_at = asyncio.get_running_loop().time() + self._max_age
        self._outbox.extend(_QueuedMessage(message, expires_at) for message in messages[sent : sent + free])
        self.dropped += max(0, len(messages) - sent - free)
        if self._outbox:
            self._has_outgoing.set()

    async def publish_all(self, messages: Sequence[Publish]) -> None:
        """Publish messages that no gateway waits for. Return when the broker has acknowledged them.

        Raise `ConnectionLost` if the connection breaks before that: they are not sent again by themselves.
        """
        await self._link.publish_all(messages)

    async def send_urgent(self, message: Publish) -> None:
        """Send a message with QoS 1 ahead of queued messages, and wait until it is sent.

        If this call is canceled while it waits, the message is not sent.
        """
        if not self._urgent and self._link.try_publish([message]):
            return
        sent = asyncio.get_running_loop().create_future()
        self._urgent.append((message, sent))
        self._has_outgoing.set()
        await sent

    @property
    def unavailable_reason(self) -> str | None:
        """Reason why no message can be sent to the broker now; None if messages can be sent."""
        match self._link.connection_error:
            case None:
                return None
            case ConnectionClosed():
                return "not connected to the broker yet"
            case error:
                return str(error)

    def subscribe(self, topic_filter: str, callback: Callable[[Publish], None]) -> object:
        """Call `callback` for received messages that match the topic filter, except reports.

        Subscribe before `run` is called.
        """
        self._callbacks.add(topic_filter, callback, 1)
        if topic_filter not in self._topic_filters:
            self._topic_filters.append(topic_filter)
        return callback

    def connected_gateways(self) -> None:
        """Return None: only the external broker knows which gateways are connected; see `Transport`."""
        return

    def hears_requests(self, gateway: str) -> bool:  # noqa: ARG002 # part of the protocol
        """Return True, because only the broker knows which gateways have subscribed."""
        return True

    def connection_id(self, gateway: str) -> None:  # noqa: ARG002 # part of the protocol
        """Return None: only the external broker knows the connections of gateways; see `Transport`."""
        return

    def last_connection_id(self, gateway: str) -> None:  # noqa: ARG002 # part of the protocol
        """Return None: only the external broker knows the connections of gateways; see `Transport`."""
        return

    async def run(self, consumer: ReportConsumer) -> None:
        """Receive reports and pass them to the consumer until canceled.

        Reconnect while the broker is unavailable or refuses the connection.
        """
        async with self._link, asyncio.TaskGroup() as tasks:
            for topic_filter in (self._reports, *self._topic_filters):
                task_name = f"external_broker.subscribe {topic_filter}"
                tasks.create_task(self._subscribe(topic_filter), name=task_name)
            tasks.create_task(self._receive_messages(consumer), name="external_broker.receive")
            tasks.create_task(self._send_outgoing(), name="external_broker.send")

    # Background tasks

    async def _subscribe(self, topic_filter: str) -> None:
        """Subscribe to a topic filter; retry until the broker accepts the MQTT subscription.

        A refusal is logged. Only a refused subscription to reports makes the service not ready.
        """
        is_for_reports = topic_filter == self._reports
        messages = "reports" if is_for_reports else "responses of gateways"
        problem: str | None = None
        for pause in self._retry_delays:
            try:
                await self._link.subscribe(topic_filter)
            except SubscriptionRefused as exc:
                if str(exc) != problem:
                    _log.error("cannot subscribe to %s at the broker, will retry: %s", messages, exc)
                problem = str(exc)
            else:
                problem = None
            if is_for_reports:
                self._subscription_problem = problem
            if problem is None:
                return
            await asyncio.sleep(pause)

    async def _receive_messages(self, consumer: ReportConsumer) -> None:
        """Pass received responses to their subscribers, and commit received reports."""
        async for received in self._link:
            if reports := self._dispatch_responses(received.messages):
                await self._commit(consumer, ReportBatch(reports, PendingChanges(), b""))
            received.acknowledge()

    def _dispatch_responses(self, messages: Sequence[Publish]) -> Sequence[Publish]:
        """Pass responses to the subscribed callbacks. Return all other messages, usually reports."""
        level = self._report_level
        if all([message.topic[level] == _REPORT_LEVEL for message in messages]):  # noqa: C419 # twice as fast as a generator
            return messages
        reports = []
        for message in messages:
            callbacks = (
                None
                if message.topic[level] == _REPORT_LEVEL
                else self._callbacks.find_subscribers(message.topic)
            )
            if not callbacks:
                reports.append(message)
                continue
            for callback in callbacks:
                callback(message)
        return reports

    async def _send_outgoing(self) -> None:
        """Send queued messages whenever the connection to the broker accepts some, urgent messages first."""
        outbox = self._outbox
        while True:
            await self._has_outgoing.wait()
            await self._link.wait_writable()
            if not self._send_urgent_messages():
                continue
            self._drop_expired()
            sent_count = self._link.try_publish([each.message for each in islice(outbox, _SEND_BATCH)])
            for _ in range(sent_count):
                outbox.popleft()
            if not outbox:
                self._has_outgoing.clear()

    def _send_urgent_messages(self) -> bool:
        """Send the urgent messages. Return False if the connection did not accept all of them."""
        while self._urgent:
            message, sent = self._urgent[0]
            if not sent.done():  # else canceled
                if not self._link.try_publish([message]):
                    return False
                sent.set_result(None)
            self._urgent.popleft()
        return True

    def _drop_expired(self) -> None:
        """Drop queued messages that have waited too long for the broker."""
        now = asyncio.get_running_loop().time()
        while self._outbox and self._outbox[0].expires_at < now:
            self._outbox.popleft()
            self.dropped += 1

    async def _commit(self, consumer: ReportConsumer, batch: ReportBatch) -> None:
        """Commit a batch of reports; retry until the commit succeeds."""
        for pause in _COMMIT_DELAYS:
            try:
                await consumer.commit(batch)
            except DatabaseUnavailable as exc:
                if self._commit_problem is None:
                    _log.error("cannot commit reports, they wait at the broker: %s", exc)
                self._commit_problem = exc.readiness_problem
            else:
                self._commit_problem = None
                return
            await asyncio.sleep(pause)


_REPORT_LEVEL: Final = "/device/"
"""Topic level after the MAC of a gateway that only report topics have."""


def _find_report_level(prefix: str) -> int:
    """Return the character index of `/device/` in report topics with this prefix."""
    return len(TopicCodec(prefix).report_filter(EVERY_GATEWAY)) - len(f"{_REPORT_LEVEL}#")
