"""Subscribers of committed reports, such as presence, acknowledgments and live events."""

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
    """Data of a subscriber to write in the transaction of a flush."""

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Write the data after the device states, which added some devices, in the same transaction.

        It may be called again if the transaction fails.
        """

    def on_flushed(self) -> None:
        """Update the subscriber after the commit."""


class CommitSubscriber(Protocol):
    """Receiver of everything that is committed. The next batch waits for it, so it must be quick."""

    def on_commit(self, batch: ParsedBatch) -> None:
        """Process a committed batch."""

    def prepare_flush(self, states: PendingStates, now: int) -> FlushPart:
        """Return the data to write with these states; called at every flush."""


class SubscriberList:
    """Subscribers in order. An exception in one of them affects neither the commit nor the others."""

    def __init__(self, counters: IngestCounters) -> None:
        self._subscribers: list[CommitSubscriber] = []
        self._counters = counters

    def add(self, subscriber: CommitSubscriber) -> None:
        """Add a subscriber."""
        self._subscribers.append(subscriber)

    def on_commit(self, batch: ParsedBatch) -> None:
        """Pass a committed batch to all subscribers."""
        for subscriber in self._subscribers:
            self._run_guarded(subscriber.on_commit, batch)

    def prepare_flush(self, states: PendingStates, now: int) -> list[FlushPart]:
        """Collect the data of all subscribers to write."""
        parts: list[FlushPart] = []
        for subscriber in self._subscribers:
            self._run_guarded(lambda each=subscriber: parts.append(each.prepare_flush(states, now)))
        return parts

    def on_flushed(self, parts: Iterable[FlushPart]) -> None:
        """Notify the subscribers after the commit."""
        for part in parts:
            self._run_guarded(part.on_flushed)

    def _run_guarded(self, action: Callable[..., None], *args: object) -> None:
        try:
            action(*args)
        except Exception:  # noqa: BLE001 # otherwise gateways would send the batch again and again
            self._counters.subscriber_failures += 1
            _log.exception("a subscriber failed to process committed reports")
