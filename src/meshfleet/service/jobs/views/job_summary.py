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
from meshfleet.protocol.ids import mac_from_int
from meshfleet.rest import ExecutionState, GatewayCounts, JobSummary, ReasonCount
from meshfleet.service.jobs.job_states import FAILURE_STATES
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE
from meshfleet.service.jobs.updates.states import TERMINAL_STATES
from meshfleet.service.jobs.views import job_view as reading
from meshfleet.service.jobs.views.execution_view import build_job_snapshot
from meshfleet.service.jobs.wait_reasons import ExecutionSnapshot, find_wait_reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Row

    from meshfleet.service.jobs.wait_reasons import JobSnapshot

_MAX_GATEWAYS: Final = 100
"""How many gateways are told of."""

StateReason = tuple[ExecutionState, str | None]
"""A state, and the code of the reason."""

_GROUP_COLUMNS: Final = (
    # Through which gateway those would have gone that were left out is no matter.
    case((execution.c.wave != LEFT_OUT_WAVE, execution.c.gateway)).label("gateway"),
    execution.c.state,
    execution.c.wave,
    execution.c.waiting,
    execution.c.code,
)


def load_job_summary(connection: Connection, job_number: int, *, now: int) -> JobSummary:
    """Count the executions of a job in several ways (rest-207). The job's `eta` depends on `now`."""
    standing = build_job_snapshot(reading.load_job_row(connection, job_number))
    query = (
        select(*_GROUP_COLUMNS, func.count().label("many"))
        .where(execution.c.job == job_number)
        .group_by(*_GROUP_COLUMNS)
    )
    failures: Counter[StateReason] = Counter()
    left_out: Counter[StateReason] = Counter()
    waits: Counter[str] = Counter()
    gateways: dict[int, Counter[ExecutionState]] = {}
    nowhere: Counter[ExecutionState] = Counter()
    for row in connection.execute(query):
        state = ExecutionState(row.state)
        if row.wave == LEFT_OUT_WAVE:
            left_out[state, row.code] += row.many
            continue
        behind = nowhere if row.gateway is None else gateways.setdefault(row.gateway, Counter())
        behind[state] += row.many
        if state in FAILURE_STATES:
            failures[state, row.code] += row.many
        elif state is ExecutionState.QUEUED:
            waits[_find_wait_reason(standing, row)] += row.many
    return JobSummary(
        job=reading.load_job(connection, job_number, now=now),
        failures=_build_reason_counts(failures),
        left_out=_build_reason_counts(left_out),
        waiting=dict(waits.most_common()),
        gateways=[
            *(
                GatewayCounts(gateway=mac_from_int(gateway), counts=dict(counts))
                for gateway, counts in sorted(gateways.items(), key=_busiest_first)[:_MAX_GATEWAYS]
            ),
            *([GatewayCounts(gateway=None, counts=dict(nowhere))] if nowhere else []),
        ],
        gateway_count=len(gateways),
    )


def _find_wait_reason(now: JobSnapshot, row: Row[Any]) -> str:
    """In one word, as its own sentence begins."""
    waiter = ExecutionSnapshot(ExecutionState.QUEUED, row.wave, row.waiting, due=0, beats=0, is_read=False)
    return str(find_wait_reason(now, waiter))


def _build_reason_counts(counts: Counter[StateReason]) -> list[ReasonCount]:
    return [
        ReasonCount(state=state, reason_code=code, count=many)
        for (state, code), many in sorted(counts.items(), key=_most_first)
    ]


def _most_first(item: tuple[StateReason, int]) -> tuple[int, str, str]:
    (state, code), many = item
    return -many, str(state), code or ""


def _busiest_first(item: tuple[int, Mapping[ExecutionState, int]]) -> tuple[int, int, int]:
    """Those with most to do; then those where most went wrong; always in the same order."""
    gateway, counts = item
    left = sum(many for state, many in counts.items() if state not in TERMINAL_STATES)
    failed = sum(counts.get(state, 0) for state in FAILURE_STATES)
    return -left, -failed, gateway
