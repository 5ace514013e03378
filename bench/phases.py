"""Benchmarks in several phases, which can be run alone, and the limits that their metrics must meet."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

Metrics = dict[str, float]
Table = dict[str, Metrics]


class PhaseResult(NamedTuple):
    """Rows that a phase adds to a part of the results."""

    part: str
    rows: Table


class Threshold(NamedTuple):
    """Limit that a metric must meet."""

    part: str
    row: str
    metric: str
    maximum: float | None = None
    minimum: float | None = None

    def judge(self, tables: Mapping[str, Table]) -> dict[str, Any] | None:
        """Compare the measured value with the limit; None if it was not measured."""
        value = tables.get(self.part, {}).get(self.row, {}).get(self.metric)
        if value is None:
            return None
        met = (self.maximum is None or value <= self.maximum) and (
            self.minimum is None or value >= self.minimum
        )
        return {"bar": self.maximum if self.minimum is None else self.minimum, "got": value, "met": met}


def run_phases(
    phases: Mapping[str, Callable[..., PhaseResult]],
    thresholds: Iterable[Threshold],
    *,
    names: Sequence[str] = (),
    quick: bool,
) -> dict[str, Any]:
    """Run the named phases, or all. Return their rounded results, and how they compare with the limits.

    Standard error shows which phase is running, and how long each has taken.
    """
    tables: dict[str, Table] = {}
    for name in names or phases:
        print(f"  {name} …", end="", file=sys.stderr, flush=True)
        started = time.monotonic()
        part, rows = phases[name](quick=quick)
        print(f" {time.monotonic() - started:.0f} s", file=sys.stderr)
        tables.setdefault(part, {}).update({name: round_values(row) for name, row in rows.items()})
    verdicts = {f"{bar.part}, {bar.row}: {bar.metric}": bar.judge(tables) for bar in thresholds}
    return {**tables, "bars": {name: verdict for name, verdict in verdicts.items() if verdict}}


def run_from_command_line(module: str, phases: Iterable[str], run: Callable[..., dict[str, Any]]) -> None:
    """Run the phases named on the command line, and print one JSON object."""
    names = list(phases)
    parser = argparse.ArgumentParser(prog=f"python -m {module}")
    parser.add_argument(
        "phases", nargs="*", metavar="PHASE", help=f"phase to run: {', '.join(names)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="short run for a first impression")
    arguments = parser.parse_args()
    if unknown := set(arguments.phases) - set(names):
        parser.error(f"no phase named {', '.join(sorted(unknown))}")
    print(json.dumps(run(quick=arguments.quick, phases=arguments.phases), indent=1))


def medians(turns: Sequence[Metrics]) -> Metrics:
    """Return the median of each metric over several turns."""
    return {key: statistics.median(metrics[key] for metrics in turns) for key in turns[0]}


def round_values(row: Metrics) -> Metrics:
    """Round all metrics to two decimals."""
    return {key: round(value, 2) for key, value in row.items()}
