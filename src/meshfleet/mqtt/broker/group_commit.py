"""Group commit: commits the data of many clients in one transaction, then acknowledges all of it.

A batch collects reports for the consumer, messages queued for persistent sessions, subscriptions and retained
messages. The batch is committed in one transaction while the next batch collects; then the waiting clients
get their acknowledgements. So many clients share one commit, acknowledgements are sent in the order of the
packets [MQTT-4.6.0-2], and no acknowledgement is sent before its data is committed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Final, Protocol

from meshfleet.errors import DatabaseUnavailable
from meshfleet.mqtt.broker import store
from meshfleet.mqtt.broker.store import MessageRow, PendingChanges, RetainedRow, SessionRow
from meshfleet.mqtt.change_signal import ChangeSignal

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection as Transaction

    from meshfleet.errors.readiness import ReadinessProblem
    from meshfleet.mqtt.broker.outgoing_message import OutgoingMessage
    from meshfleet.mqtt.broker.session import MqttSession
    from meshfleet.mqtt.broker.wall_clock import WallClockConverter
    from meshfleet.mqtt.codec.packets import Publish

    class Publisher(Protocol):
        """Connection of an MQTT client that waits for PUBACKs."""

        def send_pubacks(self, packet_ids: list[int]) -> None:
            """Send a PUBACK for each packet identifier."""

        def release_reading(self) -> None:
            """Resume reading from the client."""


_log = logging.getLogger(__name__)

BUSY_BATCH_MESSAGES: Final = 256
"""Minimum reports in a commit batch for the broker to count as busy: it then reads each client less often."""

_COMMIT_PAUSES: Final = ((BUSY_BATCH_MESSAGES, 0.02), (2, 0.005), (0, 0.0))
"""Pairs of a minimum number of reports in a batch and the seconds to wait after the commit of such a batch,
so that more reports share the next commit. Without the second pair, 2,000 reports per second caused 1,000
commits and used a whole core. A client that sends one message at a time never waits."""

_MAX_COMMIT_WAIT_SECONDS: Final = 1.0
"""Maximum seconds before changes that no client waits for are committed."""

_FIRST_RETRY_SECONDS: Final = 0.1
"""Seconds before the first retry of a failed commit; the pause doubles with every retry."""
_MAX_RETRY_SECONDS: Final = 5.0
"""Maximum seconds between two retries of a failed commit."""


class ReportBatch:
    """Reports to commit in one transaction, in which the consumer must also call `write_changes`."""

    __slots__ = ("_changes", "_owner_token", "messages", "received_at")

    def __init__(
        self,
        messages: Sequence[Publish],
        changes: PendingChanges,
        owner_token: bytes,
        received_at: float | None = None,
    ) -> None:
        self.messages = messages
        self.received_at = time.monotonic() if received_at is None else received_at
        """Monotonic time in seconds when the first report was received."""
        self._changes = changes
        self._owner_token = owner_token

    @property
    def has_changes(self) -> bool:
        """Whether `write_changes` has session changes or retained messages to write."""
        return bool(self._changes)

    def write_changes(self, transaction: Transaction) -> None:
        """Write the session changes and retained messages of this batch in the transaction of the reports.

        Raises `UnusableDatabase` if another process has taken ownership of the broker tables.
        """
        if self._changes:
            store.check_ownership(transaction, self._owner_token)
            store.write_changes(transaction, self._changes)


class ReportConsumer(Protocol):
    """Commits reports to the database; implemented by the service."""

    async def commit(self, batch: ReportBatch) -> None:
        """Commit the reports of a batch, and call `batch.write_changes` in the transaction of the reports.

        The broker acknowledges the reports when this method returns. If this method raises
        `DatabaseUnavailable`, the broker calls it with the same batch again later.
        """


class CommitBatch:
    """Reports and changes of the broker's tables, such as MQTT sessions, to commit in one transaction.

    The batch also holds the clients and callbacks that wait for the commit.
    """

    __slots__ = (
        "after_commit",
        "changes",
        "is_urgent",
        "pending_acks",
        "received_bytes",
        "reports",
        "urgent_since",
    )

    def __init__(self) -> None:
        self.reports: list[Publish] = []
        self.pending_acks: dict[Publisher, list[int]] = {}
        """Packet identifiers to acknowledge after the commit, by connection."""
        self.after_commit: list[Callable[[], None]] = []
        self.changes = PendingChanges()
        self.received_bytes = 0
        """Bytes received from publishers for this batch."""
        self.is_urgent = False
        """Whether a client or callback waits for the commit."""
        self.urgent_since = 0.0
        """Monotonic time in seconds when the batch became urgent; 0 while the batch is not urgent."""

    def complete(self) -> None:
        """Send the PUBACKs and call the callbacks that waited for the commit of this batch."""
        for publisher, packet_ids in self.pending_acks.items():
            publisher.send_pubacks(packet_ids)
        for callback in self.after_commit:
            callback()


class GroupCommit:
    """Commits one batch after the other, and meanwhile collects the next batch."""

    def __init__(self, *, owner_token: bytes, wall_clock: WallClockConverter) -> None:
        self.batch = CommitBatch()
        self.problem: ReadinessProblem | None = None
        """Why the last attempt to commit failed; None after a successful commit."""
        self._owner_token = owner_token
        self._wall_clock = wall_clock
        self._batch_changed = ChangeSignal()
        self._held_publishers: list[Publisher] = []
        self._is_stopping = False

    # Called by the other parts of the broker

    def request_commit(self) -> None:
        """Mark the current batch as urgent: a client or callback waits for its commit."""
        if not self.batch.is_urgent:
            self.batch.is_urgent = True
            self.batch.urgent_since = time.monotonic()
            self._batch_changed.notify()

    def call_after_commit(self, callback: Callable[[], None]) -> None:
        """Call `callback` as soon as the current batch is committed."""
        self.batch.after_commit.append(callback)
        self.request_commit()

    def stop(self) -> None:
        """Make `run` return after it has committed the current batch."""
        self._is_stopping = True
        self._batch_changed.notify()

    @property
    def held_publishers(self) -> int:
        """Number of publishing clients that the broker does not read from until the next batch starts."""
        return len(self._held_publishers)

    def release_with_next_batch(self, publisher: Publisher) -> None:
        """Call `release_reading` of a publisher when the next batch starts."""
        self._held_publishers.append(publisher)

    def save_message(self, persistent_id: int, position: int, message: OutgoingMessage) -> None:
        """Persist a message that waits in a session for the acknowledgement of the client."""
        row = MessageRow(
            message.topic, message.payload, message.retain, self._wall_clock.to_wall_time(message.expires_at)
        )
        self.batch.changes.messages[persistent_id, position] = row

    def delete_message(self, persistent_id: int, position: int) -> None:
        """Delete a persisted message of a session, or discard the message if it is not committed yet.

        A position in a session is never used twice.
        """
        messages = self.batch.changes.messages
        if messages.pop((persistent_id, position), None) is None:
            messages[persistent_id, position] = None

    def save_session(self, session: MqttSession) -> None:
        """Persist a session and the time when its client disconnected. Ignore clean sessions."""
        if session.persistent_id is not None:
            row = SessionRow(
                session.account, session.client_id, self._wall_clock.to_wall_time(session.left_at)
            )
            self.batch.changes.sessions[session.persistent_id] = row

    def delete_session(self, session: MqttSession) -> None:
        """Delete a persisted session with its subscriptions and messages."""
        if session.persistent_id is not None:
            self.batch.changes.delete_session(session.persistent_id)

    def save_subscription(self, session: MqttSession, topic_filter: str, qos: int | None) -> None:
        """Persist a subscription of a session; delete the subscription if `qos` is None."""
        if session.persistent_id is not None:
            self.batch.changes.subscriptions[session.persistent_id, topic_filter] = qos

    def save_unreleased_id(self, session: MqttSession, packet_id: int, *, is_open: bool) -> None:
        """Persist the packet identifier of a QoS 2 message that waits for PUBREL.

        If `is_open` is False, PUBREL has arrived: delete the packet identifier.
        """
        if session.persistent_id is not None:
            self.batch.changes.unreleased_ids[session.persistent_id, packet_id] = is_open

    def save_retained(self, topic: str, row: RetainedRow | None) -> None:
        """Persist the retained message of a topic; delete the message if `row` is None."""
        self.batch.changes.retained[topic] = row

    # Commit loop

    async def run(self, consumer: ReportConsumer) -> None:
        """Commit batch after batch until `stop` was called and the last batch is committed."""
        while not self._is_stopping or self.batch.is_urgent or self.batch.changes:
            await self._wait_for_request()
            pause = next(seconds for least, seconds in _COMMIT_PAUSES if len(self.batch.reports) >= least)
            await self._commit(consumer)
            if pause:
                await asyncio.sleep(pause)

    async def _commit(self, consumer: ReportConsumer) -> None:
        """Start a new batch, then commit the previous batch and send the acknowledgements for it."""
        batch, self.batch = self.batch, CommitBatch()
        held_publishers, self._held_publishers = self._held_publishers, []
        for publisher in held_publishers:
            publisher.release_reading()
        if batch.reports or batch.changes:
            await self._commit_with_retry(
                consumer,
                ReportBatch(batch.reports, batch.changes, self._owner_token, batch.urgent_since or None),
            )
        batch.complete()

    async def _wait_for_request(self) -> None:
        """Wait until the current batch is urgent, changes have waited long enough, or `stop` was called."""
        while not self.batch.is_urgent and not self._is_stopping:
            try:
                async with asyncio.timeout(_MAX_COMMIT_WAIT_SECONDS):
                    await self._batch_changed.wait()
            except TimeoutError:
                if self.batch.changes or self.batch.reports:
                    return

    async def _commit_with_retry(self, consumer: ReportConsumer, batch: ReportBatch) -> None:
        """Commit a batch, and retry until the commit succeeds. Clients get no acknowledgement before."""
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                await consumer.commit(batch)
            except DatabaseUnavailable as exc:
                self.problem = exc.readiness_problem
                _log.error("cannot commit, publishers are not acknowledged: %s", exc)
            else:
                self.problem = None
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_SECONDS)
