"""A session: what a client subscribed to, and the messages that wait for its acknowledgement.

A message at QoS 1 gets a position, counted up per session, when it joins the queue. Its packet id follows
from the position when it is sent. So the id needs no write of its own, holds over reconnects and a killed
service [MQTT-4.4.0-1], and any number of messages can wait. A message whose id is still in flight waits.
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
        """The connection of a client that is there."""

        is_writable: bool
        number: int
        """Of two connections of one client the one with the higher number is newer."""

        def send(self, data: bytes) -> None:
            """Send bytes soon."""

        def cut_off(self, reason: str) -> None:
            """End the connection soon, with a warning in the log: its client does not keep up."""

        def close(self, reason: str) -> None:
            """End the connection."""

    class MessageStore(Protocol):
        """Where a session that outlives its connections is written down."""

        def save_message(self, persistent_id: int, position: int, message: OutgoingMessage) -> None:
            """Write down a message that waits for the client's acknowledgement."""

        def delete_message(self, persistent_id: int, position: int) -> None:
            """Delete it: it was acknowledged or is no longer wanted."""


_log = logging.getLogger(__name__)

_DROP_REASONS: Final = {
    "session-full": "its queue is full",
    "account-full": "the queues of its account are full (absent clients may fill half)",
    "total-full": "the queues of all clients are full (absent ones may fill half)",
}
"""Why a message was dropped, by the label that the metric has."""


class MqttSession:
    """What the broker knows of a client. One with a number outlives its connections."""

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
        """When the client went, in milliseconds; None while it is there."""
        self.read_rules: tuple[tuple[str, ...], ...] | None = None
        """What the client could read at its last connection; None if that was before the service started."""
        self.subscriptions: dict[str, int] = {}
        self.unreleased_ids: set[int] = set()
        """Packet ids of messages at QoS 2 that came and were not released."""
        self.queued_bytes = 0
        """Bytes that wait for the client: queued, in flight, or in the write buffer of its connection."""
        self._quotas = quotas
        self._account_usage = quotas.account_usage(account)
        self._message_store = message_store
        self._in_flight: dict[int, tuple[int, OutgoingMessage]] = {}
        """Messages sent and not acknowledged, with their positions, by packet id."""
        self._queue: deque[tuple[int, OutgoingMessage]] = deque()
        """Messages that wait to be sent, with their positions."""
        self._last_position = -1
        self._restored_up_to = -1
        """Messages up to this position may have been sent before the service started."""
        self._expiring_count = 0
        """How many of the messages that wait have a time after which they are not wanted."""
        self._volatile_count = 0
        """How many of the messages in flight are volatile, and kept only until they are acknowledged."""
        self._last_volatile_id = MAX_PACKET_ID
        self._acknowledged_at = 0.0
        """When the client last acknowledged a message, or was sent the first of those in flight."""
        self._backlog_bytes = 0
        self._drained_at = 0.0
        """When the network last took some of the backlog."""

    def __len__(self) -> int:
        """Return the number of messages that wait for the client's acknowledgement."""
        return len(self._in_flight) + len(self._queue)

    def deliver(self, message: OutgoingMessage, qos: int) -> None:
        """Send a message, or queue it until there is a connection with room.

        If a limit is reached, drop it, as the newest: nothing else may wait for this client.
        """
        line, stock = self.connection, self._quotas
        if line is None and (self.persistent_id is None or message.volatile):
            stock.dropped_counts["absent"] += 1
        elif not qos or not message.qos:
            if line is not None:
                self._send_qos0(line, message)
        elif message.volatile and line is not None:
            self._send_volatile(line, message)
        elif self.queued_bytes + message.size > stock.max_session_bytes:
            self._drop(message, "session-full")
        elif line is not None and self._can_send_next(line):
            self._assign_position(message)
            self._send_qos1(line, self._last_position, message)
        elif (full := self._exceeded_shared_limit(message)) is not None:
            self._drop(message, full)
        else:
            self._assign_position(message)
            self._queue.append((self._last_position, message))

    def _send_qos0(self, connection: SessionConnection, message: OutgoingMessage) -> None:
        """Send a message at QoS 0. While the network takes nothing, the write buffer is its queue."""
        if not connection.is_writable:
            is_full = self.queued_bytes + message.size > self._quotas.max_session_bytes
            if full := "session-full" if is_full else self._exceeded_shared_limit(message):
                self._drop(message, full)
                return
        self._quotas.delivered_count += 1
        connection.send(message.encode_qos0())

    def _send_volatile(self, connection: SessionConnection, message: OutgoingMessage) -> None:
        """Send a volatile message, which leaves at once or never, in a straight line.

        A hot path: every sample of a gateway that takes acks is acknowledged this way. A gateway that sends a
        thousand reports at once gets as many acks at once, whatever the in-flight window is.
        """
        size, stock, flight = message.size, self._quotas, self._in_flight
        if self.queued_bytes + size > stock.max_session_bytes or len(flight) >= MAX_PACKET_ID:
            self._drop(message, "session-full")
            return
        packet_id = self._last_volatile_id % MAX_PACKET_ID + 1
        while packet_id in flight:
            packet_id = packet_id % MAX_PACKET_ID + 1
        self._last_volatile_id = packet_id
        if not flight:
            self._acknowledged_at = stock.clock()
        self._volatile_count += 1
        self.queued_bytes += size
        self._account_usage.queued_bytes += size
        stock.queued_bytes += size
        stock.delivered_count += 1
        flight[packet_id] = -1, message
        connection.send(message.encode_qos1(packet_id))

    def _can_send_next(self, connection: SessionConnection) -> bool:
        """Whether the next message can be sent at once; passes over positions whose id is in flight."""
        if self._queue or not self._is_window_open(connection):
            return False
        while (self._last_position + 1) % MAX_PACKET_ID + 1 in self._in_flight:
            self._last_position += 1
        return True

    def _assign_position(self, message: OutgoingMessage) -> None:
        """Give a message the next position, and write it down for a session that outlives its connection."""
        self._last_position += 1
        self._add_queued_bytes(message.size)
        if self.persistent_id is not None:
            self._message_store.save_message(self.persistent_id, self._last_position, message)
            self._expiring_count += message.expires_at is not None

    def _is_window_open(self, connection: SessionConnection) -> bool:
        flying = len(self._in_flight)
        return (
            connection.is_writable
            and flying - self._volatile_count < self._quotas.max_in_flight
            and flying < MAX_PACKET_ID
        )

    def _send_qos1(self, connection: SessionConnection, position: int, message: OutgoingMessage) -> None:
        packet_id = position % MAX_PACKET_ID + 1
        if not self._in_flight:
            self._acknowledged_at = self._quotas.clock()
        self._in_flight[packet_id] = position, message
        self._quotas.delivered_count += 1
        data = message.encode_qos1(packet_id)
        connection.send(data if position > self._restored_up_to else set_dup_flag(data))  # [MQTT-3.3.1-1]

    def handle_pubacks(self, packet_ids: Sequence[int]) -> int:
        """Handle PUBACKs. Return how many of them belong to messages in flight."""
        take, known, size = self._in_flight.pop, 0, 0
        for packet_id in packet_ids:
            owed = take(packet_id, None)
            if owed is None:
                continue
            known += 1
            position, letter = owed
            size += letter.size
            if letter.volatile:
                self._volatile_count -= 1
            elif self.persistent_id is not None:
                self._delete_stored(self.persistent_id, position, letter)
        self._add_queued_bytes(-size)
        if known:
            self._acknowledged_at = self._quotas.clock()
        if self._queue:
            self.send_queued()
        return known

    def send_queued(self) -> None:
        """Send what waits, as long as there is room."""
        line, queue = self.connection, self._queue
        while queue and line is not None and self._is_window_open(line):
            if queue[0][0] % MAX_PACKET_ID + 1 in self._in_flight:
                return
            position, letter = queue.popleft()
            self._send_qos1(line, position, letter)

    def update_backlog(self, size: int, backlog: int) -> None:
        """Count what a connection that was given so many bytes could not send yet.

        They are part of what waits for this client, or a reader that stops would take any amount of memory.
        """
        if backlog < self._backlog_bytes + size or not self._backlog_bytes:
            self._drained_at = self._quotas.clock()
        self._add_queued_bytes(backlog - self._backlog_bytes)
        self._backlog_bytes = backlog

    def stalled_seconds(self, now: float) -> float:
        """Return for how many seconds the network has taken nothing of what was written; 0: nothing waits."""
        return now - self._drained_at if self._backlog_bytes else 0.0

    def resume(self, connection: SessionConnection, now: int) -> None:
        """Send again what was not acknowledged, on another connection, and then the rest."""
        self._add_absent_bytes(-self.queued_bytes)
        self.connection = connection
        self.left_at = None
        self._drop_volatile()
        self.drop_expired(now)
        self._acknowledged_at = self._quotas.clock()
        for packet_id, (_, letter) in self._in_flight.items():
            connection.send(set_dup_flag(letter.encode_qos1(packet_id)))  # [MQTT-3.3.1-1]
        self.send_queued()

    def pause(self, now: int) -> None:
        """Keep what waits after the connection is gone, but for volatile messages."""
        self.update_backlog(0, 0)
        self.connection = None
        self.left_at = now
        self._add_absent_bytes(self.queued_bytes)
        self._drop_volatile()

    def _drop_volatile(self) -> None:
        if self._volatile_count:
            self.drop_matching(lambda letter: letter.volatile)

    def drop_matching(self, unwanted: Callable[[OutgoingMessage], bool]) -> None:
        """Drop messages that are no longer wanted."""
        for packet_id, (position, letter) in list(self._in_flight.items()):
            if unwanted(letter):
                del self._in_flight[packet_id]
                self._volatile_count -= letter.volatile
                self._discard(position, letter)
        if any(unwanted(letter) for _, letter in self._queue):
            waiting, self._queue = self._queue, deque()
            for position, letter in waiting:
                if unwanted(letter):
                    self._discard(position, letter)
                else:
                    self._queue.append((position, letter))

    def drop_expired(self, now: int) -> None:
        """Drop messages whose time is over."""
        if self._expiring_count:
            self.drop_matching(lambda letter: letter.is_expired(now))

    def restore(self, position: int, message: OutgoingMessage) -> None:
        """Queue a message that waited when the service stopped; it may have been sent already."""
        self._queue.append((position, message))
        self._expiring_count += message.expires_at is not None
        self._add_queued_bytes(message.size)
        self._last_position = self._restored_up_to = position

    def clear(self) -> None:
        """Drop all messages that wait."""
        self._add_queued_bytes(-self.queued_bytes)
        self._backlog_bytes = self._volatile_count = self._expiring_count = 0
        self._in_flight.clear()
        self._queue.clear()

    def _discard(self, position: int, message: OutgoingMessage) -> None:
        self._add_queued_bytes(-message.size)
        if self.persistent_id is not None and not message.volatile:
            self._delete_stored(self.persistent_id, position, message)

    def _delete_stored(self, persistent_id: int, position: int, message: OutgoingMessage) -> None:
        self._expiring_count -= message.expires_at is not None
        self._message_store.delete_message(persistent_id, position)

    def _add_queued_bytes(self, size: int) -> None:
        """Count so many bytes more, or fewer, that wait for this client, its account and all clients."""
        self.queued_bytes += size
        self._account_usage.queued_bytes += size
        self._quotas.queued_bytes += size
        if self.connection is None:
            self._add_absent_bytes(size)

    def _add_absent_bytes(self, size: int) -> None:
        """Count so many bytes more, or fewer, that wait for clients that are away."""
        self._account_usage.absent_bytes += size
        self._quotas.absent_queued_bytes += size

    def _exceeded_shared_limit(self, message: OutgoingMessage) -> str | None:
        """Return which limit beyond this session leaves no room for a message that has to wait.

        Absent clients have a part of each limit, or they would leave nothing to those that keep up.
        """
        stock, share, size, is_absent = (
            self._quotas,
            self._account_usage,
            message.size,
            self.connection is None,
        )
        if share.queued_bytes + size > stock.max_account_bytes:
            return "account-full"
        if is_absent and share.absent_bytes + size > stock.max_absent_account_bytes:
            return "account-full"
        if stock.queued_bytes + size > stock.max_total_bytes:
            return "total-full"
        return (
            "total-full" if is_absent and stock.absent_queued_bytes + size > stock.max_absent_bytes else None
        )

    def _drop(self, message: OutgoingMessage, reason: str) -> None:
        """Drop a message for which there is no room, and cut the client off if it is slow."""
        stock, line = self._quotas, self.connection
        stock.dropped_counts[reason] += 1
        since = stock.drop_log_limiter.count((self.account, self.client_id))
        if since:
            _log.warning(
                "messages for client %s of %s are dropped, %d since the last such line: %s; %d bytes wait"
                " for it (limits.queue-bytes is %d), %d for all clients (limits.queues-bytes is %d)",
                quote_input(self.client_id),
                self.account,
                since,
                _DROP_REASONS[reason],
                self.queued_bytes,
                stock.max_session_bytes,
                stock.queued_bytes,
                stock.max_total_bytes,
            )
        # Retained messages that a new subscription brings cut nobody off.
        if line is not None and not message.retain and self._is_slow():
            line.cut_off(
                f"{_DROP_REASONS[reason]} and it has acknowledged nothing for {stock.slow_seconds:g} seconds;"
                f" {self.queued_bytes} bytes wait for it, limits.queue-bytes is {stock.max_session_bytes}"
            )

    def _is_slow(self) -> bool:
        """Whether the client acknowledged nothing for too long; or read nothing, if nothing is in flight."""
        stock = self._quotas
        since = (
            self._acknowledged_at if self._in_flight else self._drained_at if self._backlog_bytes else None
        )
        return since is not None and stock.clock() - since >= stock.slow_seconds
