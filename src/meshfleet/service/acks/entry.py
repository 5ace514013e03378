"""What the ledger has to write down, every other second."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshfleet.service.acks import store

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy import Connection

    from meshfleet.service.acks.series import Key
    from meshfleet.service.acks.store import HoleRow, SeriesRow


class Ledgered:
    """Series, and their holes, on their way to the database."""

    def __init__(
        self, rows: Sequence[SeriesRow], holes: Mapping[Key, Sequence[HoleRow]], gone: Collection[Key]
    ) -> None:
        self._rows = rows
        self._holes = holes
        self._gone = gone

    def write(self, connection: Connection, added: Collection[int]) -> None:  # noqa: ARG002 # none of ours
        """Write them."""
        store.end(connection, self._gone)  # first: some may have begun again
        store.write(connection, self._rows, self._holes)

    def written(self) -> None:
        """Nothing else waits for it."""
