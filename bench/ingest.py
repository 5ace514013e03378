"""Ingest, from a publish to a committed row: what a report costs the service, and what others take.

The load is that of `ingest_reports`. All of it runs on one machine: gateways, service and PostgreSQL server.
Figures are per received report, with everything that the service does; what is compared takes turns.

python -m bench.ingest [PHASE ...] [--quick]      runs phases alone, and prints one JSON object
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.servers import postgresql

from bench.ingest_baselines import BASELINES
from bench.ingest_load import Load
from bench.ingest_service import SAMPLES_PER_REPORT, measure_load, run_service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    Figures = dict[str, float]
    Table = dict[str, Figures]
    Tables = dict[str, Table]

PUSHING_GATEWAYS, DEVICES = 20, 50
STORED_SAMPLES: Final = 10_000_000
QUICK_STORED_SAMPLES: Final = 300_000

SQLITE, POSTGRESQL, FILLED, COMPARED = "on SQLite", "on PostgreSQL", "with many samples", "compared"


class Threshold(NamedTuple):
    """What a figure must be."""

    part: str
    row: str
    metric: str
    maximum: float | None = None
    minimum: float | None = None

    def judge(self, tables: Tables) -> dict[str, Any] | None:
        """How it came out; None when it was not measured."""
        got = tables.get(self.part, {}).get(self.row, {}).get(self.metric)
        if got is None:
            return None
        met = (self.maximum is None or got <= self.maximum) and (self.minimum is None or got >= self.minimum)
        return {"bar": self.maximum if self.minimum is None else self.minimum, "got": got, "met": met}


def _memory_thresholds(part: str, row: str) -> tuple[Threshold, Threshold]:
    """Memory, the same everywhere: its amount in MiB, and that it is flat."""
    return Threshold(part, row, "MiB", maximum=300), Threshold(part, row, "MiB_growth", maximum=1.1)


THRESHOLDS: Final = (
    Threshold(SQLITE, "pushed", "cpu_us_settled", maximum=14),
    Threshold(SQLITE, "pushed", "per_s", minimum=50_000),
    Threshold(SQLITE, "pushed", "bytes_per_sample", maximum=400),
    *_memory_thresholds(SQLITE, "pushed"),
    Threshold(SQLITE, "acked", "cpu_us_settled", maximum=25),
    *_memory_thresholds(SQLITE, "acked"),
    Threshold(SQLITE, "25000/s from 200", "cpu_us_settled", maximum=20),
    Threshold(SQLITE, "25000/s from 200", "per_s", minimum=24_750),
    *_memory_thresholds(SQLITE, "25000/s from 200"),
    Threshold(SQLITE, "20000/s from 2000", "cpu_us_settled", maximum=30),
    Threshold(SQLITE, "20000/s from 2000", "per_s", minimum=19_800),
    *_memory_thresholds(SQLITE, "20000/s from 2000"),
    Threshold(FILLED, "full", "per_s of empty", minimum=0.8),
    Threshold(FILLED, "filling", "bytes_per_sample", maximum=400),
    *_memory_thresholds(FILLED, "filling"),
    Threshold(POSTGRESQL, "pushed", "cpu_us_settled", maximum=15),
    Threshold(POSTGRESQL, "pushed", "per_s", minimum=15_000),
    *_memory_thresholds(POSTGRESQL, "pushed"),
)


def run(*, quick: bool, phases: Sequence[str] = ()) -> dict[str, Any]:
    """Run all phases, or some."""
    tables: Tables = {}
    with _on_the_disk():
        for phase in phases or PHASES:
            part, rows = PHASES[phase](quick=quick)
            tables.setdefault(part, {}).update(rows)
    tables = {part: {name: _rounded(row) for name, row in rows.items()} for part, rows in tables.items()}
    verdicts = {f"{bar.part}, {bar.row}: {bar.metric}": bar.judge(tables) for bar in THRESHOLDS}
    return {**tables, "bars": {name: verdict for name, verdict in verdicts.items() if verdict}}


def _pushed(*, quick: bool) -> tuple[str, Table]:
    with run_service(PUSHING_GATEWAYS) as ours:
        return SQLITE, {"pushed": measure_load(ours, _push(seconds=5 if quick else 60))}


def _paced(gateways: int, devices: int, rate: int, *, quick: bool) -> tuple[str, Table]:
    with run_service(gateways) as ours:
        load = Load("pace", gateways, devices, rate, 5 if quick else 60)
        return SQLITE, {f"{rate}/s from {gateways}": measure_load(ours, load)}


def _acked(*, quick: bool) -> tuple[str, Table]:
    """The same, with every measurement and event acknowledged to its gateway as a sample."""
    with run_service(PUSHING_GATEWAYS) as ours:
        load = _push(seconds=5 if quick else 60)._replace(is_acked=True)
        return SQLITE, {"acked": measure_load(ours, load)}


def _paced_and_acked(*, quick: bool) -> tuple[str, Table]:
    """The service takes a while to ask all of them for their versions, so a short run has fewer."""
    gateways, devices, rate = (200, 10, 20_000) if quick else (2_000, 10, 20_000)
    with run_service(gateways) as ours:
        load = Load("pace", gateways, devices, rate, 5 if quick else 60, is_acked=True)
        return SQLITE, {f"{rate}/s from {gateways}, acked": measure_load(ours, load)}


def _filled(*, quick: bool) -> tuple[str, Table]:
    """The same store again and again, in turns with an empty one that is a fresh one every time."""
    count = int((QUICK_STORED_SAMPLES if quick else STORED_SAMPLES) / SAMPLES_PER_REPORT)
    load, turns = _push(seconds=3 if quick else 10), 1 if quick else 3
    rows: dict[str, list[Figures]] = {"empty": [], "full": []}
    with run_service(PUSHING_GATEWAYS) as full:
        filling = measure_load(full, _push(count=count))
        for _ in range(turns):
            with run_service(PUSHING_GATEWAYS) as empty:
                rows["empty"].append(measure_load(empty, load))
            rows["full"].append(measure_load(full, load))
    table = {name: _medians(some) for name, some in rows.items()}
    table["full"]["per_s of empty"] = table["full"]["per_s"] / table["empty"]["per_s"]
    return FILLED, {"filling": filling, **table}


def _on_postgresql(*, quick: bool) -> tuple[str, Table]:
    with _server() as server, run_service(PUSHING_GATEWAYS, server) as ours:
        return POSTGRESQL, {"pushed": measure_load(ours, _push(seconds=5 if quick else 60))}


def _compared(*, quick: bool) -> tuple[str, Table]:
    load = _push(count=40_000 if quick else 300_000)
    cases: dict[str, Callable[[str, Load], Figures]] = {"ours": _ours, **BASELINES}
    turns: dict[str, list[Figures]] = {name: [] for name in cases}
    with _server() as server:
        for _ in range(1 if quick else 3):
            for name, case in cases.items():
                turns[name].append(case(server, load))
    table = {name: _with_total(_medians(some)) for name, some in turns.items()}
    table["ours"] |= {
        f"{figure} of {name}": table["ours"][figure] / table[name][figure]
        for name in BASELINES
        for figure in ("cpu_us", "total_cpu_us", "per_s")
    }
    return COMPARED, table


def _ours(server: str, load: Load) -> Figures:
    with run_service(load.gateways, server) as ours:
        figures = measure_load(ours, load)
    return {
        "cpu_us": figures["cpu_us_settled"],
        "server_cpu_us": figures["server_cpu_us"],
        "per_s": figures["per_s"],
    }


PHASES: Final[Mapping[str, Callable[..., tuple[str, Table]]]] = {
    "pushed": _pushed,
    "paced-200": partial(_paced, 200, 50, 25_000),
    "paced-2000": partial(_paced, 2_000, 10, 20_000),
    "acked": _acked,
    "acked-2000": _paced_and_acked,
    "filled": _filled,
    "postgresql": _on_postgresql,
    "compared": _compared,
}


def main() -> None:
    """Run phases by hand."""
    parser = argparse.ArgumentParser(prog="python -m bench.ingest")
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=f"one of {', '.join(PHASES)}; all without")
    parser.add_argument("--quick", action="store_true", help="a short run, for a first impression")
    chosen = parser.parse_args()
    if unknown := set(chosen.phases) - PHASES.keys():
        parser.error(f"no phase named {', '.join(sorted(unknown))}")
    print(json.dumps(run(quick=chosen.quick, phases=chosen.phases), indent=1))


def _push(*, count: int = 0, seconds: int = 0) -> Load:
    return Load("push", PUSHING_GATEWAYS, DEVICES, count, seconds)


@contextmanager
def _server() -> Iterator[str]:
    """A PostgreSQL server that means it: tests run it without fsync."""
    with postgresql("fsync=on") as address:
        yield f"postgresql://postgres@{address.host}:{address.port}/postgres"


@contextmanager
def _on_the_disk() -> Iterator[None]:
    """The usual place for temporary files may be in memory; this one outlasts a start of the machine."""
    before, tempfile.tempdir = tempfile.tempdir, "/var/tmp"  # noqa: S108 # folders in it get names of their own
    try:
        yield
    finally:
        tempfile.tempdir = before


def _medians(turns: Sequence[Figures]) -> Figures:
    return {key: statistics.median(figures[key] for figures in turns) for key in turns[0]}


def _with_total(row: Figures) -> Figures:
    return {**row, "total_cpu_us": row["cpu_us"] + row["server_cpu_us"]}


def _rounded(row: Figures) -> Figures:
    return {key: round(value, 2) for key, value in row.items()}


if __name__ == "__main__":
    main()
