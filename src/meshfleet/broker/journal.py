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

from meshfleet.broker import store
from meshfleet.broker.changes import Changes, MessageRow, RetainedRow, SessionRow
from meshfleet.errors import DatabaseUnavailable
from meshfleet.link.bell import Bell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy import Connection as Transaction

    from meshfleet.broker.letters import Letter
    from meshfleet.broker.session import Session
    from meshfleet.broker.written_times import WrittenTimes
    from meshfleet.errors import Trouble
    from meshfleet.wire.mqtt.packets import Publish

    class Publisher(Protocol):
        """Who waits for acknowledgements."""

        def acknowledge(self, packet_ids: list[int]) -> None:
            """Send a PUBACK for each."""

        def release(self) -> None:
            """Go on reading."""


_log = logging.getLogger(__name__)

BUSY: Final = 256
"""Messages in a round from which on it pays to save work."""

_RESTS: Final = ((BUSY, 0.02), (2, 0.005), (0, 0.0))
"""How many messages in a round make the next wait for how many seconds, so that more share its cost. Without
the second, 2,000 reports a second were 1,000 commits, and took a whole core. A client that sends one message
after the other waits for none."""

_LAZY: Final = 1.0
"""Seconds that changes may wait for which nobody waits."""

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0
"""Seconds between two tries when the database does not answer."""


class Batch:
    """Reports to be committed together. `record` goes into the same transaction."""

    __slots__ = ("_changes", "_owner", "came_at", "messages")

    def __init__(
        self, messages: Sequence[Publish], changes: Changes, owner: bytes, came_at: float | None = None
    ) -> None:
        self.messages = messages
        self.came_at = time.monotonic() if came_at is None else came_at
        """When the first of them came, by a clock that is never set."""
        self._changes = changes
        self._owner = owner

    @property
    def has_news(self) -> bool:
        """Whether `record` has anything to write."""
        return bool(self._changes)

    def record(self, transaction: Transaction) -> None:
        """Write what the broker has to remember because of these messages, and other things that are due."""
        if self._changes:
            store.check_owner(transaction, self._owner)
            store.write(transaction, self._changes)


class Consumer(Protocol):
    """Who takes reports."""

    async def take(self, batch: Batch) -> None:
        """Commit a batch, with `batch.record` in the same transaction. To return is to acknowledge it.

        Raising `DatabaseUnavailable` asks for the same batch again, later.
        """


class Round:
    """What is committed together, and who waits for it."""

    __slots__ = ("acks", "after", "changes", "is_urgent", "reports", "size", "urgent_since")

    def __init__(self) -> None:
        self.reports: list[Publish] = []
        self.acks: dict[Publisher, list[int]] = {}
        self.after: list[Callable[[], None]] = []
        self.changes = Changes()
        self.size = 0
        """Bytes of what publishers sent."""
        self.is_urgent = False
        self.urgent_since = 0.0

    def answer(self) -> None:
        """It is committed: all who waited get their answers."""
        for publisher, packet_ids in self.acks.items():
            publisher.acknowledge(packet_ids)
        for say in self.after:
            say()


class Journal:
    """Collects a round while the one before is being committed."""

    def __init__(self, consumer: Consumer, *, owner: bytes, times: WrittenTimes) -> None:
        self.round = Round()
        self.trouble: Trouble | None = None
        """Why nothing can be committed at the moment."""
        self._consumer = consumer
        self._owner = owner
        self._times = times
        self._bell = Bell()
        self._held: list[Publisher] = []
        self._is_stopping = False

    # What others do

    def hurry(self) -> None:
        """Somebody waits for this round."""
        if not self.round.is_urgent:
            self.round.is_urgent = True
            self.round.urgent_since = time.monotonic()
            self._bell.ring()

    def then(self, answer: Callable[[], None]) -> None:
        """Do something as soon as this round is committed."""
        self.round.after.append(answer)
        self.hurry()

    def stop(self) -> None:
        """Commit what there is, and no more."""
        self._is_stopping = True
        self._bell.ring()

    @property
    def held(self) -> int:
        """How many publishers wait for the next round."""
        return len(self._held)

    def hold(self, publisher: Publisher) -> None:
        """Release this one with the next round."""
        self._held.append(publisher)

    def owe(self, number: int, position: int, letter: Letter) -> None:
        """Write down a message that waits for a client's acknowledgement."""
        row = MessageRow(letter.topic, letter.payload, letter.retain, self._times.to_write(letter.until))
        self.round.changes.messages[number, position] = row

    def settle(self, number: int, position: int) -> None:
        """Delete a message; if its row is still to be written, do not write it. No position comes twice."""
        messages = self.round.changes.messages
        if messages.pop((number, position), None) is None:
            messages[number, position] = None

    def save_session(self, session: Session) -> None:
        """A session is there, or its client comes or goes."""
        if session.number is not None:
            row = SessionRow(session.account, session.client_id, self._times.to_write(session.left_at))
            self.round.changes.sessions[session.number] = row

    def end_session(self, session: Session) -> None:
        """A session is gone."""
        if session.number is not None:
            self.round.changes.end_session(session.number)

    def save_subscription(self, session: Session, wanted: str, qos: int | None) -> None:
        """A session has a subscription, or has it no longer."""
        if session.number is not None:
            self.round.changes.subscriptions[session.number, wanted] = qos

    def save_received(self, session: Session, packet_id: int, *, is_open: bool) -> None:
        """A message at QoS 2 came, or was released."""
        if session.number is not None:
            self.round.changes.received[session.number, packet_id] = is_open

    def save_retained(self, topic: str, row: RetainedRow | None) -> None:
        """A message is retained, or no longer."""
        self.round.changes.retained[topic] = row

    # The work

    async def run(self) -> None:
        """Commit round after round; after `stop` the last one."""
        while not self._is_stopping or self.round.is_urgent or self.round.changes:
            await self._wait()
            rest = next(pause for least, pause in _RESTS if len(self.round.reports) >= least)
            await self.commit()
            if rest:
                await asyncio.sleep(rest)

    async def commit(self) -> None:
        """Commit what is collected, and answer."""
        done, self.round = self.round, Round()
        held, self._held = self._held, []
        for publisher in held:
            publisher.release()
        if done.reports or done.changes:
            await self._hand_over(Batch(done.reports, done.changes, self._owner, done.urgent_since or None))
        done.answer()

    async def _wait(self) -> None:
        """Until somebody waits for the round, or it has waited long enough."""
        while not self.round.is_urgent and not self._is_stopping:
            try:
                async with asyncio.timeout(_LAZY):
                    await self._bell.wait()
            except TimeoutError:
                if self.round.changes or self.round.reports:
                    return

    async def _hand_over(self, batch: Batch) -> None:
        """Try until it is committed: until then nobody gets an answer, and nothing is lost."""
        pause = _FIRST_PAUSE
        while True:
            try:
                await self._consumer.take(batch)
            except DatabaseUnavailable as exc:
                self.trouble = exc.trouble
                _log.error("cannot commit, publishers wait: %s", exc)
            else:
                self.trouble = None
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
