"""Session of an MQTT client: its subscriptions, and the messages that wait for its acknowledgement.

A QoS 1 message gets a position, counted up per session, when it joins the queue. Its packet identifier is
computed from the position when it is sent. So the identifier needs no write of its own, stays the same after
a reconnect or a crash of the service [MQTT-4.4.0-1], and any number of messages can be queued. A message
waits while another message with its identifier is in flight.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from meshfleet.errors import quote_input
from meshfleet.mqtt.codec.encoder import set_dup_flag
from meshfleet.mqtt.codec.packets import MAX_PACKET_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Protocol

    from meshfleet.mqtt.broker.outgoing_message import OutgoingMessage
    from meshfleet.mqtt.broker.quotas import QueueQuotas

    class SessionConnection(Protocol):
        """Methods of a client connection that the session of the client uses."""

        is_writable: bool
        number: int
        """Sequence number of the connection: of two connections of a client, the newer has the higher one."""

        def send(self, data: bytes) -> None:
            """Send bytes to the client at the end of the current event loop iteration."""

        def cut_off(self, reason: str) -> None:
            """Log a warning and close the connection soon, because its client does not keep up."""

        def close(self, reason: str) -> None:
            """Close the connection to the client, and log the reason."""

    class MessageStore(Protocol):
        """Persists the messages that wait in persistent sessions."""

        def save_message(self, persistent_id: int, position: int, message: OutgoingMessage) -> None:
            """Persist a message that waits in a session for the acknowledgement of the client."""

        def delete_message(self, persistent_id: int, position: int) -> None:
            """Delete a persisted message that was acknowledged or dropped."""


_log = logging.getLogger(__name__)

_DROP_REASONS: Final = {
    "session-full": "its queue is full",
    "account-full": "the queues of its account are full (disconnected clients may fill half)",
    "total-full": "the queues of all clients are full (disconnected clients may fill half)",
}
"""Explanation why a message was dropped, by the `reason` label of the metric of dropped messages."""


class MqttSession:
    """Session of an MQTT client. A session with a `persistent_id` outlives its connections."""

    __slots__ = (
        "_account_usage",
        "_acknowledged_at",
        "_backlog_bytes",
        "_drained_at",
        "_expiring_count",
        "_in_flight",
        "_last_position",
        "_last_volatile_id",
        "_message_store",
        "_queue",
        "_quotas",
        "_restored_up_to",
        "_volatile_count",
        "account",
        "client_id",
        "connection",
        "left_at",
        "persistent_id",
        "queued_bytes",
        "read_rules",
        "subscriptions",
        "unreleased_ids",
    )

    def __init__(
        self,
        account: str,
        client_id: str,
        *,
        quotas: QueueQuotas,
        message_store: MessageStore,
        persistent_id: int | None = None,
    ) -> None:
        self.account = account
        self.client_id = client_id
        self.persistent_id = persistent_id
        self.connection: SessionConnection | None = None
        self.left_at: int | None = None
        """When the client disconnected, in milliseconds of the monotonic clock; None while it is
        connected."""
        self.read_rules: tuple[tuple[str, ...], ...] | None = None
        """Read rules of the account at its last CONNECT; None if there was none since the service started."""
        self.subscriptions: dict[str, int] = {}
        """Granted QoS by topic filter."""
        self.unreleased_ids: set[int] = set()
        """Packet identifiers of QoS 2 messages that were received, but not released by PUBREL yet."""
        self.queued_bytes = 0
        """Bytes that wait for the client: queued, in flight, or in the write buffer of its connection."""
        self._quotas = quotas
        self._account_usage = quotas.get_account_usage(account)
        self._message_store = message_store
        self._in_flight: dict[int, tuple[int, OutgoingMessage]] = {}
        """Position and message of every unacknowledged message, by packet identifier."""
        self._queue: deque[tuple[int, OutgoingMessage]] = deque()
        """Position and message of every message that was not sent yet."""
        self._last_position = -1
        self._restored_up_to = -1
        """Messages up to this position were loaded from the database, and may have been sent before the
        restart."""
        self._expiring_count = 0
        """Number of waiting messages that have an expiry time."""
        self._volatile_count = 0
        """Number of volatile messages (never persisted, for connected clients only) in flight."""
        self._last_volatile_id = MAX_PACKET_ID
        self._acknowledged_at = 0.0
        """Seconds of the monotonic clock when the client last acknowledged a message, or when the first
        message in flight was sent."""
        self._backlog_bytes = 0
        """Bytes in the write buffer of the connection."""
        self._drained_at = 0.0
        """Seconds of the monotonic clock when the network last accepted bytes from the write buffer."""

    def __len__(self) -> int:
        """Return the number of messages that wait for the client's acknowledgement."""
        return len(self._in_flight) + len(self._queue)

    def deliver(self, message: OutgoingMessage, qos: int) -> None:
        """Send a message to the client, or queue it until the client is connected and the window is open.

        If a limit is reached, drop this message, not an older one. Never queue a volatile message: drop it
        if the client is disconnected.
        """
        connection, quotas = self.connection, self._quotas
        if connection is None and (self.persistent_id is None or message.volatile):
            quotas.dropped_counts["absent"] += 1
        elif not qos or not message.qos:
            if connection is not None:
                self._send_qos0(connection, message)
        elif message.volatile and connection is not None:
            self._send_volatile(connection, message)
        elif self.queued_bytes + message.size > quotas.max_session_bytes:
            self._drop_message(message, "session-full")
        elif connection is not None and self._can_send_next(connection):
            self._assign_position(message)
            self._send_qos1(connection, self._last_position, message)
        elif (reason := self._find_exceeded_shared_limit(message)) is not None:
            self._drop_message(message, reason)
        else:
            self._assign_position(message)
            self._queue.append((self._last_position, message))

    def _send_qos0(self, connection: SessionConnection, message: OutgoingMessage) -> None:
        """Send a message at QoS 0.

        While the network accepts no bytes, the message waits in the write buffer; if a queue limit is then
        reached, drop the message.
        """
        if not connection.is_writable:
            is_full = self.queued_bytes + message.size > self._quotas.max_session_bytes
            if reason := "session-full" if is_full else self._find_exceeded_shared_limit(message):
                self._drop_message(message, reason)
                return
        self._quotas.delivered_count += 1
        connection.send(message.encode_qos0())

    def _send_volatile(self, connection: SessionConnection, message: OutgoingMessage) -> None:
        """Send a message that is never persisted at once, or drop the message if the queue is full.

        This is a hot path: samples are acknowledged with such messages. A gateway that sends a thousand
        reports at once gets a thousand acknowledgements, so the in-flight window does not apply.
        """
        size, quotas, in_flight = message.size, self._quotas, self._in_flight
        if self.queued_bytes + size > quotas.max_session_bytes or len(in_flight) >= MAX_PACKET_ID:
            self._drop_message(message, "session-full")
            return
        packet_id = self._last_volatile_id % MAX_PACKET_ID + 1
        while packet_id in in_flight:
            packet_id = packet_id % MAX_PACKET_ID + 1
        self._last_volatile_id = packet_id
        if not in_flight:
            self._acknowledged_at = quotas.clock()
        self._volatile_count += 1
        self.queued_bytes += size
        self._account_usage.queued_bytes += size
        quotas.queued_bytes += size
        quotas.delivered_count += 1
        in_flight[packet_id] = -1, message
        connection.send(message.encode_qos1(packet_id))

    def _can_send_next(self, connection: SessionConnection) -> bool:
        """Return whether the next message can be sent at once.

        Skip positions whose packet identifiers are used by messages in flight.
        """
        if self._queue or not self._is_window_open(connection):
            return False
        while (self._last_position + 1) % MAX_PACKET_ID + 1 in self._in_flight:
            self._last_position += 1
        return True

    def _assign_position(self, message: OutgoingMessage) -> None:
        """Assign the next position to a message, and persist the message if the session is persistent."""
        self._last_position += 1
        self._add_queued_bytes(message.size)
        if self.persistent_id is not None:
            self._message_store.save_message(self.persistent_id, self._last_position, message)
            self._expiring_count += message.expires_at is not None

    def _is_window_open(self, connection: SessionConnection) -> bool:
        """Return whether the in-flight window has space and the network accepts bytes."""
        in_flight_count = len(self._in_flight)
        return (
            connection.is_writable
            and in_flight_count - self._volatile_count < self._quotas.max_in_flight
            and in_flight_count < MAX_PACKET_ID
        )

    def _send_qos1(self, connection: SessionConnection, position: int, message: OutgoingMessage) -> None:
        """Send the message at a position, with the packet identifier of this position."""
        packet_id = position % MAX_PACKET_ID + 1
        if not self._in_flight:
            self._acknowledged_at = self._quotas.clock()
        self._in_flight[packet_id] = position, message
        self._quotas.delivered_count += 1
        data = message.encode_qos1(packet_id)
        connection.send(data if position > self._restored_up_to else set_dup_flag(data))  # [MQTT-3.3.1-1]

    def handle_pubacks(self, packet_ids: Sequence[int]) -> int:
        """Remove acknowledged messages from the messages in flight, and send queued messages instead.

        Return the number of removed messages.
        """
        pop, acknowledged, size = self._in_flight.pop, 0, 0
        for packet_id in packet_ids:
            entry = pop(packet_id, None)
            if entry is None:
                continue
            acknowledged += 1
            position, message = entry
            size += message.size
            if message.volatile:
                self._volatile_count -= 1
            elif self.persistent_id is not None:
                self._delete_stored_message(self.persistent_id, position, message)
        self._add_queued_bytes(-size)
        if acknowledged:
            self._acknowledged_at = self._quotas.clock()
        if self._queue:
            self.send_queued()
        return acknowledged

    def send_queued(self) -> None:
        """Send queued messages while the in-flight window is open."""
        connection, queue = self.connection, self._queue
        while queue and connection is not None and self._is_window_open(connection):
            if queue[0][0] % MAX_PACKET_ID + 1 in self._in_flight:
                return
            position, message = queue.popleft()
            self._send_qos1(connection, position, message)

    def update_backlog(self, written_bytes: int, buffered_bytes: int) -> None:
        """Record the bytes in the connection's write buffer, after `written_bytes` were added to the buffer.

        Bytes in the write buffer count as waiting for this client. Otherwise a client that stops reading
        could use any amount of memory.
        """
        if buffered_bytes < self._backlog_bytes + written_bytes or not self._backlog_bytes:
            self._drained_at = self._quotas.clock()
        self._add_queued_bytes(buffered_bytes - self._backlog_bytes)
        self._backlog_bytes = buffered_bytes

    def measure_stall(self, now: float) -> float:
        """Return for how many seconds the network has accepted no bytes from the write buffer; 0 if empty."""
        return now - self._drained_at if self._backlog_bytes else 0.0

    def resume(self, connection: SessionConnection, now: int) -> None:
        """Attach the new connection of the client, resend the messages in flight, then send the queued ones.

        Messages that have expired at `now`, in milliseconds of the monotonic clock, are dropped.
        """
        self._add_absent_bytes(-self.queued_bytes)
        self.connection = connection
        self.left_at = None
        self._drop_volatile()
        self.drop_expired(now)
        self._acknowledged_at = self._quotas.clock()
        for packet_id, (_, message) in self._in_flight.items():
            connection.send(set_dup_flag(message.encode_qos1(packet_id)))  # [MQTT-3.3.1-1]
        self.send_queued()

    def pause(self, now: int) -> None:
        """Detach the closed connection at `now`, in milliseconds of the monotonic clock.

        Keep the waiting messages, but drop volatile ones, which only a connected client gets.
        """
        self.update_backlog(0, 0)
        self.connection = None
        self.left_at = now
        self._add_absent_bytes(self.queued_bytes)
        self._drop_volatile()

    def _drop_volatile(self) -> None:
        """Drop the messages in flight that must not outlive their connection."""
        if self._volatile_count:
            self.drop_matching(lambda message: message.volatile)

    def drop_matching(self, unwanted: Callable[[OutgoingMessage], bool]) -> None:
        """Drop the waiting messages for which `unwanted` returns True."""
        for packet_id, (position, message) in list(self._in_flight.items()):
            if unwanted(message):
                del self._in_flight[packet_id]
                self._volatile_count -= message.volatile
                self._discard_message(position, message)
        if any(unwanted(message) for _, message in self._queue):
            waiting, self._queue = self._queue, deque()
            for position, message in waiting:
                if unwanted(message):
                    self._discard_message(position, message)
                else:
                    self._queue.append((position, message))

    def drop_expired(self, now: int) -> None:
        """Drop the waiting messages that have expired at `now`, in milliseconds of the monotonic clock."""
        if self._expiring_count:
            self.drop_matching(lambda message: message.is_expired(now))

    def restore_message(self, position: int, message: OutgoingMessage) -> None:
        """Queue a message from the database. It may have been sent already before the service stopped."""
        self._queue.append((position, message))
        self._expiring_count += message.expires_at is not None
        self._add_queued_bytes(message.size)
        self._last_position = self._restored_up_to = position

    def clear(self) -> None:
        """Discard all messages that wait for the client."""
        self._add_queued_bytes(-self.queued_bytes)
        self._backlog_bytes = self._volatile_count = self._expiring_count = 0
        self._in_flight.clear()
        self._queue.clear()

    def _discard_message(self, position: int, message: OutgoingMessage) -> None:
        """Subtract a dropped message from the queued bytes, and delete the message from the database."""
        self._add_queued_bytes(-message.size)
        if self.persistent_id is not None and not message.volatile:
            self._delete_stored_message(self.persistent_id, position, message)

    def _delete_stored_message(self, persistent_id: int, position: int, message: OutgoingMessage) -> None:
        self._expiring_count -= message.expires_at is not None
        self._message_store.delete_message(persistent_id, position)

    def _add_queued_bytes(self, size: int) -> None:
        """Add `size` (may be negative) to the bytes waiting for this client, its account and all clients."""
        self.queued_bytes += size
        self._account_usage.queued_bytes += size
        self._quotas.queued_bytes += size
        if self.connection is None:
            self._add_absent_bytes(size)

    def _add_absent_bytes(self, size: int) -> None:
        """Add `size` (may be negative) to the bytes that wait for disconnected clients."""
        self._account_usage.absent_bytes += size
        self._quotas.absent_queued_bytes += size

    def _find_exceeded_shared_limit(self, message: OutgoingMessage) -> str | None:
        """Return the drop reason if an account or total limit leaves no space for a message, else None.

        Disconnected clients may use a part of each limit, so that space is left for clients that keep up.
        """
        quotas, account_usage = self._quotas, self._account_usage
        size, is_absent = message.size, self.connection is None
        if account_usage.queued_bytes + size > quotas.max_account_bytes:
            return "account-full"
        if is_absent and account_usage.absent_bytes + size > quotas.max_absent_account_bytes:
            return "account-full"
        if quotas.queued_bytes + size > quotas.max_total_bytes:
            return "total-full"
        if is_absent and quotas.absent_queued_bytes + size > quotas.max_absent_bytes:
            return "total-full"
        return None

    def _drop_message(self, message: OutgoingMessage, reason: str) -> None:
        """Drop a message: count and log it, and cut off the client if it is slow.

        `reason` is a key of `_DROP_REASONS`.
        """
        quotas, connection = self._quotas, self.connection
        quotas.dropped_counts[reason] += 1
        dropped = quotas.drop_log_limiter.count((self.account, self.client_id))
        if dropped:
            _log.warning(
                "messages for client %s of %s are dropped, %d since the last such line: %s; %d bytes are"
                " queued for it (limits.queue-bytes is %d), %d for all clients (limits.queues-bytes is %d)",
                quote_input(self.client_id),
                self.account,
                dropped,
                _DROP_REASONS[reason],
                self.queued_bytes,
                quotas.max_session_bytes,
                quotas.queued_bytes,
                quotas.max_total_bytes,
            )
        # A new subscription may match more retained messages than fit: no reason to cut the client off.
        if connection is not None and not message.retain and self._is_slow():
            connection.cut_off(
                f"{_DROP_REASONS[reason]} and it has acknowledged nothing for {quotas.slow_seconds:g}"
                f" seconds; {self.queued_bytes} bytes are queued for it,"
                f" limits.queue-bytes is {quotas.max_session_bytes}"
            )

    def _is_slow(self) -> bool:
        """Return whether the client has acknowledged no message for too long.

        If no message is in flight, return whether the network has accepted no bytes for too long.
        """
        quotas = self._quotas
        since = (
            self._acknowledged_at if self._in_flight else self._drained_at if self._backlog_bytes else None
        )
        return since is not None and quotas.clock() - since >= quotas.slow_seconds
