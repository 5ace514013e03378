"""Retained messages: the last word on a topic, for who subscribes later."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from meshfleet.broker.changes import RetainedRow
from meshfleet.broker.letters import Letter
from meshfleet.broker.tree import Names
from meshfleet.wire.mqtt.packets import Publish

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_LONGEST_TOPIC: Final = 1024
"""Bytes; longer ones do not fit into an index of every database."""

_DEEPEST_TOPIC: Final = 64
"""Levels: each takes some hundred bytes of memory."""

_LARGEST: Final = 0x1_0000
"""Bytes of a payload that is retained: no payload of the protocol is longer."""

_SHARE: Final = 10
"""One account may use no more than such a part of all places."""


class _Kept(NamedTuple):
    letter: Letter
    row: RetainedRow


class Retained:
    """Keeps messages by topic, as many as the limit, with so many bytes in all.

    Somebody who subscribes to everything must be able to take them all at once.
    """

    def __init__(self, limit: int, largest: int) -> None:
        self._limit = limit
        self._largest = largest
        self._size = 0
        self._kept: dict[str, _Kept] = {}
        self._names: Names[Letter] = Names()
        self._counts = Counter[str]()
        self._sizes = Counter[str]()

    def __len__(self) -> int:
        return len(self._kept)

    def restore(self, saved: Mapping[str, RetainedRow]) -> None:
        """Keep again what was written down."""
        for topic, row in saved.items():
            self._put(topic, row)

    def keep(self, message: Publish, account: str) -> RetainedRow | None:
        """Keep a message; None: there is no place for it."""
        if not self._has_place(message, account):
            return None
        row = RetainedRow(message.payload, min(message.qos, 1), account)
        self._put(message.topic, row)
        return row

    def remove(self, topic: str) -> bool:
        """Keep nothing on a topic; whether there was something."""
        kept = self._kept.pop(topic, None)
        if kept is None:
            return False
        self._names.remove(topic)
        self._weigh(kept.row, -1)
        return True

    def topics_of(self, account: str) -> list[str]:
        """Where an account has retained something."""
        return [topic for topic, kept in self._kept.items() if kept.row.account == account]

    def matching(self, wanted: str) -> Iterator[Letter]:
        """What somebody gets who subscribes."""
        return self._names.matching(wanted)

    def _has_place(self, message: Publish, account: str) -> bool:
        topic, size = message.topic, len(message.payload)
        if len(topic.encode()) > _LONGEST_TOPIC or topic.count("/") >= _DEEPEST_TOPIC or size > _LARGEST:
            return False
        if self._size + size > self._largest or self._sizes[account] + size > self._largest // _SHARE:
            return False
        if topic in self._kept:
            return True
        return len(self._kept) < self._limit and self._counts[account] < max(1, self._limit // _SHARE)

    def _put(self, topic: str, row: RetainedRow) -> None:
        self.remove(topic)
        letter = Letter(Publish(topic, row.payload, row.qos), retain=True)
        self._kept[topic] = _Kept(letter, row)
        self._names.put(topic, letter)
        self._weigh(row, 1)

    def _weigh(self, row: RetainedRow, sign: int) -> None:
        """One message more, or one fewer."""
        size = sign * len(row.payload)
        self._size += size
        self._counts[row.account] += sign
        self._sizes[row.account] += size
        if not self._counts[row.account]:
            del self._counts[row.account], self._sizes[row.account]
