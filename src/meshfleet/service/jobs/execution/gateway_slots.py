"""What gateways are busy with, and whether they can take one more update."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk
from meshfleet.db.tables import active_condition
from meshfleet.protocol.products import UpdateMethod

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection


# The lines before gateways: who is next when there is room.

_MAKE_NEXT_DUE: Final = (
    "UPDATE execution SET due = ? WHERE waiting = 'gateway-busy' AND (job, device) IN ("
    "SELECT e.job, e.device FROM execution e JOIN job j ON j.id = e.job AND j.state = 'IN_PROGRESS'"
    " WHERE e.waiting = 'gateway-busy' AND e.gateway = ? ORDER BY e.due LIMIT 8{lock})"
)
"""More than one: the rate of a job may be used up."""


def wake_waiting_executions(connection: Connection, gateways: Sequence[int], now: int) -> None:
    """Let the next ones before these gateways be looked at."""
    # On a server others may be about to begin with the same: these need no word.
    lock = "" if connection.dialect.name == "sqlite" else " FOR UPDATE OF e SKIP LOCKED"
    bulk.execute_many(connection, _MAKE_NEXT_DUE.format(lock=lock), [(now, gateway) for gateway in gateways])


_SELECT_BUSY: Final = (
    "SELECT gateway, method, coalesce(batch, CAST(device AS TEXT)) FROM execution"  # noqa: S608 # our own names
    f" WHERE gateway IN numbers AND {active_condition()}"
    " AND coalesce(step, '') <> 'check'"  # a version that is read is no update
    " AND (state IN ('DISPATCHED', 'TRANSFERRING', 'VERIFYING')"
    " OR (method <> 'download' AND state IN ('STAGED', 'APPLYING'))) GROUP BY 1, 2, 3"
)


_TRY_DISPATCH_LOCK: Final = f"SELECT pg_try_advisory_xact_lock({0x6A6F_6273})"


def try_dispatch_lock(connection: Connection) -> bool:
    """Whether this program, and no other until the end of its transaction, may decide who begins.

    Limits hold for all programs together.
    """
    return connection.dialect.name == "sqlite" or bool(
        connection.exec_driver_sql(_TRY_DISPATCH_LOCK).scalar()
    )


class GatewaySlots:
    """The updates at gateways, of all jobs. A broadcast is one, however many it is for.

    One transaction uses one of these: what it lets begin is not in the database yet.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._loaded: set[int] = set()
        self._counts: Counter[int] = Counter()
        self._methods: set[tuple[int, str]] = set()

    def load(self, gateways: Iterable[int | None]) -> None:
        """Read what gateways are busy with, in one query. Those that were read before stay as they are."""
        wanted = sorted({each for each in gateways if each is not None} - self._loaded)
        if not wanted:
            return
        rows = bulk.query_in(self._connection, _SELECT_BUSY, wanted)
        self._loaded.update(wanted)
        self._counts.update(row[0] for row in rows)
        self._methods.update((row[0], row[1]) for row in rows)

    def is_free(self, gateway: int, method: UpdateMethod, limit: int | None) -> bool:
        """Whether a gateway can take another update; it can host one of some kinds only (firmware-25)."""
        self.load([gateway])
        if method is not UpdateMethod.DOWNLOAD and (gateway, str(method)) in self._methods:
            return False
        return limit is None or self._counts[gateway] < limit

    def reserve(self, gateway: int, method: UpdateMethod) -> None:
        """It has one more."""
        self.load([gateway])
        self._counts[gateway] += 1
        self._methods.add((gateway, str(method)))
