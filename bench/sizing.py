"""Disk, memory and CPU that a fleet needs, for the table of docs/sizing.md, which this writes.

Bytes per report are measured with a hundred devices that report once a minute for a week of simulated time.
Memory and CPU are those of the service while fleets of different sizes report at that rate in real time.
"""

from __future__ import annotations

import asyncio
import os
import platform
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tests.simulated_samples import REPORTS_PER_DAY, SimulatedSamples

from bench.ingest_load import Load
from bench.ingest_service import create_database, run_load_generator, run_service, start_load
from bench.process_meter import MemoryMonitor
from bench.programs import run_postgresql
from meshfleet.db import open_database
from meshfleet.rest.operations import StoragePart
from meshfleet.service.storage.sizes import measure_files, measure_tables

if TYPE_CHECKING:
    from collections.abc import Mapping

    from meshfleet.service.storage.sizes import Measurement

PAGE: Final = Path(__file__).parent.parent / "docs" / "sizing.md"
BEGIN: Final = "<!-- begin: make bench BENCH=sizing -->\n"
END: Final = "<!-- end: make bench BENCH=sizing -->\n"

FLEETS: Final = (10, 100, 1_000, 10_000)
DEVICES_PER_GATEWAY: Final = 50
KEPT_DAYS: Final = 90
SIMULATED_DEVICES: Final = 100
NAMES: Final = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}


_SECTION: Final = """
## Measured

A stored report takes {sizes}. Each device sends one report a minute,
and reports are kept for 90 days:

| devices | disk, SQLite | disk, PostgreSQL | memory, SQLite | memory, PostgreSQL | CPU, SQLite | CPU, PostgreSQL |
|---|---|---|---|---|---|---|
{rows}

- Disk is that of samples. Add 50 MB for the database of a small fleet, firmware images, and room for a backup.
- Memory and CPU are those of the service alone, without the server of PostgreSQL. CPU is a share of one core.
- Memory is that of the first half minute. SQLite also keeps the newest samples in memory: up to 128 MiB more.
- A gateway has 50 devices. Ten devices were measured with one report a second.
- Devices that report once in 20 minutes need a twentieth of the disk.
- Measured on {day}: {machine}, {python}.

"""  # noqa: E501 # rows of a table


class FleetLoad(NamedTuple):
    """Memory and CPU of the service while a fleet reports."""

    mib: float
    cpu_percent: float
    """Share of one core."""


def run(*, quick: bool) -> dict[str, Any]:
    """Measure both databases. Write the page, unless the measurement is a quick one."""
    with run_postgresql() as server:
        servers = {"sqlite": None, "postgresql": server}
        bytes_per_report = {
            name: asyncio.run(_measure_bytes(each, days=1 if quick else 7)) for name, each in servers.items()
        }
        loads = {
            name: {fleet: _measure_load(each, fleet, seconds=5 if quick else 30) for fleet in FLEETS}
            for name, each in servers.items()
        }
    if not quick:
        _write_page(bytes_per_report, loads)
    return {
        "bytes per report": {name: {"bytes": round(each, 1)} for name, each in bytes_per_report.items()},
        **{
            name: {str(fleet): load._asdict() for fleet, load in rows.items()} for name, rows in loads.items()
        },
    }


async def _measure_bytes(server: str | None, *, days: int) -> float:
    """Return the bytes on disk of one stored report."""
    url = "sqlite" if server is None else create_database(server)
    with (
        TemporaryDirectory(prefix="meshfleet-bench-") as folder,
        closing(open_database(url, Path(folder))) as database,
        closing(SimulatedSamples(database, Path(folder), SIMULATED_DEVICES)) as samples,
    ):

        def measure() -> Measurement:
            return measure_files(Path(folder)) if server is None else database.read_now(measure_tables)

        before = measure().sizes[StoragePart.SAMPLES]
        for _ in range(days):
            await samples.write_day()
        size = measure().sizes[StoragePart.SAMPLES] - before
    return size / (SIMULATED_DEVICES * REPORTS_PER_DAY * days)


def _measure_load(server: str | None, fleet: int, *, seconds: int) -> FleetLoad:
    """Measure the service while each device of a fleet reports once a minute, or all once a second."""
    gateways = max(1, fleet // DEVICES_PER_GATEWAY)
    load = Load("pace", gateways, min(fleet, DEVICES_PER_GATEWAY), max(1, round(fleet / 60)), seconds)
    with run_service(gateways, server) as service, run_load_generator(service.port, load) as program:
        cpu = service.process.cpu
        with MemoryMonitor(service.process) as memory:
            sent = start_load(program)
        used = service.process.cpu - cpu
    return FleetLoad(round(memory.metrics()["MiB"]), round(100 * used / sent.seconds, 1))


def _write_page(bytes_per_report: Mapping[str, float], loads: Mapping[str, Mapping[int, FleetLoad]]) -> None:
    """Replace the measured part of the page."""
    head, _, rest = PAGE.read_text("utf-8").partition(BEGIN)
    _, _, tail = rest.partition(END)
    PAGE.write_text(head + BEGIN + _format_section(bytes_per_report, loads) + END + tail, "utf-8")


def _format_section(
    bytes_per_report: Mapping[str, float], loads: Mapping[str, Mapping[int, FleetLoad]]
) -> str:
    rows = []
    for fleet in FLEETS:
        disks = [
            _format_gigabytes(bytes_per_report[name] * fleet * REPORTS_PER_DAY * KEPT_DAYS) for name in NAMES
        ]
        memory = [f"{loads[name][fleet].mib:.0f} MiB" for name in NAMES]
        cpu = [f"{loads[name][fleet].cpu_percent} %" for name in NAMES]
        rows.append(f"| {' | '.join([f'{fleet:,}', *disks, *memory, *cpu])} |")
    gibibytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return _SECTION.format(
        sizes=" and ".join(
            f"{bytes_per_report[name]:.0f} bytes with {title}" for name, title in NAMES.items()
        ),
        rows="\n".join(rows),
        day=datetime.now(UTC).date(),
        machine=f"{_read_processor()}, {len(os.sched_getaffinity(0))} cores, {gibibytes:.0f} GiB",
        python=f"Python {platform.python_version()} on {platform.system()}",
    )


def _format_gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"  # noqa: PLR2004 # a gigabyte


def _read_processor() -> str:
    """Return the name of the processor."""
    lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
