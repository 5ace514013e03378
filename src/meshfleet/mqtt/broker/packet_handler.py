"""What becomes of what clients send: their messages, their subscriptions, and their answers."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from meshfleet.errors import quote_input
from meshfleet.mqtt.broker.group_commit import BUSY_BATCH_MESSAGES
from meshfleet.mqtt.broker.log_limiter import LogLimiter
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import SUBACK_FAILURE, Pubcomp, Pubrec, Suback, Unsuback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.mqtt.broker.auth import Authenticator
    from meshfleet.mqtt.broker.connection import ServerConnection
    from meshfleet.mqtt.broker.group_commit import GroupCommit
    from meshfleet.mqtt.broker.quotas import QueueQuotas
    from meshfleet.mqtt.broker.router import MessageRouter
    from meshfleet.mqtt.broker.session import MqttSession
    from meshfleet.mqtt.broker_limits import BrokerLimits
    from meshfleet.mqtt.codec.packets import OversizedPublish, Publish, Subscribe, Unsubscribe

_log = logging.getLogger(__name__)

_MAX_FILTER_BYTES: Final = 1024
"""Bytes; longer ones do not fit into an index of every database."""
_MAX_FILTER_LEVELS: Final = 32
"""Levels."""

_SMALL_READ_BYTES: Final = 8 * 1024
"""What is read from a client that has few things to say at a time."""

_MAX_LOGGED_FILTERS: Final = 5
"""Forbidden filters of one SUBSCRIBE that a log line names."""

_RESPONSE_BYTES: Final = 512
"""Bytes that an answer takes while it waits for its round, about."""


class PacketHandler:
    """Serves clients that were let in."""

    def __init__(  # noqa: PLR0913 # by name; it brings all of them together
        self,
        *,
        router: MessageRouter,
        group_commit: GroupCommit,
        authenticator: Authenticator,
        quotas: QueueQuotas,
        limits: BrokerLimits,
        max_batch_bytes: int,
    ) -> None:
        self._router = router
        self._group_commit = group_commit
        self._authenticator = authenticator
        self._quotas = quotas
        self._limits = limits
        self._max_batch_bytes = max_batch_bytes
        self._denied_log_limiter = LogLimiter(lines=5)

    def handle_publish(
        self, connection: ServerConnection, session: MqttSession, messages: Sequence[Publish], size: int
    ) -> None:
        """Take messages that came in so many bytes.

        A hot path: most of them are reports, and go straight into the round.
        """
        if connection.routes_version != self._router.routes_version:
            connection.routes_version = self._router.routes_version
            connection.consumer_only_prefix = self._router.find_consumer_only_prefix(
                connection.permissions.publish_prefixes
            )
        current, quiet = self._group_commit.batch, connection.consumer_only_prefix
        consume, packet_ids = current.reports.append, current.pending_acks.setdefault(connection, [])
        for message in messages:
            topic = message.topic
            if quiet and topic.startswith(quiet) and message.qos == 1 and not message.retain:
                consume(message)
                packet_ids.append(message.packet_id)
            elif connection.permissions.may_publish(topic):
                self._route(connection, session, message, packet_ids)
            else:
                self._reject_publish(connection, topic)
                break
        self._quotas.received_count += len(messages)
        if not current.is_urgent:
            self._group_commit.request_commit()
        self._count_batch_bytes(connection, size)
        if len(current.reports) >= BUSY_BATCH_MESSAGES and size < _SMALL_READ_BYTES and len(packet_ids) > 1:
            # It has more to say than once in a round, and there are many of them: read it once in a round.
            connection.hold_reading()
            self._group_commit.release_with_next_batch(connection)

    def _count_batch_bytes(self, connection: ServerConnection, size: int) -> None:
        """Count what somebody puts into the round; who finds it full waits for the next one."""
        current = self._group_commit.batch
        current.received_bytes += size
        if current.received_bytes > self._max_batch_bytes and connection.is_open:
            connection.hold_reading()
            self._group_commit.release_with_next_batch(connection)

    def _route(
        self, connection: ServerConnection, session: MqttSession, message: Publish, packet_ids: list[int]
    ) -> None:
        if message.qos > 1:
            if message.packet_id not in session.unreleased_ids:  # [MQTT-4.3.3-2]
                session.unreleased_ids.add(message.packet_id)
                self._group_commit.save_unreleased_id(session, message.packet_id, is_open=True)
                self._router.route(message, session.account)
            self._group_commit.call_after_commit(
                partial(connection.send, encode_packet(Pubrec(message.packet_id)))
            )
            return
        self._router.route(message, session.account)
        if message.qos:
            packet_ids.append(message.packet_id)

    def handle_oversized(self, connection: ServerConnection, message: OversizedPublish) -> None:
        """Take note of a message that is larger than we take.

        A report is acknowledged all the same, or its gateway would send it for ever; the consumer is told.
        """
        if not connection.permissions.may_publish(message.topic):
            self._reject_publish(connection, message.topic)
        elif not self._router.find_route(message.topic).is_consumed or message.qos > 1:
            connection.close(f"it published {message.size} bytes at once")
        else:
            self._group_commit.batch.reports.append(message)
            if message.qos:
                self._group_commit.batch.pending_acks.setdefault(connection, []).append(message.packet_id)
            self._group_commit.request_commit()
            self._count_batch_bytes(connection, len(message.topic))

    def handle_pubrel(self, connection: ServerConnection, session: MqttSession, packet_id: int) -> None:
        """Let go of a message at QoS 2: its id may come again [MQTT-4.3.3-2]."""
        if packet_id in session.unreleased_ids:
            session.unreleased_ids.discard(packet_id)
            self._group_commit.save_unreleased_id(session, packet_id, is_open=False)
        self._respond(connection, session, encode_packet(Pubcomp(packet_id)))

    def handle_subscribe(self, connection: ServerConnection, session: MqttSession, packet: Subscribe) -> None:
        """Grant what a client asks for, filter by filter."""
        codes, forbidden = [], []
        for wanted, qos in packet.filters:
            # Each may bring all that is retained. Who has asked for far too much gets no more for now.
            code = (
                SUBACK_FAILURE if connection.is_over_budget else self._grant(connection, session, wanted, qos)
            )
            codes.append(code)
            if code == SUBACK_FAILURE and not connection.permissions.may_read(wanted):
                forbidden.append(wanted)
            if not connection.is_open:  # it cannot keep up with what is retained
                return
        if forbidden and self._denied_log_limiter.count(session.account):
            self._log_denied_filters(connection, session, forbidden)
        self._respond(connection, session, encode_packet(Suback(packet.packet_id, tuple(codes))))

    def _log_denied_filters(
        self, connection: ServerConnection, session: MqttSession, denied: list[str]
    ) -> None:
        _log.warning(
            "client %s of %s may not subscribe to %s; this account may subscribe to %s, or to parts of them",
            quote_input(session.client_id),
            connection,
            ", ".join(map(quote_input, denied[:_MAX_LOGGED_FILTERS]))
            + (", …" if len(denied) > _MAX_LOGGED_FILTERS else ""),
            ", ".join(connection.permissions.widest_filters),
        )

    def _grant(self, connection: ServerConnection, session: MqttSession, topic_filter: str, qos: int) -> int:
        mine = session.subscriptions
        if topic_filter not in mine and len(mine) >= self._limits.subscriptions:
            return SUBACK_FAILURE
        if not connection.permissions.may_read(topic_filter):
            connection.charge_packets(1)
            self._report_denied(connection, "subscribe", topic_filter)
            return SUBACK_FAILURE
        if len(topic_filter.encode()) > _MAX_FILTER_BYTES or topic_filter.count("/") >= _MAX_FILTER_LEVELS:
            return SUBACK_FAILURE
        mine[topic_filter] = granted = min(qos, 1)
        self._group_commit.save_subscription(session, topic_filter, granted)
        connection.charge_packets(1 + self._router.subscribe(session, topic_filter, granted))
        return granted

    def handle_unsubscribe(
        self, connection: ServerConnection, session: MqttSession, packet: Unsubscribe
    ) -> None:
        """Forget what a client no longer wants."""
        connection.charge_packets(len(packet.filters))
        for wanted in packet.filters:
            if session.subscriptions.pop(wanted, None) is not None:
                self._router.unsubscribe(session, wanted)
                self._group_commit.save_subscription(session, wanted, None)
        self._respond(connection, session, encode_packet(Unsuback(packet.packet_id)))

    def _respond(self, connection: ServerConnection, session: MqttSession, data: bytes) -> None:
        """Answer at once, or when it is written down what the answer promises."""
        if session.persistent_id is None:
            connection.send(data)
        else:
            self._group_commit.call_after_commit(partial(connection.send, data))
            self._count_batch_bytes(connection, _RESPONSE_BYTES)

    def _reject_publish(self, connection: ServerConnection, topic: str) -> None:
        """A forbidden publish ends the connection: MQTT 3.1.1 has no other way to say no (broker-16)."""
        self._report_denied(connection, "publish", topic)
        connection.close("it published where it may not")

    def _report_denied(self, connection: ServerConnection, action: str, topic: str) -> None:
        if connection.account is not None:
            self._authenticator.on_access_denied(connection.account, connection.address, action, topic)
