"""Update jobs: time to create and cancel a job with many targets, and its cost while it runs.

The service is `meshfleet serve`. Fifty gateways in one process report all the time and respond to the
requests of jobs; transfers are slow. The gateways measure the latency of PUBACKs during the job and, as the
anchor, in an idle period before: jobs must not delay reports.

python -m bench.jobs [PHASE ...] [--quick]      runs some phases, and prints one JSON object
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.jobs_fleet import ALL, SOME, FleetSize, JobClient, run_fleet, run_gateways
from bench.phases import PhaseResult, Threshold, run_from_command_line, run_phases
from bench.process_meter import wait_for
from bench.programs import run_postgresql

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from bench.ingest_service import Service
    from bench.jobs_fleet import GatewayProcess
    from bench.jobs_gateways import GatewayStats
    from bench.phases import Metrics

TARGETS, QUICK_TARGETS = 100_000, 10_000
DISPATCHES, QUICK_DISPATCHES = 10_000, 2_000
RUNNING: Final = 1_000
HEARTBEATS: Final = 20
"""Reports per second while executions run: a thousand devices report about once a minute each. More reports
would cost more than the executions."""
FEWER: Final = 10
"""Ratio of the targets of the larger to the smaller of two jobs."""

DATABASES: Final = ("SQLite", "PostgreSQL")
LARGE, DISPATCHED, RUN, MEMORY = "many targets", "dispatches", "running executions", "memory"

IMAGES: Final = {"60 kB": 60_000, "200 kB": 200_000}
"""Bytes of images: the progress of shorter transfers is polled more often."""

_IDLE_SECONDS: Final = 10.0
"""Seconds of the idle period."""
_SECONDS, _QUICK_SECONDS = 60, 30
"""Seconds of measuring running executions: whole rounds of polls, the longest of which takes 30."""
_SETTLE_SECONDS: Final = 5.0
"""Seconds to settle after the start or after the last dispatch."""
_TIMEOUT: Final = 300.0
_POLL_SECONDS: Final = 0.2
_SEARCH_SECONDS: Final = 30.0
"""Seconds of measuring a job that searches its queue without finding a connected device."""

_LARGE_JOB_THRESHOLDS: Final = [
    bar
    for name in DATABASES
    for action in ("created", "cancelled")
    for bar in (
        Threshold(LARGE, f"{action}, on {name}", "seconds", maximum=5),
        Threshold(LARGE, f"{action}, on {name}", "ack_ms_max", maximum=200),
    )
]
THRESHOLDS: Final = (
    *_LARGE_JOB_THRESHOLDS,
    *(Threshold(DISPATCHED, f"on {name}", "per_minute", minimum=10_000) for name in DATABASES),
    *(Threshold(RUN, f"{RUNNING:,} of {name}", "core_percent", maximum=5) for name in IMAGES),
    *(Threshold(MEMORY, f"the larger by the smaller, on {name}", "MiB", maximum=1.1) for name in DATABASES),
)


def run(*, quick: bool, phases: Sequence[str] = ()) -> dict[str, Any]:
    """Run all phases, or the named ones."""
    return run_phases(PHASES, THRESHOLDS, names=phases, quick=quick)


# --- Many targets ---


def _on_sqlite(measure: Callable[..., PhaseResult], *, quick: bool) -> PhaseResult:
    return measure("on SQLite", None, quick=quick)


def _on_postgresql(measure: Callable[..., PhaseResult], *, quick: bool) -> PhaseResult:
    with run_postgresql() as address:
        return measure("on PostgreSQL", address, quick=quick)


def _measure_large_jobs(suffix: str, on: str | None, *, quick: bool) -> PhaseResult:
    """Measure creating a job, canceling it, and a started job without connected devices."""
    count = QUICK_TARGETS if quick else TARGETS
    with run_fleet(FleetSize(count, some=100, connected=False), on) as ours, run_gateways(ours) as gateways:
        operator, meter = JobClient(ours), CostMeter(ours, gateways, count)
        job = operator.create_job(SOME, autoApply=False)  # warm up: one-time imports are not measured
        operator.send_command("cancel", job)
        meter.measure_idle()
        job = meter.measure(lambda: operator.create_job(ALL, autoApply=False))
        rows = {f"created, {suffix}": meter.metrics()}
        meter.measure_idle()
        meter.measure(lambda: _cancel(operator, job))
        rows[f"cancelled, {suffix}"] = meter.metrics()
        job = operator.create_job(ALL, autoApply=False)
        meter.measure_idle()
        meter.measure(lambda: _start_and_wait(operator, job, _IDLE_SECONDS if quick else _SEARCH_SECONDS))
        rows[f"looked through, {suffix}"] = meter.metrics()
    return PhaseResult(LARGE, rows)


def _cancel(operator: JobClient, job: str) -> None:
    operator.send_command("cancel", job)
    wait_for(lambda: operator.get_job(job)["state"] == "CANCELED", timeout=_TIMEOUT, interval=_POLL_SECONDS)


def _start_and_wait(operator: JobClient, job: str, seconds: float) -> None:
    """Start a job, and let it search its executions for a while: all have to wait."""
    operator.send_command("apply", job)
    time.sleep(seconds)


class CostMeter:
    """Meter of the cost of an action, and of the latency of PUBACKs meanwhile."""

    def __init__(self, ours: Service, gateways: GatewayProcess, count: int) -> None:
        self._ours = ours
        self._gateways = gateways
        self._count = count
        self._idle: GatewayStats | None = None
        self._metrics: Metrics = {}

    def measure_idle(self) -> None:
        """Measure the latency of PUBACKs while nothing else happens, as the anchor."""
        time.sleep(_SETTLE_SECONDS)
        _, self._idle = _measure_period(self._ours, self._gateways, _IDLE_SECONDS)

    def measure(self, action: Callable[[], Any]) -> Any:
        """Run an action and measure its cost. Return its result."""
        self._gateways.reset()
        started, cpu = time.monotonic(), self._ours.process.cpu
        server_cpu = self._ours.server.cpu if self._ours.server else 0.0
        result = action()
        cpu = self._ours.process.cpu - cpu
        self._metrics = {
            "seconds": time.monotonic() - started,
            "cpu_s": cpu,
            "cpu_us": cpu / self._count * 1e6,
        }
        if self._ours.server:
            self._metrics["server_cpu_us"] = (self._ours.server.cpu - server_cpu) / self._count * 1e6
        return result

    def metrics(self) -> Metrics:
        """Return the metrics of the last action."""
        stats = self._gateways.read_stats()
        anchor = {} if self._idle is None else {"quiet_ms_max": self._idle.ms_max}
        return {
            **self._metrics,
            "targets": self._count,
            "ack_ms_p99": stats.ms_p99,
            "ack_ms_max": stats.ms_max,
            **anchor,
        }


# --- Dispatches, and executions that run ---


def _measure_dispatches(suffix: str, on: str | None, *, quick: bool) -> PhaseResult:
    """Measure the rate of started updates."""
    count = QUICK_DISPATCHES if quick else DISPATCHES
    with run_fleet(FleetSize(count * 6 // 5), on) as ours, run_gateways(ours) as gateways:
        operator, meter = JobClient(ours), CostMeter(ours, gateways, count)
        meter.measure_idle()
        meter.measure(lambda: _start(operator, gateways, count))
        stats, metrics = gateways.read_stats(), meter.metrics()
    metrics["per_minute"] = (stats.starts - 1) / stats.starts_seconds * 60
    return PhaseResult(DISPATCHED, {suffix: {**metrics, "polls": stats.polls, "ends_cpu_s": stats.cpu}})


def _start(operator: JobClient, gateways: GatewayProcess, count: int) -> None:
    operator.create_job(ALL)
    wait_for(lambda: gateways.read_stats().starts >= count, timeout=_TIMEOUT, interval=_POLL_SECONDS)


def _measure_running(name: str, *, quick: bool) -> PhaseResult:
    """Measure the CPU time of running executions, compared with that of the service without them."""
    seconds = _QUICK_SECONDS if quick else _SECONDS
    size = FleetSize(QUICK_TARGETS, image=IMAGES[name])
    with run_fleet(size) as ours, run_gateways(ours, rate=HEARTBEATS) as gateways:
        time.sleep(_SETTLE_SECONDS)
        before, _ = _measure_period(ours, gateways, seconds)
        _start_running(ours, gateways, ALL)
        spent, stats = _measure_period(ours, gateways, seconds)
    metrics = {
        "core_percent": (spent - before) / seconds * 100,
        "core_percent_before": before / seconds * 100,
        "polls_per_s": stats.polls / seconds,
        "cpu_us_of_poll": (spent - before) / max(stats.polls, 1) * 1e6,
        "ack_ms_max": stats.ms_max,
    }
    return PhaseResult(RUN, {f"{RUNNING:,} of {name}": metrics})


def _measure_period(ours: Service, gateways: GatewayProcess, seconds: float) -> tuple[float, GatewayStats]:
    """Return the CPU seconds of the service during a period, and the statistics of the gateways."""
    gateways.reset()
    cpu = ours.process.cpu
    time.sleep(seconds)
    return ours.process.cpu - cpu, gateways.read_stats()


def _start_running(ours: Service, gateways: GatewayProcess, label: str) -> None:
    """Start a job, and wait until the maximum number of executions is running."""
    operator = JobClient(ours)
    gateways.reset()
    job = operator.create_job(label, concurrency={"perJob": RUNNING, "perGateway": None})
    wait_for(lambda: gateways.read_stats().starts >= RUNNING, timeout=_TIMEOUT)
    wait_for(lambda: operator.get_job(job)["counts"]["TRANSFERRING"] == RUNNING, timeout=_TIMEOUT)
    time.sleep(_SETTLE_SECONDS)


def _compare_memory(suffix: str, on: str | None, *, quick: bool) -> PhaseResult:
    """Compare the memory of two jobs with the same number of running executions and different targets."""
    count = QUICK_TARGETS * 2 if quick else TARGETS
    fewer, more = _measure_memory(SOME, count, on), _measure_memory(ALL, count, on)
    growth = {name: value / fewer[name] for name, value in more.items() if name != "MiB_of_job"}
    extra = (more["MiB_of_job"] - fewer["MiB_of_job"]) * 2**20 / (count - count // FEWER)
    rows = {
        f"{RUNNING:,} running of {count // FEWER:,}, {suffix}": fewer,
        f"{RUNNING:,} running of {count:,}, {suffix}": more,
        f"the larger by the smaller, {suffix}": {**growth, "bytes_of_target": extra},
    }
    return PhaseResult(MEMORY, rows)


def _measure_memory(label: str, count: int, on: str | None) -> Metrics:
    """Measure the memory of the service while a job runs, with and without mapped files."""
    with run_fleet(FleetSize(count, some=count // FEWER), on) as ours, run_gateways(ours) as gateways:
        time.sleep(_SETTLE_SECONDS)
        before = ours.process.memory
        _start_running(ours, gateways, label)
        time.sleep(_IDLE_SECONDS)
        memory, own_memory = ours.process.memory, _own_memory(ours)
    return {"MiB": memory, "MiB_own": own_memory, "MiB_of_job": memory - before}


def _own_memory(ours: Service) -> float:
    """Return the anonymous memory in MiB, without pages of files."""
    lines = Path(f"/proc/{ours.process.pid}/status").read_text("utf-8").splitlines()
    return int(dict(line.split(":", 1) for line in lines)["RssAnon"].split()[0]) / 1024


PHASES: Final[Mapping[str, Callable[..., PhaseResult]]] = {
    "many": partial(_on_sqlite, _measure_large_jobs),
    "many-postgresql": partial(_on_postgresql, _measure_large_jobs),
    "dispatched": partial(_on_sqlite, _measure_dispatches),
    "dispatched-postgresql": partial(_on_postgresql, _measure_dispatches),
    **{f"running-{size // 1000}": partial(_measure_running, name) for name, size in IMAGES.items()},
    "memory": partial(_on_sqlite, _compare_memory),
    "memory-postgresql": partial(_on_postgresql, _compare_memory),
}


if __name__ == "__main__":
    run_from_command_line("bench.jobs", PHASES, run)
