"""The lines before gateways: who is next when there is room."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Connection

_NEXT: Final = (
    "UPDATE execution SET due = ? WHERE waiting = 'gateway-busy' AND (job, device) IN ("
    "SELECT job, device FROM execution WHERE waiting = 'gateway-busy' AND gateway = ? ORDER BY due LIMIT 8)"
)
"""More than one: those may belong to jobs that are paused, or whose rate is used up."""


def let_next(connection: Connection, gateways: Sequence[int], now: int) -> None:
    """Let the next ones before these gateways be looked at."""
    bulk.execute(connection, _NEXT, [(now, gateway) for gateway in gateways])
