"""Cost of a report from publish to committed row, in the service and in alternatives.

The load is that of `ingest_reports`. Gateways, service and PostgreSQL server run on one machine. Metrics are
per received report and include everything the service does; compared cases take turns.

python -m bench.ingest [PHASE ...] [--quick]      runs some phases, and prints one JSON object
"""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from bench.ingest_baselines import BASELINES
from bench.ingest_export import Exporter
from bench.ingest_load import Load
from bench.ingest_service import (
    SAMPLES_PER_REPORT,
    format_load_result,
    measure_load,
    run_load_generator,
    run_service,
    start_load,
)
from bench.ingest_verification import verify_samples
from bench.phases import PhaseResult, Threshold, medians, run_from_command_line, run_phases
from bench.programs import run_postgresql
from meshfleet.service import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from bench.ingest_service import Service
    from bench.phases import Metrics

PUSHING_GATEWAYS, DEVICES = 20, 50
STORED_SAMPLES: Final = 10_000_000
QUICK_STORED_SAMPLES: Final = 300_000

SQLITE, POSTGRESQL, FILLED, COMPARED = "on SQLite", "on PostgreSQL", "with many samples", "compared"
EXPORTED = "beside an export"


def _memory_thresholds(part: str, row: str) -> tuple[Threshold, Threshold]:
    """Return the limits of memory: its amount in MiB, and its growth."""
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
    Threshold(EXPORTED, "5000/s on SQLite, exporting", "ms_p99", maximum=2_000),
    Threshold(EXPORTED, "5000/s on PostgreSQL, exporting", "ms_p99", maximum=2_000),
    Threshold(POSTGRESQL, "pushed", "cpu_us_settled", maximum=15),
    Threshold(POSTGRESQL, "pushed", "per_s", minimum=15_000),
    *_memory_thresholds(POSTGRESQL, "pushed"),
)


def run(*, quick: bool, phases: Sequence[str] = ()) -> dict[str, Any]:
    """Run all phases, or the named ones."""
    with _temporary_files_on_disk():
        return run_phases(PHASES, THRESHOLDS, names=phases, quick=quick)


def _measure_pushed(*, quick: bool) -> PhaseResult:
    with run_service(PUSHING_GATEWAYS) as ours:
        return PhaseResult(
            SQLITE, {"pushed": measure_load(ours, _push(seconds=5 if quick else 60), quick=quick)}
        )


def _measure_paced(gateways: int, devices: int, rate: int, *, quick: bool) -> PhaseResult:
    with run_service(gateways) as ours:
        load = Load("pace", gateways, devices, rate, 5 if quick else 60)
        return PhaseResult(SQLITE, {f"{rate}/s from {gateways}": measure_load(ours, load, quick=quick)})


def _measure_acked(*, quick: bool) -> PhaseResult:
    """Measure a full load with every measurement and event acknowledged as a sample."""
    with run_service(PUSHING_GATEWAYS) as ours:
        load = _push(seconds=5 if quick else 60)._replace(is_acked=True)
        return PhaseResult(SQLITE, {"acked": measure_load(ours, load, quick=quick)})


def _measure_paced_and_acked(*, quick: bool) -> PhaseResult:
    """Measure a fixed rate with acks; a short run has fewer gateways, whose versions must be read first."""
    gateways, devices, rate = (200, 10, 20_000) if quick else (2_000, 10, 20_000)
    with run_service(gateways) as ours:
        load = Load("pace", gateways, devices, rate, 5 if quick else 60, is_acked=True)
        return PhaseResult(
            SQLITE, {f"{rate}/s from {gateways}, acked": measure_load(ours, load, quick=quick)}
        )


def _measure_filled(*, quick: bool) -> PhaseResult:
    """Measure one filled store repeatedly, in turns with a new empty one."""
    count = int((QUICK_STORED_SAMPLES if quick else STORED_SAMPLES) / SAMPLES_PER_REPORT)
    load, turns = _push(seconds=3 if quick else 10), 1 if quick else 3
    rows: dict[str, list[Metrics]] = {"empty": [], "full": []}
    with run_service(PUSHING_GATEWAYS) as full:
        filling = measure_load(full, _push(count=count), quick=quick)
        for _ in range(turns):
            with run_service(PUSHING_GATEWAYS) as empty:
                rows["empty"].append(measure_load(empty, load, quick=quick))
            rows["full"].append(measure_load(full, load, quick=quick))
    table = {name: medians(measured) for name, measured in rows.items()}
    table["full"]["per_s of empty"] = table["full"]["per_s"] / table["empty"]["per_s"]
    return PhaseResult(FILLED, {"filling": filling, **table})


def _measure_exported(*, quick: bool) -> PhaseResult:
    """Measure a fixed rate without and with a client that exports the samples stored before."""
    count = int((QUICK_STORED_SAMPLES if quick else STORED_SAMPLES // 10) / SAMPLES_PER_REPORT)
    load = Load("pace", PUSHING_GATEWAYS, DEVICES, 5_000, 10 if quick else 60)
    rows: dict[str, Metrics] = {}
    with run_postgresql() as server:
        for database, address in (("SQLite", None), ("PostgreSQL", server)):
            with run_service(PUSHING_GATEWAYS, address) as ours:
                measure_load(ours, _push(count=count), quick=quick)
                exporter = Exporter(ours.url, until=clock.now())
                rows[f"5000/s on {database}"] = measure_load(ours, load, quick=quick)
                rows[f"5000/s on {database}, exporting"] = _measure_beside(exporter, ours, load)
    return PhaseResult(EXPORTED, rows)


def _measure_beside(exporter: Exporter, ours: Service, load: Load) -> Metrics:
    """Measure a load while an export is repeated, and verify the stored samples."""
    since = clock.now()
    with run_load_generator(ours.port, load) as gateways, exporter.run():
        sent = start_load(gateways)
    checked = verify_samples(ours.url, load, sent, since=since)
    return {**format_load_result(sent), "exported": exporter.line_count, "checked": checked}


def _measure_on_postgresql(*, quick: bool) -> PhaseResult:
    with run_postgresql() as server, run_service(PUSHING_GATEWAYS, server) as ours:
        return PhaseResult(
            POSTGRESQL, {"pushed": measure_load(ours, _push(seconds=5 if quick else 60), quick=quick)}
        )


def _measure_compared(*, quick: bool) -> PhaseResult:
    load = _push(count=40_000 if quick else 300_000)
    cases: dict[str, Callable[[str, Load], Metrics]] = {
        "ours": partial(_measure_ours, quick=quick),
        **BASELINES,
    }
    turns: dict[str, list[Metrics]] = {name: [] for name in cases}
    with run_postgresql() as server:
        for _ in range(1 if quick else 3):
            for name, case in cases.items():
                turns[name].append(case(server, load))
    table = {name: _add_total(medians(measured)) for name, measured in turns.items()}
    table["ours"] |= {
        f"{metric} of {name}": table["ours"][metric] / table[name][metric]
        for name in BASELINES
        for metric in ("cpu_us", "total_cpu_us", "per_s")
    }
    return PhaseResult(COMPARED, table)


def _measure_ours(server: str, load: Load, *, quick: bool) -> Metrics:
    with run_service(load.gateways, server) as ours:
        metrics = measure_load(ours, load, quick=quick)
    return {
        "cpu_us": metrics["cpu_us_settled"],
        "server_cpu_us": metrics["server_cpu_us"],
        "per_s": metrics["per_s"],
    }


PHASES: Final[Mapping[str, Callable[..., PhaseResult]]] = {
    "pushed": _measure_pushed,
    "paced-200": partial(_measure_paced, 200, 50, 25_000),
    "paced-2000": partial(_measure_paced, 2_000, 10, 20_000),
    "acked": _measure_acked,
    "acked-2000": _measure_paced_and_acked,
    "filled": _measure_filled,
    "exported": _measure_exported,
    "postgresql": _measure_on_postgresql,
    "compared": _measure_compared,
}


def _push(*, count: int = 0, seconds: int = 0) -> Load:
    return Load("push", PUSHING_GATEWAYS, DEVICES, count, seconds)


@contextmanager
def _temporary_files_on_disk() -> Iterator[None]:
    """Put temporary files on the disk: the default directory may be in memory."""
    before, tempfile.tempdir = tempfile.tempdir, "/var/tmp"  # noqa: S108 # directories in it get unique names
    try:
        yield
    finally:
        tempfile.tempdir = before


def _add_total(row: Metrics) -> Metrics:
    return {**row, "total_cpu_us": row["cpu_us"] + row["server_cpu_us"]}


if __name__ == "__main__":
    run_from_command_line("bench.ingest", PHASES, run)
