"""Who goes on with reports once they are committed: presence, acknowledgements, whoever listens."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from sqlalchemy import Connection

    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.figures import Counts
    from meshfleet.service.ingest.notes import Notes

_log = logging.getLogger(__name__)


class Entry(Protocol):
    """What a follower has to write down, together with the notes."""

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Write it, behind the notes, which added some devices, and in the same transaction.

        It may have to be tried again.
        """

    def written(self) -> None:
        """It is committed."""


class Follower(Protocol):
    """Follows what is committed. The next batch waits for it, so it is quick."""

    def follow(self, draft: Draft) -> None:
        """A draft is committed."""

    def collect(self, notes: Notes, now: int) -> Entry:
        """What it has to write with these notes, every other second."""


class Followers:
    """All of them. What is committed is acknowledged, and written down, whatever one of them makes of it."""

    def __init__(self, counts: Counts) -> None:
        self._all: list[Follower] = []
        self._counts = counts

    def add(self, follower: Follower) -> None:
        """Let somebody follow from now on."""
        self._all.append(follower)

    def follow(self, draft: Draft) -> None:
        """A draft is committed."""
        for follower in self._all:
            self._try(follower.follow, draft)

    def collect(self, notes: Notes, now: int) -> list[Entry]:
        """What they have to write."""
        entries: list[Entry] = []
        for follower in self._all:
            self._try(lambda each=follower: entries.append(each.collect(notes, now)))
        return entries

    def written(self, entries: Iterable[Entry]) -> None:
        """It is committed."""
        for entry in entries:
            self._try(entry.written)

    def _try(self, deed: Callable[..., None], *args: object) -> None:
        try:
            deed(*args)
        except Exception:  # noqa: BLE001 # whatever it is: gateways must not send all of it again and again
            self._counts.failures += 1
            _log.exception("what is committed could not be followed")
