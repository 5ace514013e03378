"""Where an execution can be, and where it can go from there. What is not listed cannot happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.protocol.products import UpdateMethod
from meshfleet.rest import ExecutionState as S

if TYPE_CHECKING:
    from collections.abc import Mapping

ACTIVE_STATES: Final = frozenset(
    {S.DISPATCHED, S.TRANSFERRING, S.VERIFYING, S.STAGED, S.APPLYING, S.CONFIRMING}
)
"""Something is going on with the device: one execution of a device at a time (rest-142)."""

_TRANSFER_STATES: Final = frozenset({S.DISPATCHED, S.TRANSFERRING, S.VERIFYING})
_HOST_STATES: Final = _TRANSFER_STATES | {S.STAGED, S.APPLYING}


def occupies_gateway(state: S, method: UpdateMethod) -> bool:
    """Whether its gateway is busy with it.

    Who keeps an image, or starts it, or has to prove itself, is in nobody's way; but a gateway is not done
    with a broadcast or a Nordic DFU of its own before the new version is started.
    """
    return state in (_TRANSFER_STATES if method is UpdateMethod.DOWNLOAD else _HOST_STATES)


TERMINAL_STATES: Final = frozenset(
    {S.SUCCEEDED, S.FAILED, S.TIMED_OUT, S.REJECTED, S.SKIPPED, S.CANCELED, S.REMOVED, S.SUPERSEDED}
)
"""Nothing changes any more (rest-143)."""

CANCELABLE_STATES: Final = frozenset({S.DISPATCHED, S.TRANSFERRING, S.VERIFYING, S.STAGED})
"""The device still runs its old version, and will go on with it if it is told so."""

_ENDS: Final = frozenset({S.FAILED, S.TIMED_OUT, S.REMOVED})
_REFUSALS: Final = frozenset({S.REJECTED, S.CANCELED})
_RETRY: Final = frozenset({S.QUEUED})
"""For another attempt."""

EXECUTION_TRANSITIONS: Final[Mapping[S, frozenset[S]]] = {
    S.QUEUED: frozenset({S.DISPATCHED, S.SKIPPED, S.CANCELED, S.REMOVED, S.SUPERSEDED, S.TIMED_OUT}),
    # A device may be further than we saw: reports and answers get lost.
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
    """See to it that this can happen."""
    if after not in EXECUTION_TRANSITIONS[before]:
        raise AssertionError(f"an execution cannot go from {before} to {after}")
