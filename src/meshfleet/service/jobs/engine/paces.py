"""How fast gateways bring images to devices, as it was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.db import bulk
from meshfleet.db.tables import pace
from meshfleet.wire.rest import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sqlalchemy import Connection

    from meshfleet.service.jobs.engine.moving import Made
    from meshfleet.service.jobs.fitness import Need
    from meshfleet.service.jobs.update.model import Execution, Order

_ARRIVED: Final = frozenset(
    {ExecutionState.VERIFYING, ExecutionState.STAGED, ExecutionState.APPLYING, ExecutionState.CONFIRMING}
)
_FASTEST: Final = 1_000_000_000
"""What a column can hold, and no radio brings."""
_MIX: Final = "UPDATE SET rate = (pace.rate + excluded.rate) / 2"
"""Neither the last one alone nor all that was long ago."""


def measure(
    connection: Connection, made: Iterable[Made], said: Mapping[int, tuple[Order, Need]], now: int
) -> None:
    """Remember how long images took that have arrived."""
    rates: dict[tuple[int, str], int] = {}
    for before, move, *_ in made:
        took = None if before.moved_at is None else now - before.moved_at
        arrived = before.state is ExecutionState.TRANSFERRING and move.execution.state in _ARRIVED
        if arrived and took and before.gateway is not None and _is_whole(before):
            size = said[before.job][0].size
            rates[before.gateway, str(before.method)] = min(max(size * 1000 // took, 1), _FASTEST)
    bulk.upsert(connection, pace, [(*key, rate) for key, rate in sorted(rates.items())], otherwise=_MIX)


def _is_whole(x: Execution) -> bool:
    """Return whether a transfer was followed without an outage, whose length is not known to its clock."""
    if x.suspended_at is not None:
        return False
    return x.resumed_at is None or x.moved_at is None or x.resumed_at < x.moved_at
