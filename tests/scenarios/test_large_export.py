"""Export of a million samples: complete, equal to REST, and in little memory."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.cli.sample_files import import_pyarrow
from meshfleet.db import open_database
from meshfleet.db.samples import NO_SEQ, SampleKind, open_sample_store
from meshfleet.protocol.ids import mac_from_int
from meshfleet.protocol.times import format_millis, format_time
from meshfleet.service.devices import registry
from meshfleet.service.devices.model import DeviceObservation
from tests.cli.programs import MESHFLEET
from tests.databases import create_database
from tests.scenarios.service_process import ServiceProcess, loopback_options
from tests.scenarios.stored_samples import load_samples

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from meshfleet.db.samples import SampleRow

pytestmark = [pytest.mark.part("long"), pytest.mark.both_databases, pytest.mark.anyio]

DEVICES, DAYS, PER_DAY = 50, 5, 4_000
START = 1_700_006_400_000
"""2023-11-15T00:00:00Z"""
DAY_MS = 86_400_000
FIRST_DEVICE = 0xC0FFEE000000
MAX_MEBIBYTES = 200


def build_rows(device: int, day: int) -> list[SampleRow]:
    """Build the samples of a device on a day, with values that tell them apart."""
    step = DAY_MS // PER_DAY
    return [
        (
            START + day * DAY_MS + number * step,
            int(SampleKind.MEASUREMENT),
            0x8800,
            number % 256 if number % 2 else NO_SEQ,
            FIRST_DEVICE,
            (device - FIRST_DEVICE) + number / 8,
            None,
            None,
        )
        for number in range(PER_DAY)
    ]


async def fill(address: str, folder: Path) -> None:
    """Store a million samples."""
    devices = range(FIRST_DEVICE, FIRST_DEVICE + DEVICES)
    observations = [DeviceObservation(device=mac_from_int(each), at=START) for each in devices]
    with closing(open_database(address, folder)) as database:
        database.write_now(registry.record_observations, observations)
        with closing(open_sample_store(database, folder, {}, now=START)) as store:
            for day in range(DAYS):
                for device in devices:
                    rows = {device: build_rows(device, day)}
                    store.publish_committed(database.write_now(store.write, rows, START), rows)
                await store.maintain(START)


@pytest.fixture
def options(request: pytest.FixtureRequest, database_kind: str) -> list[str]:
    if database_kind == "sqlite":
        return []
    return ["--database", create_database(request.getfixturevalue("postgresql_server"), "export")]


def export(service: ServiceProcess, key: str, out: Path, file_format: str) -> float:
    """Run the command in a process of its own. Return the memory that it took, in MiB."""
    environment = {**os.environ, "MESHFLEET_URL": service.url, "MESHFLEET_TOKEN": key}
    period = ["--from", format_millis(START), "--to", format_millis(START + DAYS * DAY_MS)]
    command = [str(MESHFLEET), "export", "--format", file_format, "--out", str(out), *period]
    # Started by a small process: what a program takes includes the memory of the process that has started it.
    launcher = [sys.executable, "-c", _MEASURE, *command]
    result = subprocess.run(launcher, env=environment, check=True, stdout=subprocess.PIPE)
    return int(result.stdout) / 1024


_MEASURE = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


async def test_a_million_samples_are_exported_in_little_memory(options: list[str], tmp_path: Path) -> None:
    _, parquet = import_pyarrow()
    (tmp_path / "data").mkdir(mode=0o700)
    await fill(options[1] if options else "sqlite", tmp_path / "data")
    retention = ["--retention-measurement", "forever"]
    with ServiceProcess(tmp_path, *loopback_options("--mqtt"), *retention, *options) as service:
        key = service.call("POST", "/api/v1/api-keys", {"name": "export", "role": "admin"})["key"]
        before = service.memory
        peak = export(service, key, tmp_path / "out", "parquet")
        growth = service.memory - before
        print(f"command {peak:.0f} MiB, service +{growth:.0f} MiB")  # noqa: T201 # for the developer
        assert peak < MAX_MEBIBYTES
        assert growth < MAX_MEBIBYTES
        files = sorted((tmp_path / "out").glob("date=*/part-*.parquet"))
        assert len(files) == DAYS
        assert sum(parquet.ParquetFile(path).metadata.num_rows for path in files) == DEVICES * DAYS * PER_DAY
        total = sum(_sum_values(parquet.ParquetFile(path)) for path in files)
        rows = (
            row
            for day in range(DAYS)
            for device in range(DEVICES)
            for row in build_rows(FIRST_DEVICE + device, day)
        )
        assert total == pytest.approx(sum(float(row[5] or 0) for row in rows))
        device = mac_from_int(FIRST_DEVICE + DEVICES // 2)
        exported = [row for path in files for row in _read_device(parquet, path, device)]
        listed = load_samples(service, device)
        assert [(row["time"], row["seq"], row["value_double"]) for row in exported] == [
            (sample.time, sample.seq, float(sample.value)) for sample in listed
        ]


def _sum_values(file: Any) -> float:
    return float(sum(file.read(columns=["value_double"]).column(0).to_pylist()))


def _read_device(parquet: Any, path: Path, device: str) -> Iterator[dict[str, Any]]:
    table = parquet.read_table(path, filters=[("device", "=", device)], partitioning=None)
    for row in table.to_pylist():
        yield {**row, "time": format_time(row["time"])}
