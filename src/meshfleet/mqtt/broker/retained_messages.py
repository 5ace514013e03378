"""Retained messages: the last message of a topic, for clients that subscribe later."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.mqtt.broker.outgoing_message import OutgoingMessage
from meshfleet.mqtt.broker.store import RetainedRow
from meshfleet.mqtt.broker.topic_tree import TopicTree
from meshfleet.mqtt.codec.packets import Publish

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_MAX_TOPIC_BYTES: Final = 1024
"""Maximum bytes of the topic of a retained message: longer topics do not fit into every database index."""

_MAX_TOPIC_LEVELS: Final = 64
"""Maximum levels of the topic of a retained message: each level takes some hundred bytes of memory."""

_MAX_PAYLOAD_BYTES: Final = 0x1_0000
"""Maximum size of the payload of a retained message in bytes: no payload of the protocol is longer."""

SERVICE_ACCOUNT: Final = "service"
"""Account of the messages that the service itself publishes. It limits them itself, so they do not count."""

_ACCOUNT_SHARE_DIVISOR: Final = 10
"""One account may use each limit on retained messages divided by this number."""


class _Entry(NamedTuple):
    """Retained message, as subscribers receive it and as the database row."""

    message: OutgoingMessage
    row: RetainedRow


class RetainedMessageStore:
    """Retained messages by topic, limited in number and in total payload bytes, except those of the service.

    A client that subscribes to every topic receives all retained messages at once, so all retained messages
    together must fit into the queue of one client.
    """

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self._size = 0
        self._entries: dict[str, _Entry] = {}
        self._topics: TopicTree[OutgoingMessage] = TopicTree()
        self._count = 0
        """Number of retained messages that count towards the limit."""
        self._counts = Counter[str]()
        self._sizes = Counter[str]()

    def __len__(self) -> int:
        return len(self._entries)

    def restore(self, rows: Mapping[str, RetainedRow]) -> None:
        """Load the persisted retained messages; the keys of `rows` are topics."""
        for topic, row in rows.items():
            self._insert(topic, row)

    def put(self, message: Publish, account: str) -> RetainedRow | None:
        """Store the retained message of a topic. Return its database row, or None if a limit is reached."""
        if not self._fits(message, account):
            return None
        row = RetainedRow(message.payload, min(message.qos, 1), account)
        self._insert(message.topic, row)
        return row

    def remove(self, topic: str) -> bool:
        """Remove the retained message of a topic. Return whether the topic had one."""
        entry = self._entries.pop(topic, None)
        if entry is None:
            return False
        self._topics.remove(topic)
        self._adjust_totals(entry.row, -1)
        return True

    def list_topics_of_account(self, account: str) -> list[str]:
        """Return the topics of the retained messages that an account published."""
        return [topic for topic, entry in self._entries.items() if entry.row.account == account]

    def find_matching(self, topic_filter: str) -> Iterator[OutgoingMessage]:
        """Return the retained messages whose topics match a topic filter."""
        return self._topics.find_matching(topic_filter)

    def _fits(self, message: Publish, account: str) -> bool:
        """Return whether a retained message stays within the limits in total and of its account."""
        topic, size = message.topic, len(message.payload)
        if (
            len(topic.encode()) > _MAX_TOPIC_BYTES
            or topic.count("/") >= _MAX_TOPIC_LEVELS
            or size > _MAX_PAYLOAD_BYTES
        ):
            return False
        if account == SERVICE_ACCOUNT:
            return True
        if (
            self._size + size > self.max_bytes
            or self._sizes[account] + size > self.max_bytes // _ACCOUNT_SHARE_DIVISOR
        ):
            return False
        if (existing := self._entries.get(topic)) is not None and existing.row.account != SERVICE_ACCOUNT:
            return True
        return self._count < self.max_messages and self._counts[account] < max(
            1, self.max_messages // _ACCOUNT_SHARE_DIVISOR
        )

    def _insert(self, topic: str, row: RetainedRow) -> None:
        """Add the retained message of a topic, and replace the previous one."""
        self.remove(topic)
        message = OutgoingMessage(Publish(topic, row.payload, row.qos), retain=True)
        self._entries[topic] = _Entry(message, row)
        self._topics.put(topic, message)
        self._adjust_totals(row, 1)

    def _adjust_totals(self, row: RetainedRow, sign: int) -> None:
        """Add a retained message to the totals (`sign` 1), or subtract the message (`sign` -1)."""
        if row.account == SERVICE_ACCOUNT:
            return
        size = sign * len(row.payload)
        self._size += size
        self._count += sign
        self._counts[row.account] += sign
        self._sizes[row.account] += size
        if not self._counts[row.account]:
            del self._counts[row.account], self._sizes[row.account]
