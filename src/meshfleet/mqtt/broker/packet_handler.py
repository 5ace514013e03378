"""Handles the packets of accepted clients: PUBLISH, PUBREL, SUBSCRIBE and UNSUBSCRIBE."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from meshfleet.errors import quote_input
from meshfleet.mqtt.broker.group_commit import BUSY_BATCH_MESSAGES, GroupCommit
from meshfleet.mqtt.broker.log_limiter import LogLimiter
from meshfleet.mqtt.codec.encoder import encode_packet
from meshfleet.mqtt.codec.packets import SUBACK_FAILURE, Pubcomp, Pubrec, Suback, Unsuback

if TYPE_CHECKING:
    from collections.abc import Sequence

    from meshfleet.mqtt.broker.auth import Authenticator, TopicPermissions
    from meshfleet.mqtt.broker.connection import ServerConnection
    from meshfleet.mqtt.broker.quotas import QueueQuotas
    from meshfleet.mqtt.broker.router import MessageRouter
    from meshfleet.mqtt.broker.session import MqttSession
    from meshfleet.mqtt.broker_limits import BrokerLimits
    from meshfleet.mqtt.codec.packets import OversizedPublish, Publish, Subscribe, Unsubscribe

_log = logging.getLogger(__name__)

_MAX_FILTER_BYTES: Final = 1024
"""Maximum bytes of a topic filter: longer filters do not fit into every database index."""
_MAX_FILTER_LEVELS: Final = 32

_SMALL_READ_BYTES: Final = 8 * 1024
"""A read with fewer bytes than this is small: the client sends few messages at a time."""

_MAX_LOGGED_FILTERS: Final = 5
"""Maximum forbidden topic filters of one SUBSCRIBE that a log line names."""

_RESPONSE_BYTES: Final = 512
"""Approximate bytes of memory that a response to a client takes while the response waits for a commit."""


class PacketHandler:
    """Handles PUBLISH, PUBREL, SUBSCRIBE and UNSUBSCRIBE packets of accepted clients."""

    def __init__(  # noqa: PLR0913 # keyword-only collaborators
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
        self.limits = limits
        self._max_batch_bytes = max_batch_bytes
        self._denied_log_limiter = LogLimiter(lines=5)

    def handle_publish(
        self, connection: ServerConnection, session: MqttSession, messages: Sequence[Publish], size: int
    ) -> None:
        """Handle PUBLISH packets that were read together. `size` is the number of bytes read.

        This is a hot path: most messages are reports, and go straight into the commit batch.
        """
        if connection.routes_version != self._router.routes_version:
            connection.routes_version = self._router.routes_version
            connection.consumer_only_prefix = self._router.find_consumer_only_prefix(
                connection.permissions.publish_prefixes
            )
        batch, consumer_only = self._group_commit.batch, connection.consumer_only_prefix
        add_report, packet_ids = batch.reports.append, batch.pending_acks.setdefault(connection, [])
        for message in messages:
            topic = message.topic
            if consumer_only and topic.startswith(consumer_only) and message.qos == 1 and not message.retain:
                add_report(message)
                packet_ids.append(message.packet_id)
            elif connection.permissions.may_publish(topic):
                self._route_message(connection, session, message, packet_ids)
            elif message.qos < 2 and connection.permissions.ignores_publish(topic):  # noqa: PLR2004 # QoS 2 needs PUBREC
                if message.qos:
                    packet_ids.append(message.packet_id)
            else:
                self._reject_publish(connection, topic)
                break
        self._quotas.received_count += len(messages)
        if not batch.is_urgent:
            self._group_commit.request_commit()
        self._count_batch_bytes(connection, size)
        if len(batch.reports) >= BUSY_BATCH_MESSAGES and size < _SMALL_READ_BYTES and len(packet_ids) > 1:
            # The broker is busy and the client sends several times per batch: read it once per batch.
            connection.hold_reading()
            self._group_commit.release_with_next_batch(connection)

    def _count_batch_bytes(self, connection: ServerConnection, size: int) -> None:
        """Add received bytes to the current commit batch.

        If the batch is full, stop reading from the client until the next batch starts.
        """
        batch = self._group_commit.batch
        batch.received_bytes += size
        if batch.received_bytes > self._max_batch_bytes and connection.is_open:
            connection.hold_reading()
            self._group_commit.release_with_next_batch(connection)

    def _route_message(
        self, connection: ServerConnection, session: MqttSession, message: Publish, packet_ids: list[int]
    ) -> None:
        """Route a message, and acknowledge the message after the commit.

        At QoS 1, add the packet identifier to `packet_ids`. At QoS 2, send PUBREC, and do not route the
        message if it was received before.
        """
        if message.retain and not connection.permissions.may_retain(message.topic):
            message = replace(message, retain=False)
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
        """Handle a PUBLISH that exceeds the maximum packet size; the parser skipped its payload.

        A report is passed to the consumer without payload and acknowledged, or its gateway would send it
        forever. Any other message closes the connection.
        """
        if not connection.permissions.may_publish(message.topic):
            self._reject_publish(connection, message.topic)
        elif not self._router.find_route(message.topic).is_consumed or message.qos > 1:
            connection.close(
                f"a PUBLISH with {message.size} bytes of payload exceeds the maximum packet size"
            )
        else:
            self._group_commit.batch.reports.append(message)
            if message.qos:
                self._group_commit.batch.pending_acks.setdefault(connection, []).append(message.packet_id)
            self._group_commit.request_commit()
            self._count_batch_bytes(connection, len(message.topic))

    def handle_pubrel(self, connection: ServerConnection, session: MqttSession, packet_id: int) -> None:
        """Handle PUBREL of a QoS 2 message: its packet identifier may be used again [MQTT-4.3.3-2]."""
        if packet_id in session.unreleased_ids:
            session.unreleased_ids.discard(packet_id)
            self._group_commit.save_unreleased_id(session, packet_id, is_open=False)
        self._send_response(connection, session, encode_packet(Pubcomp(packet_id)))

    def handle_subscribe(self, connection: ServerConnection, session: MqttSession, packet: Subscribe) -> None:
        """Grant or refuse each topic filter of a SUBSCRIBE, then send SUBACK."""
        codes, forbidden = [], []
        for topic_filter, qos in packet.filters:
            code = self._subscribe_if_allowed(connection, session, topic_filter, qos)
            codes.append(code)
            if code == SUBACK_FAILURE and _is_reported(connection.permissions, topic_filter):
                forbidden.append(topic_filter)
            if not connection.is_open:  # cut off: it does not keep up with the retained messages
                return
        if forbidden and self._denied_log_limiter.count(session.account):
            self._log_denied_filters(connection, session, forbidden)
        self._send_response(connection, session, encode_packet(Suback(packet.packet_id, tuple(codes))))

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

    def _subscribe_if_allowed(
        self, connection: ServerConnection, session: MqttSession, topic_filter: str, qos: int
    ) -> int:
        """Subscribe a session to a topic filter if the permissions and limits allow it.

        Return the code for SUBACK: the granted QoS, or `SUBACK_FAILURE`.
        """
        # A filter may match all retained messages: refuse filters of a client far over its packet budget.
        if connection.is_over_budget:
            return SUBACK_FAILURE
        subscriptions = session.subscriptions
        if topic_filter not in subscriptions and len(subscriptions) >= self._max_subscriptions(connection):
            return SUBACK_FAILURE
        if not connection.permissions.may_read(topic_filter):
            connection.charge_packets(1)
            if _is_reported(connection.permissions, topic_filter):
                self._report_denied(connection, "subscribe", topic_filter)
            return SUBACK_FAILURE
        if len(topic_filter.encode()) > _MAX_FILTER_BYTES or topic_filter.count("/") >= _MAX_FILTER_LEVELS:
            return SUBACK_FAILURE
        subscriptions[topic_filter] = granted = min(qos, 1)
        self._group_commit.save_subscription(session, topic_filter, granted)
        connection.charge_packets(1 + self._router.subscribe(session, topic_filter, granted))
        return granted

    def _max_subscriptions(self, connection: ServerConnection) -> int:
        account = connection.account
        return (self.limits if account is None else account.adapt_limits(self.limits)).subscriptions

    def handle_unsubscribe(
        self, connection: ServerConnection, session: MqttSession, packet: Unsubscribe
    ) -> None:
        """Remove the subscriptions to the topic filters of an UNSUBSCRIBE, then send UNSUBACK."""
        connection.charge_packets(len(packet.filters))
        for topic_filter in packet.filters:
            if session.subscriptions.pop(topic_filter, None) is not None:
                self._router.unsubscribe(session, topic_filter)
                self._group_commit.save_subscription(session, topic_filter, None)
        self._send_response(connection, session, encode_packet(Unsuback(packet.packet_id)))

    def _send_response(self, connection: ServerConnection, session: MqttSession, data: bytes) -> None:
        """Send a response to a client: at once for a clean session, after a commit for a persistent one."""
        if session.persistent_id is None:
            connection.send(data)
        else:
            self._group_commit.call_after_commit(partial(connection.send, data))
            self._count_batch_bytes(connection, _RESPONSE_BYTES)

    def _reject_publish(self, connection: ServerConnection, topic: str) -> None:
        """Close the connection after a forbidden PUBLISH: MQTT 3.1.1 has no error response (broker-16)."""
        self._report_denied(connection, "publish", topic)
        connection.close("PUBLISH to a forbidden topic")

    def _report_denied(self, connection: ServerConnection, action: str, topic: str) -> None:
        """Tell the authenticator that a client was denied an action, `publish` or `subscribe`, on a topic."""
        if connection.account is not None:
            self._authenticator.on_access_denied(connection.account, connection.address, action, topic)


def _is_reported(permissions: TopicPermissions, topic_filter: str) -> bool:
    """Return whether a filter is recorded in the log and the audit log: it is forbidden and not expected."""
    return not permissions.may_read(topic_filter) and not permissions.is_expected_denial(topic_filter)
