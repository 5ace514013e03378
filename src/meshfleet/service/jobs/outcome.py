"""How a job went, by what became of its devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from meshfleet.wire.rest import ExecutionState, Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping

FAILURES: Final = (ExecutionState.FAILED, ExecutionState.TIMED_OUT, ExecutionState.REJECTED)
"""What went wrong."""

_FINE: Final = frozenset({ExecutionState.SUCCEEDED, ExecutionState.SKIPPED})


def outcome(counts: Mapping[ExecutionState, int]) -> Outcome:
    """The outcome of a job whose executions are all over (rest-134, rest-135)."""
    there = {state for state, count in counts.items() if count}
    if ExecutionState.SUCCEEDED in there:
        return Outcome.SUCCEEDED if there <= _FINE else Outcome.PARTIAL
    return Outcome.FAILED if there.intersection(FAILURES) else Outcome.NONE
