"""Broadcast batches: executions whose devices are updated by one broadcast of a gateway.

One member sends a request for the whole batch, and the response also applies to the other members.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.db import bulk
from meshfleet.protocol.codes import Status
from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState
from meshfleet.service.jobs.execution import queries
from meshfleet.service.jobs.execution.queries import ExecutionEvent
from meshfleet.service.jobs.updates.decisions import is_abort_impossible
from meshfleet.service.jobs.updates.model import RequestNotSent, ResponseReceived, UpdateStep
from meshfleet.service.jobs.updates.states import CANCELABLE_STATES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

    from meshfleet.service.jobs.execution.queries import LoadedExecution
    from meshfleet.service.jobs.updates.model import ExecutionRecord, UpdateContext, UpdateEvent

    BatchMembersByState = dict[tuple[int, str, str], "BatchMembers"]
    """Members of broadcast batches, by job number, batch id and execution state."""

_SELECT_BATCH: Final = f"{queries.SELECT_EXECUTIONS} WHERE e.job = ? AND e.batch = ? AND {queries.IS_ACTIVE}"
_SELECT_MEMBER_STEPS: Final = (
    "SELECT e.state, e.device, e.step FROM execution e WHERE e.job = ? AND e.batch = ?"  # noqa: S608 # constants only
    f" AND {queries.IS_ACTIVE}"
)

_SHARED_STEPS: Final = {
    UpdateStep.START: frozenset({ExecutionState.DISPATCHED}),
    UpdateStep.STATE: frozenset({ExecutionState.DISPATCHED, ExecutionState.TRANSFERRING}),
    UpdateStep.APPLY: frozenset({ExecutionState.STAGED}),
    UpdateStep.ABORT: CANCELABLE_STATES,
}
"""Steps whose request one member sends for its whole batch, and the states of the members concerned."""


class BatchMembers(NamedTuple):
    """Active members of one broadcast batch that are in the same execution state."""

    ready: frozenset[int]
    """Devices that can be updated now, without devices whose version is still being read."""
    is_complete: bool
    """Whether all members in the execution state are in `ready`."""


_NO_MEMBERS: Final = BatchMembers(frozenset(), is_complete=True)


def build_member_events(
    connection: Connection, loaded: LoadedExecution, event: UpdateEvent
) -> list[ExecutionEvent]:
    """Return the events of all other members of a broadcast that follow from an event of one member.

    Only a response, or a start command that was not sent, concerns other members. The rows of these members
    are locked until the transaction ends.
    """
    execution = loaded.execution
    if (
        execution.method is not UpdateMethod.BROADCAST
        or execution.batch is None
        or not isinstance(event, ResponseReceived | RequestNotSent)
    ):
        return []
    concerned_states = _SHARED_STEPS.get(event.step, frozenset())
    if execution.state not in concerned_states or not _concerns_whole_batch(event):
        return []
    members = (
        queries.parse_loaded_execution(row)
        for row in bulk.query_rows(
            connection, _SELECT_BATCH, (execution.job, execution.batch), lock=queries.LOCK_EXECUTIONS
        )
    )
    shared_event = event._replace(is_batch_response=True) if isinstance(event, ResponseReceived) else event
    return [
        ExecutionEvent(member, shared_event)
        for member in members
        if member.execution.device != execution.device
        and member.execution.state in concerned_states
        and _concerns_member(member.execution, event)
    ]


def _concerns_whole_batch(event: ResponseReceived | RequestNotSent) -> bool:
    """Return whether an event of one member of a broadcast also concerns the other members."""
    if isinstance(event, RequestNotSent):
        return event.step is UpdateStep.START
    return event.step is not UpdateStep.ABORT or event.status == Status.OK


def _concerns_member(execution: ExecutionRecord, event: ResponseReceived | RequestNotSent) -> bool:
    """Return whether an event of the whole broadcast applies to a member that did not send the request."""
    if execution.pending_request is not None:
        return False
    if isinstance(event, RequestNotSent):
        return execution.step is UpdateStep.START and not execution.tries
    if event.step is UpdateStep.ABORT:
        return not is_abort_impossible(execution)
    return event.step is UpdateStep.APPLY or execution.step not in (
        UpdateStep.DEVICE_STATE,
        UpdateStep.RECHECK_VERSION,
    )


def load_batch_members(connection: Connection, executions: Iterable[ExecutionRecord]) -> BatchMembersByState:
    """Load the active members of the broadcast batches to which `executions` belong."""
    members_by_state: BatchMembersByState = {}
    for job, batch in {
        (execution.job, execution.batch) for execution in executions if execution.batch is not None
    }:
        steps_by_state: defaultdict[str, dict[int, str | None]] = defaultdict(dict)
        for state, device, step in bulk.query_rows(connection, _SELECT_MEMBER_STEPS, (job, batch)):
            steps_by_state[state][device] = step
        for state, steps in steps_by_state.items():
            ready = frozenset(device for device, step in steps.items() if step != UpdateStep.RECHECK_VERSION)
            members_by_state[job, batch, state] = BatchMembers(ready, is_complete=len(ready) == len(steps))
    return members_by_state


def add_batch_members(
    context: UpdateContext, execution: ExecutionRecord, members_by_state: BatchMembersByState
) -> UpdateContext:
    """Return `context` with the batch members that are in the same state as `execution`."""
    if execution.batch is None:
        return context
    members = members_by_state.get((execution.job, execution.batch, execution.state), _NO_MEMBERS)
    return replace(
        context,
        batch=tuple(sorted(members.ready | {execution.device})),
        is_batch_complete=members.is_complete,
    )
