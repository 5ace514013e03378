"""The executions of a job, counted by what became of them, by what they wait for, and by gateway.

All from one walk along the job, so that the counts belong to the same moment and add up. Who was left out
from the beginning is counted apart: nothing is to be done there, and nothing went wrong. Nothing is written
for it with each step of each device, and no index is kept: steps are many, and who looks is rare. With a
hundred thousand devices the walk takes part of a second, so whoever asks again and again leaves time between.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import case, func, select

from meshfleet.db.tables import execution
from meshfleet.service.jobs.outcome import FAILURES
from meshfleet.service.jobs.plan import LEFT_OUT
from meshfleet.service.jobs.shown import jobs as reading
from meshfleet.service.jobs.shown.executions import job_now
from meshfleet.service.jobs.update.states import TERMINAL
from meshfleet.service.jobs.waiting import Waiter, waiting
from meshfleet.wire.ids import number_mac
from meshfleet.wire.rest import ExecutionState, GatewayCounts, JobSummary, ReasonCount

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Row

    from meshfleet.service.jobs.waiting import JobNow

_GATEWAYS: Final = 100
"""How many gateways are told of."""

Ending = tuple[ExecutionState, str | None]
"""A state, and the code of the reason."""

_PARTS: Final = (
    # Through which gateway those would have gone that were left out is no matter.
    case((execution.c.wave != LEFT_OUT, execution.c.gateway)).label("gateway"),
    execution.c.state,
    execution.c.wave,
    execution.c.waiting,
    execution.c.code,
)


def show(connection: Connection, number: int, *, now: int) -> JobSummary:
    """Count the executions of a job in several ways (rest-207). The job's `eta` depends on `now`."""
    standing = job_now(reading.row(connection, number))
    query = select(*_PARTS, func.count().label("many")).where(execution.c.job == number).group_by(*_PARTS)
    failures: Counter[Ending] = Counter()
    left_out: Counter[Ending] = Counter()
    waits: Counter[str] = Counter()
    gateways: dict[int, Counter[ExecutionState]] = {}
    nowhere: Counter[ExecutionState] = Counter()
    for row in connection.execute(query):
        state = ExecutionState(row.state)
        if row.wave == LEFT_OUT:
            left_out[state, row.code] += row.many
            continue
        behind = nowhere if row.gateway is None else gateways.setdefault(row.gateway, Counter())
        behind[state] += row.many
        if state in FAILURES:
            failures[state, row.code] += row.many
        elif state is ExecutionState.QUEUED:
            waits[_waits_for(standing, row)] += row.many
    return JobSummary(
        job=reading.show(connection, number, now=now),
        failures=_told(failures),
        left_out=_told(left_out),
        waiting=dict(waits.most_common()),
        gateways=[
            *(
                GatewayCounts(gateway=number_mac(gateway), counts=dict(counts))
                for gateway, counts in sorted(gateways.items(), key=_busiest_first)[:_GATEWAYS]
            ),
            *([GatewayCounts(gateway=None, counts=dict(nowhere))] if nowhere else []),
        ],
        gateway_count=len(gateways),
    )


def _waits_for(now: JobNow, row: Row[Any]) -> str:
    """In one word, as its own sentence begins."""
    waiter = Waiter(ExecutionState.QUEUED, row.wave, row.waiting, due=0, beats=0, is_read=False)
    return str(waiting(now, waiter))


def _told(endings: Counter[Ending]) -> list[ReasonCount]:
    return [
        ReasonCount(state=state, reason_code=code, count=many)
        for (state, code), many in sorted(endings.items(), key=_most_first)
    ]


def _most_first(item: tuple[Ending, int]) -> tuple[int, str, str]:
    (state, code), many = item
    return -many, str(state), code or ""


def _busiest_first(item: tuple[int, Mapping[ExecutionState, int]]) -> tuple[int, int, int]:
    """Those with most to do; then those where most went wrong; always in the same order."""
    gateway, counts = item
    left = sum(many for state, many in counts.items() if state not in TERMINAL)
    failed = sum(counts.get(state, 0) for state in FAILURES)
    return -left, -failed, gateway
