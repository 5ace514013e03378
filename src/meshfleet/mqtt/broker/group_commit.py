"""What is promised is written down first.

Everything that an acknowledgement promises is collected in a round: reports for the consumer, messages that
persistent sessions are owed, subscriptions, retained messages. A round is committed in one transaction; then
all who waited for it get their answers. Meanwhile the next round collects. So many clients share one commit,
answers go out in the order in which they were earned [MQTT-4.6.0-2], and nothing is ever said too early.
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
        """Who waits for acknowledgements."""

        def send_pubacks(self, packet_ids: list[int]) -> None:
            """Send a PUBACK for each."""

        def release_reading(self) -> None:
            """Go on reading."""


_log = logging.getLogger(__name__)

BUSY_BATCH_MESSAGES: Final = 256
"""Messages in a round from which on it pays to save work."""

_COMMIT_PAUSES: Final = ((BUSY_BATCH_MESSAGES, 0.02), (2, 0.005), (0, 0.0))
"""How many messages in a round make the next wait for how many seconds, so that more share its cost. Without
the second, 2,000 reports a second were 1,000 commits, and took a whole core. A client that sends one message
after the other waits for none."""

_MAX_COMMIT_WAIT_SECONDS: Final = 1.0
"""Seconds that changes may wait for which nobody waits."""

_FIRST_RETRY_SECONDS: Final = 0.1
_MAX_RETRY_SECONDS: Final = 5.0
"""Seconds between two tries when the database does not answer."""


class ReportBatch:
    """Reports to be committed together. `record` goes into the same transaction."""

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
        """When the first of them came, by a clock that is never set."""
        self._changes = changes
        self._owner_token = owner_token

    @property
    def has_changes(self) -> bool:
        """Whether `record` has anything to write."""
        return bool(self._changes)

    def write_changes(self, transaction: Transaction) -> None:
        """Write what the broker has to remember because of these messages, and other things that are due."""
        if self._changes:
            store.check_ownership(transaction, self._owner_token)
            store.write_changes(transaction, self._changes)


class ReportConsumer(Protocol):
    """Who takes reports."""

    async def commit(self, batch: ReportBatch) -> None:
        """Commit a batch, with `batch.record` in the same transaction. To return is to acknowledge it.

        Raising `DatabaseUnavailable` asks for the same batch again, later.
        """


class CommitBatch:
    """What is committed together, and who waits for it."""

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
        self.after_commit: list[Callable[[], None]] = []
        self.changes = PendingChanges()
        self.received_bytes = 0
        """Bytes of what publishers sent."""
        self.is_urgent = False
        self.urgent_since = 0.0

    def complete(self) -> None:
        """It is committed: all who waited get their answers."""
        for publisher, packet_ids in self.pending_acks.items():
            publisher.send_pubacks(packet_ids)
        for say in self.after_commit:
            say()


class GroupCommit:
    """Collects a round while the one before is being committed."""

    def __init__(
        self, consumer: ReportConsumer, *, owner_token: bytes, wall_clock: WallClockConverter
    ) -> None:
        self.batch = CommitBatch()
        self.trouble: ReadinessProblem | None = None
        """Why nothing can be committed at the moment."""
        self._consumer = consumer
        self._owner_token = owner_token
        self._wall_clock = wall_clock
        self._batch_changed = ChangeSignal()
        self._held_publishers: list[Publisher] = []
        self._is_stopping = False

    # What others do

    def request_commit(self) -> None:
        """Somebody waits for this round."""
        if not self.batch.is_urgent:
            self.batch.is_urgent = True
            self.batch.urgent_since = time.monotonic()
            self._batch_changed.notify()

    def call_after_commit(self, callback: Callable[[], None]) -> None:
        """Do something as soon as this round is committed."""
        self.batch.after_commit.append(callback)
        self.request_commit()

    def stop(self) -> None:
        """Commit what there is, and no more."""
        self._is_stopping = True
        self._batch_changed.notify()

    @property
    def held_publishers(self) -> int:
        """How many publishers wait for the next round."""
        return len(self._held_publishers)

    def release_with_next_batch(self, publisher: Publisher) -> None:
        """Release this one with the next round."""
        self._held_publishers.append(publisher)

    def save_message(self, persistent_id: int, position: int, message: OutgoingMessage) -> None:
        """Write down a message that waits for a client's acknowledgement."""
        row = MessageRow(
            message.topic, message.payload, message.retain, self._wall_clock.to_wall_time(message.expires_at)
        )
        self.batch.changes.messages[persistent_id, position] = row

    def delete_message(self, persistent_id: int, position: int) -> None:
        """Delete a message; if its row is still to be written, do not write it. No position comes twice."""
        messages = self.batch.changes.messages
        if messages.pop((persistent_id, position), None) is None:
            messages[persistent_id, position] = None

    def save_session(self, session: MqttSession) -> None:
        """A session is there, or its client comes or goes."""
        if session.persistent_id is not None:
            row = SessionRow(
                session.account, session.client_id, self._wall_clock.to_wall_time(session.left_at)
            )
            self.batch.changes.sessions[session.persistent_id] = row

    def delete_session(self, session: MqttSession) -> None:
        """A session is gone."""
        if session.persistent_id is not None:
            self.batch.changes.delete_session(session.persistent_id)

    def save_subscription(self, session: MqttSession, topic_filter: str, qos: int | None) -> None:
        """A session has a subscription, or has it no longer."""
        if session.persistent_id is not None:
            self.batch.changes.subscriptions[session.persistent_id, topic_filter] = qos

    def save_unreleased_id(self, session: MqttSession, packet_id: int, *, is_open: bool) -> None:
        """A message at QoS 2 came, or was released."""
        if session.persistent_id is not None:
            self.batch.changes.unreleased_ids[session.persistent_id, packet_id] = is_open

    def save_retained(self, topic: str, row: RetainedRow | None) -> None:
        """A message is retained, or no longer."""
        self.batch.changes.retained[topic] = row

    # The work

    async def run(self) -> None:
        """Commit round after round; after `stop` the last one."""
        while not self._is_stopping or self.batch.is_urgent or self.batch.changes:
            await self._wait_for_request()
            rest = next(pause for least, pause in _COMMIT_PAUSES if len(self.batch.reports) >= least)
            await self.commit()
            if rest:
                await asyncio.sleep(rest)

    async def commit(self) -> None:
        """Commit what is collected, and answer."""
        done, self.batch = self.batch, CommitBatch()
        held, self._held_publishers = self._held_publishers, []
        for publisher in held:
            publisher.release_reading()
        if done.reports or done.changes:
            await self._commit_with_retry(
                ReportBatch(done.reports, done.changes, self._owner_token, done.urgent_since or None)
            )
        done.complete()

    async def _wait_for_request(self) -> None:
        """Until somebody waits for the round, or it has waited long enough."""
        while not self.batch.is_urgent and not self._is_stopping:
            try:
                async with asyncio.timeout(_MAX_COMMIT_WAIT_SECONDS):
                    await self._batch_changed.wait()
            except TimeoutError:
                if self.batch.changes or self.batch.reports:
                    return

    async def _commit_with_retry(self, batch: ReportBatch) -> None:
        """Try until it is committed: until then nobody gets an answer, and nothing is lost."""
        pause = _FIRST_RETRY_SECONDS
        while True:
            try:
                await self._consumer.commit(batch)
            except DatabaseUnavailable as exc:
                self.trouble = exc.readiness_problem
                _log.error("cannot commit, publishers wait: %s", exc)
            else:
                self.trouble = None
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_RETRY_SECONDS)
