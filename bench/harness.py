"""Measurement of CPU time per operation, to be compared with an anchor of the same run.

Machines differ and are noisy. So the cases of a benchmark take turns: each round gives one value per case,
and the result is the median over the rounds. Compare ratios between cases of one run.
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
    """Measured call with one argument, as in a loop over messages."""

    call: Callable[[Any], object]
    argument: Any
    operations: int = 1
    """Number of operations per call."""


def measure_cpu_per_operation(cases: Mapping[str, Case], *, quick: bool) -> dict[str, float]:
    """Return the CPU time per operation of each case in microseconds, including the loop around it."""
    calls, rounds = (QUICK_CALLS, QUICK_ROUNDS) if quick else (CALLS, ROUNDS)
    samples: dict[str, list[float]] = {name: [] for name in cases}
    gc.collect()
    for _ in range(rounds):
        for name, case in cases.items():
            samples[name].append(_measure_round(case, max(1, calls // case.operations)))
    return {name: round(statistics.median(values), 3) for name, values in samples.items()}


def _measure_round(case: Case, calls: int) -> float:
    call, argument, operations = case
    start = time.process_time_ns()
    for _ in repeat(None, calls):
        call(argument)
    return (time.process_time_ns() - start) / 1000 / calls / operations
