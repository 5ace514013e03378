"""What gateways are busy with, and whether they can take one more update."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk
from meshfleet.db.tables import is_active
from meshfleet.wire.products import Way

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

_BUSY: Final = (
    "SELECT gateway, method, coalesce(batch, CAST(device AS TEXT)) FROM execution"  # noqa: S608 # our own names
    f" WHERE gateway IN numbers AND {is_active()}"
    " AND coalesce(step, '') <> 'check'"  # a version that is read is no update
    " AND (state IN ('DISPATCHED', 'TRANSFERRING', 'VERIFYING')"
    " OR (method <> 'download' AND state IN ('STAGED', 'APPLYING'))) GROUP BY 1, 2, 3"
)


_PLANNING: Final = f"SELECT pg_try_advisory_xact_lock({0x6A6F_6273})"


def may_plan(connection: Connection) -> bool:
    """Whether this program, and no other until the end of its transaction, may decide who begins.

    Limits hold for all programs together.
    """
    return connection.dialect.name == "sqlite" or bool(connection.exec_driver_sql(_PLANNING).scalar())


class Slots:
    """The updates at gateways, of all jobs. A broadcast is one, however many it is for.

    One transaction uses one of these: what it lets begin is not in the database yet.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._read: set[int] = set()
        self._all: Counter[int] = Counter()
        self._alone: set[tuple[int, str]] = set()

    def read(self, gateways: Iterable[int | None]) -> None:
        """Read what gateways are busy with, in one query. Those that were read before stay as they are."""
        wanted = sorted({each for each in gateways if each is not None} - self._read)
        if not wanted:
            return
        rows = bulk.pick(self._connection, _BUSY, wanted)
        self._read.update(wanted)
        self._all.update(row[0] for row in rows)
        self._alone.update((row[0], row[1]) for row in rows)

    def is_free(self, gateway: int, method: Way, limit: int | None) -> bool:
        """Whether a gateway can take another update; it can host one of some kinds only (firmware-25)."""
        self.read([gateway])
        if method is not Way.DOWNLOAD and (gateway, str(method)) in self._alone:
            return False
        return limit is None or self._all[gateway] < limit

    def take(self, gateway: int, method: Way) -> None:
        """It has one more."""
        self.read([gateway])
        self._all[gateway] += 1
        self._alone.add((gateway, str(method)))
