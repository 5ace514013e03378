"""States of an execution and the allowed transitions between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest.jobs import ExecutionState as S

if TYPE_CHECKING:
    from collections.abc import Mapping

ACTIVE_STATES: Final = frozenset(
    {S.DISPATCHED, S.TRANSFERRING, S.VERIFYING, S.STAGED, S.APPLYING, S.CONFIRMING}
)
"""States in which the device is being updated. A device has at most one active execution (rest-142)."""

_TRANSFER_STATES: Final = frozenset({S.DISPATCHED, S.TRANSFERRING, S.VERIFYING})
_HOST_STATES: Final = _TRANSFER_STATES | {S.STAGED, S.APPLYING}


def occupies_gateway(state: S, method: UpdateMethod) -> bool:
    """Return whether an execution occupies a slot of its gateway.

    With the method download, the slot is occupied until the device has the image. With broadcast or Nordic
    DFU, the slot is occupied until the device starts the new version.
    """
    return state in (_TRANSFER_STATES if method is UpdateMethod.DOWNLOAD else _HOST_STATES)


TERMINAL_STATES: Final = frozenset(
    {S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.REJECTED, S.SKIPPED, S.CANCELED, S.REMOVED, S.SUPERSEDED}
)
"""States of executions that have ended; they never change again (rest-143)."""

CANCELABLE_STATES: Final = frozenset({S.DISPATCHED, S.TRANSFERRING, S.VERIFYING, S.STAGED})
"""States in which the device still runs its old version and can abort the update."""

_ENDS: Final = frozenset({S.FAILED, S.TIMED_OUT, S.REMOVED})
_REFUSALS: Final = frozenset({S.REJECTED, S.CANCELED})
_RETRY: Final = frozenset({S.QUEUED})
"""State of an execution that returns to the queue for another attempt."""

EXECUTION_TRANSITIONS: Final[Mapping[S, frozenset[S]]] = {
    S.QUEUED: frozenset({S.DISPATCHED, S.SKIPPED, S.CANCELED, S.REMOVED, S.SUPERSEDED, S.TIMED_OUT}),
    # States may be skipped: reports and responses get lost.
    S.DISPATCHED: _RETRY
    | _ENDS
    | _REFUSALS
    | {S.SKIPPED, S.TRANSFERRING, S.VERIFYING, S.STAGED, S.APPLYING, S.CONFIRMING},
    S.TRANSFERRING: _RETRY | _ENDS | _REFUSALS | {S.VERIFYING, S.STAGED, S.APPLYING, S.CONFIRMING},
    S.VERIFYING: _RETRY | _ENDS | _REFUSALS | {S.STAGED, S.APPLYING, S.CONFIRMING},
    S.STAGED: _RETRY | _ENDS | _REFUSALS | {S.APPLYING, S.CONFIRMING},
    # The device may be restarting already: too late to cancel.
    S.APPLYING: _ENDS | {S.CONFIRMING},
    S.CONFIRMING: _ENDS | {S.SUCCEEDED},
    **{state: frozenset[S]() for state in TERMINAL_STATES},
}


def check_execution_transition(before: S, after: S) -> None:
    """Raise `AssertionError` if `EXECUTION_TRANSITIONS` does not allow the transition."""
    if after not in EXECUTION_TRANSITIONS[before]:
        raise AssertionError(f"an execution cannot change from {before} to {after}")
