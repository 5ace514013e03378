"""Counts the executions of a job by failure reason, by wait reason, and by gateway.

One query returns all counts, so the counts belong to the same time and add up. Devices that were excluded
when the job was created are counted separately, because their updates did not fail. The counts are computed
for each summary: transitions are frequent and summaries are rare. With a hundred thousand devices the query
takes a fraction of a second, so REST clients should not poll often.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import case, func, select

from meshfleet.db.tables import execution
from meshfleet.protocol.ids import mac_from_int
from meshfleet.rest.jobs import ExecutionState, GatewayCounts, JobSummary, ReasonCount
from meshfleet.service.jobs.job_states import FAILURE_STATES
from meshfleet.service.jobs.rollout import LEFT_OUT_WAVE
from meshfleet.service.jobs.updates.states import TERMINAL_STATES
from meshfleet.service.jobs.views import job_view
from meshfleet.service.jobs.views.execution_view import build_job_snapshot
from meshfleet.service.jobs.wait_reasons import ExecutionSnapshot, find_wait_reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sqlalchemy import Connection, Row

    from meshfleet.service.jobs.wait_reasons import JobSnapshot

_MAX_GATEWAYS: Final = 100
"""Maximum number of gateways in a summary."""

StateReason = tuple[ExecutionState, str | None]
"""Pair of execution state and reason code; None if there is no reason code."""

_GROUP_COLUMNS: Final = (
    # The gateways of excluded devices do not matter.
    case((execution.c.wave != LEFT_OUT_WAVE, execution.c.gateway)).label("gateway"),
    execution.c.state,
    execution.c.wave,
    execution.c.waiting,
    execution.c.code,
)


def load_job_summary(connection: Connection, job_number: int, *, now: int) -> JobSummary:
    """Load the summary of a job (rest-207). The estimated end (`eta`) of the job depends on `now`."""
    snapshot = build_job_snapshot(job_view.load_job_row(connection, job_number))
    query = (
        select(*_GROUP_COLUMNS, func.count().label("many"))
        .where(execution.c.job == job_number)
        .group_by(*_GROUP_COLUMNS)
    )
    failures: Counter[StateReason] = Counter()
    left_out: Counter[StateReason] = Counter()
    waits: Counter[str] = Counter()
    gateways: dict[int, Counter[ExecutionState]] = {}
    without_gateway: Counter[ExecutionState] = Counter()
    for row in connection.execute(query):
        state = ExecutionState(row.state)
        if row.wave == LEFT_OUT_WAVE:
            left_out[state, row.code] += row.many
            continue
        counts = without_gateway if row.gateway is None else gateways.setdefault(row.gateway, Counter())
        counts[state] += row.many
        if state in FAILURE_STATES:
            failures[state, row.code] += row.many
        elif state is ExecutionState.QUEUED:
            waits[_find_wait_reason(snapshot, row)] += row.many
    return JobSummary(
        job=job_view.load_job(connection, job_number, now=now),
        failures=_build_reason_counts(failures),
        left_out=_build_reason_counts(left_out),
        waiting=dict(waits.most_common()),
        gateways=[
            *(
                GatewayCounts(gateway=mac_from_int(gateway), counts=dict(counts))
                for gateway, counts in sorted(gateways.items(), key=_build_gateway_sort_key)[:_MAX_GATEWAYS]
            ),
            *([GatewayCounts(gateway=None, counts=dict(without_gateway))] if without_gateway else []),
        ],
        gateway_count=len(gateways),
    )


def _find_wait_reason(job: JobSnapshot, row: Row[Any]) -> str:
    """Return why the queued executions of a row wait, as the keyword at the start of `waitingFor`."""
    execution = ExecutionSnapshot(ExecutionState.QUEUED, row.wave, row.waiting, due=0, beats=0, is_read=False)
    return str(find_wait_reason(job, execution))


def _build_reason_counts(counts: Counter[StateReason]) -> list[ReasonCount]:
    """Convert counts by state and reason code to REST items, the most frequent first."""
    return [
        ReasonCount(state=state, reason_code=code, count=many)
        for (state, code), many in sorted(counts.items(), key=_build_reason_sort_key)
    ]


def _build_reason_sort_key(item: tuple[StateReason, int]) -> tuple[int, str, str]:
    """Return the sort key of a reason: the most frequent reason first."""
    (state, code), many = item
    return -many, str(state), code or ""


def _build_gateway_sort_key(item: tuple[int, Mapping[ExecutionState, int]]) -> tuple[int, int, int]:
    """Return the sort key of a gateway: most unfinished executions first, then most failed ones."""
    gateway, counts = item
    unfinished = sum(many for state, many in counts.items() if state not in TERMINAL_STATES)
    failed = sum(counts.get(state, 0) for state in FAILURE_STATES)
    return -unfinished, -failed, gateway
