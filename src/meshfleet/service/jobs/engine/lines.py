"""The lines before gateways: who is next when there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

_NEXT: Final = (
    "UPDATE execution SET due = ? WHERE waiting = 'gateway-busy' AND (job, device) IN ("
    "SELECT e.job, e.device FROM execution e JOIN job j ON j.id = e.job AND j.state = 'IN_PROGRESS'"
    " WHERE e.waiting = 'gateway-busy' AND e.gateway = ? ORDER BY e.due LIMIT 8{lock})"
)
"""More than one: the rate of a job may be used up."""


def let_next(connection: Connection, gateways: Sequence[int], now: int) -> None:
    """Let the next ones before these gateways be looked at."""
    # On a server others may be about to begin with the same: these need no word.
    lock = "" if connection.dialect.name == "sqlite" else " FOR UPDATE OF e SKIP LOCKED"
    bulk.execute(connection, _NEXT.format(lock=lock), [(now, gateway) for gateway in gateways])
