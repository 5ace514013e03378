"""Where a job can be, and where it can go from there. What is not listed cannot happen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.errors import Conflict
from meshfleet.wire.rest import JobState as S

if TYPE_CHECKING:
    from collections.abc import Mapping

JOB_MOVES: Final[Mapping[S, frozenset[S]]] = {
    # A job that never began is completed when a newer one has taken over all its devices.
    S.CREATED: frozenset({S.PENDING_APPROVAL, S.SCHEDULED, S.IN_PROGRESS, S.CANCELING, S.COMPLETED}),
    S.PENDING_APPROVAL: frozenset({S.SCHEDULED, S.IN_PROGRESS, S.CANCELING, S.CANCELED, S.COMPLETED}),
    S.SCHEDULED: frozenset({S.IN_PROGRESS, S.PAUSED, S.CANCELING, S.COMPLETED}),
    S.IN_PROGRESS: frozenset({S.SCHEDULED, S.PAUSED, S.CANCELING, S.COMPLETED}),
    S.PAUSED: frozenset({S.SCHEDULED, S.IN_PROGRESS, S.CANCELING, S.COMPLETED}),
    S.CANCELING: frozenset({S.CANCELED}),
    S.CANCELED: frozenset(),
    S.COMPLETED: frozenset(),
    S.DELETING: frozenset(),
}

DELETABLE: Final = frozenset({S.CREATED, S.CANCELED, S.COMPLETED})
"""Nothing is under way, and nothing will be unless somebody starts it (rest-214)."""

FINISHED: Final = frozenset({S.CANCELED, S.COMPLETED})
"""It never changes any more (rest-139)."""

_WORDS: Final[Mapping[S, str]] = {
    S.CREATED: "waits until somebody starts it",
    S.PENDING_APPROVAL: "waits for approval",
    S.SCHEDULED: "waits for its start time",
    S.IN_PROGRESS: "is in progress",
    S.PAUSED: "is paused",
    S.CANCELING: "is being canceled",
    S.CANCELED: "was canceled",
    S.COMPLETED: "is completed",
    S.DELETING: "is being deleted",
}


def check_move(before: S, after: S) -> None:
    """See to it that this can happen, or say where the job is."""
    if after not in JOB_MOVES[before]:
        raise not_now(before)


def check_deletable(state: S) -> None:
    """Raise `Conflict` if a job in this state cannot be deleted (rest-214)."""
    if state is S.CANCELING:
        raise Conflict("the job is being canceled; delete it when that is done")
    if state not in DELETABLE:
        raise Conflict(f"the job {_WORDS[state]}; cancel it before you delete it")


def not_now(state: S) -> Conflict:
    """A deed does not go together with where the job is."""
    return Conflict(f"the job {_WORDS[state]}")
