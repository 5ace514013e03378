"""Who goes on with reports once they are committed: presence, acknowledgements, whoever listens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Collection

    from sqlalchemy import Connection

    from meshfleet.service.ingest.draft import Draft
    from meshfleet.service.ingest.notes import Notes


class Entry(Protocol):
    """What a follower has to write down, together with the notes."""

    def write(self, connection: Connection, added: Collection[int]) -> None:
        """Write it, behind the notes, which added some devices, and in the same transaction.

        It may have to be tried again.
        """

    def written(self) -> None:
        """It is committed."""


class Follower(Protocol):
    """Follows what is committed. The next batch waits for it, so it is quick, and raises nothing."""

    def follow(self, draft: Draft) -> None:
        """A draft is committed."""

    def collect(self, notes: Notes, now: int) -> Entry:
        """What it has to write with these notes, every other second."""
