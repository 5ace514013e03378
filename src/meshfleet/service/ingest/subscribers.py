"""Subscribers to committed reports: parts of the service such as presence, sample acks and live events."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from sqlalchemy import Connection

    from meshfleet.service.ingest.counters import IngestCounters
    from meshfleet.service.ingest.parsed_batch import ParsedBatch
    from meshfleet.service.ingest.pending_state import PendingStates

_log = logging.getLogger(__name__)


class FlushPart(Protocol):
    """Data of a subscriber to write in the transaction of a flush (write of device states from memory)."""

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Write the subscriber's data in the transaction of a flush, after the device states.

        `added` are the devices that the transaction has added. If the transaction fails, it is retried and
        this method is called again.
        """

    def on_flushed(self) -> None:
        """Update the subscriber after the flush was committed."""


class CommitSubscriber(Protocol):
    """Receiver of committed batches and flushes. Its methods must be quick: they delay the next batch."""

    def on_commit(self, batch: ParsedBatch) -> None:
        """Process the reports of a committed batch."""

    def prepare_flush(self, states: PendingStates, now: int) -> FlushPart:
        """Return the subscriber's data to write together with device states. Called before every flush."""


class SubscriberList:
    """Calls the subscribers to committed reports in order.

    An exception in a subscriber affects neither the commit nor other subscribers.
    """

    def __init__(self, counters: IngestCounters) -> None:
        self._subscribers: list[CommitSubscriber] = []
        self._counters = counters

    def add(self, subscriber: CommitSubscriber) -> None:
        """Add a subscriber to committed reports."""
        self._subscribers.append(subscriber)

    def on_commit(self, batch: ParsedBatch) -> None:
        """Pass a committed batch to all subscribers."""
        for subscriber in self._subscribers:
            self._run_guarded(subscriber.on_commit, batch)

    def prepare_flush(self, states: PendingStates, now: int) -> list[FlushPart]:
        """Collect from all subscribers the data that the next flush must write."""
        parts: list[FlushPart] = []
        for subscriber in self._subscribers:
            self._run_guarded(lambda each=subscriber: parts.append(each.prepare_flush(states, now)))
        return parts

    def on_flushed(self, parts: Iterable[FlushPart]) -> None:
        """Notify the subscribers after a flush with their data was committed."""
        for part in parts:
            self._run_guarded(part.on_flushed)

    def _run_guarded(self, action: Callable[..., None], *args: object) -> None:
        """Call a method of a subscriber. Log an exception instead of raising it."""
        try:
            action(*args)
        except Exception:  # noqa: BLE001 # otherwise gateways would send the batch again and again
            self._counters.subscriber_failures += 1
            _log.exception("a subscriber failed to process committed reports")
