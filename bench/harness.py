"""How benchmarks measure: CPU time per operation, against an anchor of the same run.

Machines differ and are noisy. So the cases of a benchmark take turns, round after round, each round gives
one figure for each case, and the median over the rounds counts. Compare ratios between cases of one run.
"""

from __future__ import annotations

import gc
import statistics
import time
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

CALLS = 20_000
ROUNDS = 15
QUICK_CALLS = 4_000
QUICK_ROUNDS = 5


class Case(NamedTuple):
    """One thing to measure: a call with one argument, as a loop over messages makes it."""

    call: Callable[[Any], object]
    argument: Any
    operations: int = 1
    """How many operations one call does."""


def measure_cpu_per_operation(cases: Mapping[str, Case], *, quick: bool) -> dict[str, float]:
    """Microseconds of CPU time that one operation of each case takes; the loop around it is in it."""
    calls, rounds = (QUICK_CALLS, QUICK_ROUNDS) if quick else (CALLS, ROUNDS)
    figures: dict[str, list[float]] = {name: [] for name in cases}
    gc.collect()
    for _ in range(rounds):
        for name, case in cases.items():
            figures[name].append(_round(case, max(1, calls // case.operations)))
    return {name: round(statistics.median(values), 3) for name, values in figures.items()}


def _round(case: Case, calls: int) -> float:
    call, argument, operations = case
    start = time.process_time_ns()
    for _ in repeat(None, calls):
        call(argument)
    return (time.process_time_ns() - start) / 1000 / calls / operations
