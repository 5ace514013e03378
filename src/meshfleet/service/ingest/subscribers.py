"""Who goes on with reports once they are committed: presence, acknowledgements, whoever listens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from sqlalchemy import Connection

    from meshfleet.service.ingest.metrics import IngestCounters
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates

_log = logging.getLogger(__name__)


class FlushPart(Protocol):
    """What a follower has to write down, together with the notes."""

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Write it, behind the notes, which added some devices, and in the same transaction.

        It may have to be tried again.
        """

    def on_flushed(self) -> None:
        """It is committed."""


class CommitSubscriber(Protocol):
    """Follows what is committed. The next batch waits for it, so it is quick."""

    def on_commit(self, batch: ParsedBatch) -> None:
        """A draft is committed."""

    def prepare_flush(self, states: PendingStates, now: int) -> FlushPart:
        """What it has to write with these notes, every other second."""


class SubscriberList:
    """All of them. What is committed is acknowledged, and written down, whatever one of them makes of it."""

    def __init__(self, counters: IngestCounters) -> None:
        self._all: list[CommitSubscriber] = []
        self._counters = counters

    def add(self, subscriber: CommitSubscriber) -> None:
        """Let somebody follow from now on."""
        self._all.append(subscriber)

    def on_commit(self, batch: ParsedBatch) -> None:
        """A draft is committed."""
        for follower in self._all:
            self._run_guarded(follower.on_commit, batch)

    def prepare_flush(self, states: PendingStates, now: int) -> list[FlushPart]:
        """What they have to write."""
        entries: list[FlushPart] = []
        for follower in self._all:
            self._run_guarded(lambda each=follower: entries.append(each.prepare_flush(states, now)))
        return entries

    def on_flushed(self, parts: Iterable[FlushPart]) -> None:
        """It is committed."""
        for entry in parts:
            self._run_guarded(entry.on_flushed)

    def _run_guarded(self, deed: Callable[..., None], *args: object) -> None:
        try:
            deed(*args)
        except Exception:  # noqa: BLE001 # whatever it is: gateways must not send all of it again and again
            self._counters.subscriber_failures += 1
            _log.exception("what is committed could not be followed")
