"""Update jobs: what a job with many targets takes to be made and cancelled, and what it costs while it runs.

The service is the program that users run. Fifty gateways, one process, report all the time and answer what
jobs ask; the image comes on slowly behind them. How long reports wait for their acknowledgement is measured
by the gateways, and in a quiet stretch before, as the anchor: jobs must not hold reports up.

python -m bench.jobs [PHASE ...] [--quick]      runs phases alone, and prints one JSON object
"""

from __future__ import annotations

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.ingest import Bar
from bench.ingest_meter import wait_for
from bench.jobs_fleet import ALL, SOME, Operator, Size, fleet, gateways, server

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.ingest_ours import Service
    from bench.jobs_ends import Seen
    from bench.jobs_fleet import Gateways

    Figures = dict[str, float]
    Table = dict[str, Figures]
    Tables = dict[str, Table]

TARGETS, QUICK_TARGETS = 100_000, 10_000
DISPATCHES, QUICK_DISPATCHES = 10_000, 2_000
RUNNING: Final = 1_000
HEARTBEATS: Final = 20
"""Reports in a second while executions run: of a thousand devices each reports once a minute. More of them
would cost more than what is looked for."""
FEWER: Final = 10
"""How many times fewer targets the smaller of two jobs has."""

DATABASES: Final = ("SQLite", "PostgreSQL")
LARGE, DISPATCHED, RUN, MEMORY = "many targets", "dispatches", "running executions", "memory"

IMAGES: Final = {"60 kB": 60_000, "200 kB": 200_000}
"""Bytes of images: how far a transfer is, is asked the more often the shorter it seems to take."""

_QUIET: Final = 10.0
"""Seconds of the quiet stretch."""
_SECONDS, _QUICK_SECONDS = 60, 30
"""Over which running executions are watched: whole rounds of questions, of which the longest takes 30."""
_SETTLE: Final = 5.0
"""Seconds after a start, or after the last dispatch, in which things come to rest."""
_PATIENCE: Final = 300.0
_LOOKS: Final = 0.2
_LOOKED_THROUGH: Final = 30.0
"""Seconds for which a job is watched that looks through its queue in vain."""

_MADE: Final = [
    bar
    for name in DATABASES
    for deed in ("created", "cancelled")
    for bar in (
        Bar(LARGE, f"{deed}, on {name}", "seconds", most=5),
        Bar(LARGE, f"{deed}, on {name}", "ack_ms_max", most=200),
    )
]
BARS: Final = (
    *_MADE,
    *(Bar(DISPATCHED, f"on {name}", "per_minute", least=10_000) for name in DATABASES),
    *(Bar(RUN, f"{RUNNING:,} of {name}", "core_percent", most=5) for name in IMAGES),
    *(Bar(MEMORY, f"the larger by the smaller, on {name}", "MiB", most=1.1) for name in DATABASES),
)


def run(*, quick: bool, phases: Sequence[str] = ()) -> dict[str, Any]:
    """Run all phases, or some."""
    tables: Tables = {}
    for phase in phases or PHASES:
        part, rows = PHASES[phase](quick=quick)
        tables.setdefault(part, {}).update(rows)
    tables = {
        part: {name: {key: round(value, 2) for key, value in row.items()} for name, row in rows.items()}
        for part, rows in tables.items()
    }
    verdicts = {f"{bar.part}, {bar.row}: {bar.figure}": bar.judge(tables) for bar in BARS}
    return {**tables, "bars": {name: verdict for name, verdict in verdicts.items() if verdict}}


# --- Many targets ---


def _on_sqlite(measure: Callable[..., tuple[str, Table]], *, quick: bool) -> tuple[str, Table]:
    return measure("on SQLite", None, quick=quick)


def _on_postgresql(measure: Callable[..., tuple[str, Table]], *, quick: bool) -> tuple[str, Table]:
    with server() as address:
        return measure("on PostgreSQL", address, quick=quick)


def _many(where: str, on: str | None, *, quick: bool) -> tuple[str, Table]:
    """Make a job, cancel it; then one that begins, and finds nobody to begin with."""
    count = QUICK_TARGETS if quick else TARGETS
    with fleet(Size(count, some=100, connected=False), on) as ours, gateways(ours) as ends:
        operator, watch = Operator(ours), Watch(ours, ends, count)
        job = operator.make(SOME, autoApply=False)  # what is loaded once is not theirs
        operator.do("cancel", job)
        watch.rest()
        job = watch.begin(lambda: operator.make(ALL, autoApply=False))
        rows = {f"created, {where}": watch.end()}
        watch.rest()
        watch.begin(lambda: _cancel(operator, job))
        rows[f"cancelled, {where}"] = watch.end()
        job = operator.make(ALL, autoApply=False)
        watch.rest()
        watch.begin(lambda: _begin(operator, job, _QUIET if quick else _LOOKED_THROUGH))
        rows[f"looked through, {where}"] = watch.end()
    return LARGE, rows


def _cancel(operator: Operator, job: str) -> None:
    operator.do("cancel", job)
    wait_for(lambda: operator.show(job)["state"] == "CANCELED", within=_PATIENCE, looks=_LOOKS)


def _begin(operator: Operator, job: str, seconds: float) -> None:
    """Let a job begin, and look at one execution after another for a while: all have to wait."""
    operator.do("apply", job)
    time.sleep(seconds)


class Watch:
    """Watches what a deed costs, and how long reports wait meanwhile."""

    def __init__(self, ours: Service, ends: Gateways, count: int) -> None:
        self._ours = ours
        self._ends = ends
        self._count = count
        self._quiet: Seen | None = None
        self._figures: Figures = {}

    def rest(self) -> None:
        """See how long reports wait when nothing else is done."""
        time.sleep(_SETTLE)
        _, self._quiet = _spent(self._ours, self._ends, _QUIET)

    def begin(self, deed: Callable[[], Any]) -> Any:
        """Do it."""
        self._ends.begin()
        began, cpu = time.monotonic(), self._ours.process.cpu
        server_cpu = self._ours.server.cpu if self._ours.server else 0.0
        done = deed()
        cpu = self._ours.process.cpu - cpu
        self._figures = {"seconds": time.monotonic() - began, "cpu_s": cpu, "cpu_us": cpu / self._count * 1e6}
        if self._ours.server:
            self._figures["server_cpu_us"] = (self._ours.server.cpu - server_cpu) / self._count * 1e6
        return done

    def end(self) -> Figures:
        """What came of it."""
        seen = self._ends.look()
        anchor = {} if self._quiet is None else {"quiet_ms_max": self._quiet.ms_max}
        return {
            **self._figures,
            "targets": self._count,
            "ack_ms_p99": seen.ms_p99,
            "ack_ms_max": seen.ms_max,
            **anchor,
        }


# --- Dispatches, and executions that run ---


def _dispatched(where: str, on: str | None, *, quick: bool) -> tuple[str, Table]:
    """As many as can begin."""
    wanted = QUICK_DISPATCHES if quick else DISPATCHES
    with fleet(Size(wanted * 6 // 5), on) as ours, gateways(ours) as ends:
        operator, watch = Operator(ours), Watch(ours, ends, wanted)
        watch.rest()
        watch.begin(lambda: _start(operator, ends, wanted))
        seen, figures = ends.look(), watch.end()
    figures["per_minute"] = (seen.starts - 1) / seen.starts_seconds * 60
    return DISPATCHED, {where: {**figures, "polls": seen.polls, "ends_cpu_s": seen.cpu}}


def _start(operator: Operator, ends: Gateways, wanted: int) -> None:
    operator.make(ALL)
    wait_for(lambda: ends.look().starts >= wanted, within=_PATIENCE, looks=_LOOKS)


def _run_on(name: str, *, quick: bool) -> tuple[str, Table]:
    """What many executions cost that are under way, less what the service takes without them."""
    seconds = _QUICK_SECONDS if quick else _SECONDS
    size = Size(QUICK_TARGETS, image=IMAGES[name])
    with fleet(size) as ours, gateways(ours, rate=HEARTBEATS) as ends:
        time.sleep(_SETTLE)
        before, _ = _spent(ours, ends, seconds)
        _start_running(ours, ends, ALL)
        spent, seen = _spent(ours, ends, seconds)
    return RUN, {
        f"{RUNNING:,} of {name}": {
            "core_percent": (spent - before) / seconds * 100,
            "core_percent_before": before / seconds * 100,
            "polls_per_s": seen.polls / seconds,
            "cpu_us_of_poll": (spent - before) / max(seen.polls, 1) * 1e6,
            "ack_ms_max": seen.ms_max,
        }
    }


def _spent(ours: Service, ends: Gateways, seconds: float) -> tuple[float, Seen]:
    """Seconds of CPU time that a stretch takes, and what gateways see of it."""
    ends.begin()
    cpu = ours.process.cpu
    time.sleep(seconds)
    return ours.process.cpu - cpu, ends.look()


def _start_running(ours: Service, ends: Gateways, label: str) -> None:
    """Let a job begin, and wait until as many run as may."""
    operator = Operator(ours)
    ends.begin()
    job = operator.make(label, concurrency={"perJob": RUNNING, "perGateway": None})
    wait_for(lambda: ends.look().starts >= RUNNING, within=_PATIENCE)
    wait_for(lambda: operator.show(job)["counts"]["TRANSFERRING"] == RUNNING, within=_PATIENCE)
    time.sleep(_SETTLE)


def _memory(where: str, on: str | None, *, quick: bool) -> tuple[str, Table]:
    """As many executions run of a job with many targets as of one with fewer, of the same fleet."""
    count = QUICK_TARGETS * 2 if quick else TARGETS
    fewer, more = _held(SOME, count, on), _held(ALL, count, on)
    growth = {name: value / fewer[name] for name, value in more.items() if name != "MiB_of_job"}
    extra = (more["MiB_of_job"] - fewer["MiB_of_job"]) * 2**20 / (count - count // FEWER)
    return MEMORY, {
        f"{RUNNING:,} running of {count // FEWER:,}, {where}": fewer,
        f"{RUNNING:,} running of {count:,}, {where}": more,
        f"the larger by the smaller, {where}": {**growth, "bytes_of_target": extra},
    }


def _held(label: str, count: int, on: str | None) -> Figures:
    """What the service holds while a job runs. Pages of files that it maps are not its own."""
    with fleet(Size(count, some=count // FEWER), on) as ours, gateways(ours) as ends:
        time.sleep(_SETTLE)
        before = ours.process.memory
        _start_running(ours, ends, label)
        time.sleep(_QUIET)
        held, own = ours.process.memory, _own_memory(ours)
    return {"MiB": held, "MiB_own": own, "MiB_of_job": held - before}


def _own_memory(ours: Service) -> float:
    """MiB that are no pages of files."""
    lines = Path(f"/proc/{ours.process.number}/status").read_text("utf-8").splitlines()
    return int(dict(line.split(":", 1) for line in lines)["RssAnon"].split()[0]) / 1024


PHASES: Final[Mapping[str, Callable[..., tuple[str, Table]]]] = {
    "many": partial(_on_sqlite, _many),
    "many-postgresql": partial(_on_postgresql, _many),
    "dispatched": partial(_on_sqlite, _dispatched),
    "dispatched-postgresql": partial(_on_postgresql, _dispatched),
    **{f"running-{size // 1000}": partial(_run_on, name) for name, size in IMAGES.items()},
    "memory": partial(_on_sqlite, _memory),
    "memory-postgresql": partial(_on_postgresql, _memory),
}


def main() -> None:
    """Run phases by hand."""
    parser = argparse.ArgumentParser(prog="python -m bench.jobs")
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=f"one of {', '.join(PHASES)}; all without")
    parser.add_argument("--quick", action="store_true", help="a short run, for a first impression")
    chosen = parser.parse_args()
    if unknown := set(chosen.phases) - PHASES.keys():
        parser.error(f"no phase named {', '.join(sorted(unknown))}")
    print(json.dumps(run(quick=chosen.quick, phases=chosen.phases), indent=1))


if __name__ == "__main__":
    main()
