"""States of an execution, and the allowed transitions between states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState

if TYPE_CHECKING:
    from collections.abc import Mapping

ACTIVE_STATES: Final = frozenset(
    {
        ExecutionState.DISPATCHED,
        ExecutionState.TRANSFERRING,
        ExecutionState.VERIFYING,
        ExecutionState.STAGED,
        ExecutionState.APPLYING,
        ExecutionState.CONFIRMING,
    }
)
"""States in which the device is being updated. A device has at most one active execution (rest-142)."""

_TRANSFER_STATES: Final = frozenset(
    {ExecutionState.DISPATCHED, ExecutionState.TRANSFERRING, ExecutionState.VERIFYING}
)
"""States in which a download occupies a slot of its gateway."""
_HOST_STATES: Final = _TRANSFER_STATES | {ExecutionState.STAGED, ExecutionState.APPLYING}
"""States in which a broadcast or Nordic DFU occupies a slot of its gateway."""


def occupies_gateway(state: ExecutionState, method: UpdateMethod) -> bool:
    """Return whether an execution in a state occupies an update slot of its gateway.

    With the method download, the slot is occupied until the device has the image. With broadcast or Nordic
    DFU, the slot is occupied until the device starts the new version.
    """
    return state in (_TRANSFER_STATES if method is UpdateMethod.DOWNLOAD else _HOST_STATES)


TERMINAL_STATES: Final = frozenset(
    {
        ExecutionState.SUCCEEDED,
        ExecutionState.FAILED,
        ExecutionState.TIMED_OUT,
        ExecutionState.REJECTED,
        ExecutionState.SKIPPED,
        ExecutionState.CANCELED,
        ExecutionState.REMOVED,
        ExecutionState.SUPERSEDED,
    }
)
"""States of executions that have ended. An execution never leaves these states (rest-143)."""

CANCELABLE_STATES: Final = frozenset(
    {ExecutionState.DISPATCHED, ExecutionState.TRANSFERRING, ExecutionState.VERIFYING, ExecutionState.STAGED}
)
"""States in which the device still runs its old version and can abort the update."""

_FAILURES: Final = frozenset({ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.REMOVED})
"""Terminal states that every active execution can enter."""
_STOPS: Final = frozenset({ExecutionState.REJECTED, ExecutionState.CANCELED})
"""Terminal states that an execution can enter until the device starts the new version."""
_RETRY: Final = frozenset({ExecutionState.QUEUED})
"""State of an execution that returns to the queue for another attempt."""

EXECUTION_TRANSITIONS: Final[Mapping[ExecutionState, frozenset[ExecutionState]]] = {
    ExecutionState.QUEUED: frozenset(
        {
            ExecutionState.DISPATCHED,
            ExecutionState.SKIPPED,
            ExecutionState.CANCELED,
            ExecutionState.REMOVED,
            ExecutionState.SUPERSEDED,
            ExecutionState.TIMED_OUT,
        }
    ),
    # States may be skipped: reports and responses get lost.
    ExecutionState.DISPATCHED: _RETRY
    | _FAILURES
    | _STOPS
    | {
        ExecutionState.SKIPPED,
        ExecutionState.TRANSFERRING,
        ExecutionState.VERIFYING,
        ExecutionState.STAGED,
        ExecutionState.APPLYING,
        ExecutionState.CONFIRMING,
    },
    ExecutionState.TRANSFERRING: _RETRY
    | _FAILURES
    | _STOPS
    | {ExecutionState.VERIFYING, ExecutionState.STAGED, ExecutionState.APPLYING, ExecutionState.CONFIRMING},
    ExecutionState.VERIFYING: _RETRY
    | _FAILURES
    | _STOPS
    | {ExecutionState.STAGED, ExecutionState.APPLYING, ExecutionState.CONFIRMING},
    ExecutionState.STAGED: _RETRY | _FAILURES | _STOPS | {ExecutionState.APPLYING, ExecutionState.CONFIRMING},
    # The device may be restarting already: too late to cancel.
    ExecutionState.APPLYING: _FAILURES | {ExecutionState.CONFIRMING},
    ExecutionState.CONFIRMING: _FAILURES | {ExecutionState.SUCCEEDED},
    **{state: frozenset[ExecutionState]() for state in TERMINAL_STATES},
}


def check_execution_transition(before: ExecutionState, after: ExecutionState) -> None:
    """Raise `AssertionError` if an execution cannot change from state `before` to state `after`."""
    if after not in EXECUTION_TRANSITIONS[before]:
        raise AssertionError(f"an execution cannot change from {before} to {after}")
