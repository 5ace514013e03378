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

from bench.ingest import Threshold
from bench.jobs_fleet import ALL, SOME, FleetSize, JobClient, run_fleet, run_gateways, run_postgresql
from bench.process_meter import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.ingest_service import Service
    from bench.jobs_fleet import GatewayProcess
    from bench.jobs_gateways import GatewayStats

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
        Threshold(LARGE, f"{deed}, on {name}", "seconds", maximum=5),
        Threshold(LARGE, f"{deed}, on {name}", "ack_ms_max", maximum=200),
    )
]
THRESHOLDS: Final = (
    *_MADE,
    *(Threshold(DISPATCHED, f"on {name}", "per_minute", minimum=10_000) for name in DATABASES),
    *(Threshold(RUN, f"{RUNNING:,} of {name}", "core_percent", maximum=5) for name in IMAGES),
    *(Threshold(MEMORY, f"the larger by the smaller, on {name}", "MiB", maximum=1.1) for name in DATABASES),
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
    verdicts = {f"{bar.part}, {bar.row}: {bar.metric}": bar.judge(tables) for bar in THRESHOLDS}
    return {**tables, "bars": {name: verdict for name, verdict in verdicts.items() if verdict}}


# --- Many targets ---


def _on_sqlite(measure: Callable[..., tuple[str, Table]], *, quick: bool) -> tuple[str, Table]:
    return measure("on SQLite", None, quick=quick)


def _on_postgresql(measure: Callable[..., tuple[str, Table]], *, quick: bool) -> tuple[str, Table]:
    with run_postgresql() as address:
        return measure("on PostgreSQL", address, quick=quick)


def _many(where: str, on: str | None, *, quick: bool) -> tuple[str, Table]:
    """Make a job, cancel it; then one that begins, and finds nobody to begin with."""
    count = QUICK_TARGETS if quick else TARGETS
    with run_fleet(FleetSize(count, some=100, connected=False), on) as ours, run_gateways(ours) as ends:
        operator, watch = JobClient(ours), CostMeter(ours, ends, count)
        job = operator.create_job(SOME, autoApply=False)  # what is loaded once is not theirs
        operator.send_command("cancel", job)
        watch.measure_idle()
        job = watch.measure(lambda: operator.create_job(ALL, autoApply=False))
        rows = {f"created, {where}": watch.metrics()}
        watch.measure_idle()
        watch.measure(lambda: _cancel(operator, job))
        rows[f"cancelled, {where}"] = watch.metrics()
        job = operator.create_job(ALL, autoApply=False)
        watch.measure_idle()
        watch.measure(lambda: _begin(operator, job, _QUIET if quick else _LOOKED_THROUGH))
        rows[f"looked through, {where}"] = watch.metrics()
    return LARGE, rows


def _cancel(operator: JobClient, job: str) -> None:
    operator.send_command("cancel", job)
    wait_for(lambda: operator.get_job(job)["state"] == "CANCELED", timeout=_PATIENCE, interval=_LOOKS)


def _begin(operator: JobClient, job: str, seconds: float) -> None:
    """Let a job begin, and look at one execution after another for a while: all have to wait."""
    operator.send_command("apply", job)
    time.sleep(seconds)


class CostMeter:
    """Watches what a deed costs, and how long reports wait meanwhile."""

    def __init__(self, ours: Service, ends: GatewayProcess, count: int) -> None:
        self._ours = ours
        self._ends = ends
        self._count = count
        self._quiet: GatewayStats | None = None
        self._figures: Figures = {}

    def measure_idle(self) -> None:
        """See how long reports wait when nothing else is done."""
        time.sleep(_SETTLE)
        _, self._quiet = _measure_stretch(self._ours, self._ends, _QUIET)

    def measure(self, action: Callable[[], Any]) -> Any:
        """Do it."""
        self._ends.reset()
        began, cpu = time.monotonic(), self._ours.process.cpu
        server_cpu = self._ours.server.cpu if self._ours.server else 0.0
        done = action()
        cpu = self._ours.process.cpu - cpu
        self._figures = {"seconds": time.monotonic() - began, "cpu_s": cpu, "cpu_us": cpu / self._count * 1e6}
        if self._ours.server:
            self._figures["server_cpu_us"] = (self._ours.server.cpu - server_cpu) / self._count * 1e6
        return done

    def metrics(self) -> Figures:
        """What came of it."""
        seen = self._ends.read_stats()
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
    with run_fleet(FleetSize(wanted * 6 // 5), on) as ours, run_gateways(ours) as ends:
        operator, watch = JobClient(ours), CostMeter(ours, ends, wanted)
        watch.measure_idle()
        watch.measure(lambda: _start(operator, ends, wanted))
        seen, figures = ends.read_stats(), watch.metrics()
    figures["per_minute"] = (seen.starts - 1) / seen.starts_seconds * 60
    return DISPATCHED, {where: {**figures, "polls": seen.polls, "ends_cpu_s": seen.cpu}}


def _start(operator: JobClient, ends: GatewayProcess, wanted: int) -> None:
    operator.create_job(ALL)
    wait_for(lambda: ends.read_stats().starts >= wanted, timeout=_PATIENCE, interval=_LOOKS)


def _run_on(name: str, *, quick: bool) -> tuple[str, Table]:
    """What many executions cost that are under way, less what the service takes without them."""
    seconds = _QUICK_SECONDS if quick else _SECONDS
    size = FleetSize(QUICK_TARGETS, image=IMAGES[name])
    with run_fleet(size) as ours, run_gateways(ours, rate=HEARTBEATS) as ends:
        time.sleep(_SETTLE)
        before, _ = _measure_stretch(ours, ends, seconds)
        _start_running(ours, ends, ALL)
        spent, seen = _measure_stretch(ours, ends, seconds)
    return RUN, {
        f"{RUNNING:,} of {name}": {
            "core_percent": (spent - before) / seconds * 100,
            "core_percent_before": before / seconds * 100,
            "polls_per_s": seen.polls / seconds,
            "cpu_us_of_poll": (spent - before) / max(seen.polls, 1) * 1e6,
            "ack_ms_max": seen.ms_max,
        }
    }


def _measure_stretch(ours: Service, ends: GatewayProcess, seconds: float) -> tuple[float, GatewayStats]:
    """Seconds of CPU time that a stretch takes, and what gateways see of it."""
    ends.reset()
    cpu = ours.process.cpu
    time.sleep(seconds)
    return ours.process.cpu - cpu, ends.read_stats()


def _start_running(ours: Service, ends: GatewayProcess, label: str) -> None:
    """Let a job begin, and wait until as many run as may."""
    operator = JobClient(ours)
    ends.reset()
    job = operator.create_job(label, concurrency={"perJob": RUNNING, "perGateway": None})
    wait_for(lambda: ends.read_stats().starts >= RUNNING, timeout=_PATIENCE)
    wait_for(lambda: operator.get_job(job)["counts"]["TRANSFERRING"] == RUNNING, timeout=_PATIENCE)
    time.sleep(_SETTLE)


def _memory(where: str, on: str | None, *, quick: bool) -> tuple[str, Table]:
    """As many executions run of a job with many targets as of one with fewer, of the same fleet."""
    count = QUICK_TARGETS * 2 if quick else TARGETS
    fewer, more = _measure_memory(SOME, count, on), _measure_memory(ALL, count, on)
    growth = {name: value / fewer[name] for name, value in more.items() if name != "MiB_of_job"}
    extra = (more["MiB_of_job"] - fewer["MiB_of_job"]) * 2**20 / (count - count // FEWER)
    return MEMORY, {
        f"{RUNNING:,} running of {count // FEWER:,}, {where}": fewer,
        f"{RUNNING:,} running of {count:,}, {where}": more,
        f"the larger by the smaller, {where}": {**growth, "bytes_of_target": extra},
    }


def _measure_memory(label: str, count: int, on: str | None) -> Figures:
    """What the service holds while a job runs. Pages of files that it maps are not its own."""
    with run_fleet(FleetSize(count, some=count // FEWER), on) as ours, run_gateways(ours) as ends:
        time.sleep(_SETTLE)
        before = ours.process.memory
        _start_running(ours, ends, label)
        time.sleep(_QUIET)
        held, own = ours.process.memory, _own_memory(ours)
    return {"MiB": held, "MiB_own": own, "MiB_of_job": held - before}


def _own_memory(ours: Service) -> float:
    """MiB that are no pages of files."""
    lines = Path(f"/proc/{ours.process.pid}/status").read_text("utf-8").splitlines()
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
