"""Size of the data: measured, stored for later days, and reported over REST and as metrics."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace
from sqlalchemy import insert, select

from meshfleet.db.samples import DAY_MS, SampleKind, open_sample_store
from meshfleet.db.tables import image_chunk, storage_size
from meshfleet.protocol.times import format_millis
from meshfleet.rest.operations import StoragePart
from meshfleet.service.metric_table import add_storage_metrics
from meshfleet.service.storage import store
from meshfleet.service.storage.monitor import StorageMonitor, assess_storage
from meshfleet.settings import Settings
from tests.eventually import eventually_async
from tests.service.http.running_service import RunningService, run_service
from tests.service.metric_values import read_added_metrics

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Connection

    from meshfleet.db import Database

NOW = 20_000 * DAY_MS + 1000
MEGABYTE = 1_000_000


def write_files(data: Path) -> None:
    for name, size in (("samples/00000001.samples", 30), ("samples/unknown/2.samples", 4), ("images/ab", 5)):
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(bytes(size))


def insert_image(connection: Connection) -> None:
    row = {"sha256": b"a", "place": 0, "content": bytes(MEGABYTE)}
    connection.execute(insert(image_chunk).values(row))


@pytest.mark.rule("rest-222")
def test_files_of_a_data_directory_are_measured(sqlite_database: Database, tmp_path: Path) -> None:
    write_files(tmp_path)
    status = sqlite_database.read_now(assess_storage, Settings(data=tmp_path), now=NOW)
    files = [tmp_path / "meshfleet.sqlite", tmp_path / "meshfleet.sqlite-wal"]
    assert status.measurement.sizes == {
        StoragePart.DATABASE: sum(path.stat().st_size for path in files if path.exists()),
        StoragePart.SAMPLES: 34,
        StoragePart.IMAGES: 5,
    }
    assert status.measurement.free


@pytest.mark.rule("rest-222")
def test_tables_of_postgresql_are_measured(postgresql_database: Database, tmp_path: Path) -> None:
    database, settings = postgresql_database, Settings(data=tmp_path)
    before = database.read_now(assess_storage, settings, now=NOW).measurement
    assert before.free is None
    assert before.sizes[StoragePart.DATABASE] > 0
    samples = open_sample_store(database, tmp_path, {}, now=NOW)
    row = (NOW - 3 * DAY_MS, SampleKind.MEASUREMENT, 0x8800, 1, 2, 4.5, None, None)
    database.write_now(samples.write, {7: [row]}, NOW)
    database.write_now(insert_image)
    after = database.read_now(assess_storage, settings, now=NOW).measurement
    assert after.sizes[StoragePart.SAMPLES] > before.sizes[StoragePart.SAMPLES]
    assert after.sizes[StoragePart.DATABASE] == before.sizes[StoragePart.DATABASE]
    assert after.sizes[StoragePart.IMAGES] > before.sizes[StoragePart.IMAGES]
    assert database.read_now(store.load_oldest_sample_day) == NOW - 1000 - 3 * DAY_MS
    samples.close()


@pytest.mark.both_databases
def test_the_last_sizes_of_each_day_are_kept_for_a_month(database: Database) -> None:
    for day in range(40):
        for size in (1, 100 + day):
            database.write_now(store.save_sizes, {StoragePart.IMAGES: size}, now=NOW + day * DAY_MS)
    kept = database.read_now(store.load_sizes)
    assert kept == {NOW - 1000 + day * DAY_MS: {StoragePart.IMAGES: 100 + day} for day in range(9, 40)}


@pytest.mark.anyio
async def test_a_service_stores_the_sizes_when_it_starts(sqlite_database: Database, tmp_path: Path) -> None:
    monitor = StorageMonitor(sqlite_database, Settings(data=tmp_path), lambda: NOW)
    assert read_added_metrics(lambda metrics: add_storage_metrics(metrics, monitor)) == {}
    task = asyncio.create_task(monitor.run())
    query = select(storage_size.c.part)
    await eventually_async(
        lambda: len(sqlite_database.read_now(lambda connection: connection.execute(query).all())) == 3
    )
    task.cancel()
    values = read_added_metrics(lambda metrics: add_storage_metrics(metrics, monitor))
    assert values.keys() == {
        *(("meshfleet_data_bytes", part) for part in StoragePart),
        ("meshfleet_disk_free_bytes",),
    }


@pytest.mark.anyio
async def test_a_measurement_that_fails_does_not_end_the_service(
    sqlite_database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    task = asyncio.create_task(
        StorageMonitor(sqlite_database, Settings(data=tmp_path / "missing"), lambda: NOW).run()
    )
    await eventually_async(lambda: "the size of the data could not be measured" in caplog.text)
    assert not task.done()
    task.cancel()


@pytest.mark.rule("rest-222")
def test_growth_and_forecast_are_reported(sqlite_database: Database) -> None:
    with run_service(sqlite_database) as service:
        first = service.admin.get("/api/v1/storage").json()
        today = service.clock() - service.clock() % DAY_MS
        assert [each["part"] for each in first["parts"]] == ["database", "samples", "images"]
        assert {each["growthPerDay"] for each in first["parts"]} == {None}
        assert (first["fullAt"], first["freeBytes"] > 0) == (None, True)
        earlier = dict.fromkeys(StoragePart, 0)
        sqlite_database.write_now(store.save_sizes, earlier, now=today - 4 * DAY_MS)
        found = service.admin.get("/api/v1/storage").json()
        assert found["measuredSince"] == format_millis(today - 3 * DAY_MS)
        _check_growth(found, service)
        metrics = service.admin.get("/metrics").text
        assert f'meshfleet_data_bytes{{part="samples"}} {float(found["parts"][1]["bytes"])}' in metrics


def _check_growth(found: dict[str, object], service: RunningService) -> None:
    parts: list[dict[str, int]] = found["parts"]  # type: ignore[assignment] # a JSON value
    days = (service.clock() % DAY_MS + 3 * DAY_MS) / DAY_MS
    for part in parts:
        assert part["growthPerDay"] == round(part["bytes"] / days)


def test_settings_decide_how_long_samples_grow(sqlite_database: Database, tmp_path: Path) -> None:
    """Sizes of the samples grow by 1 TB a day, so the disk is full within the retention, if there is any."""
    (tmp_path / "samples").mkdir()
    settings = Settings(data=tmp_path)
    sqlite_database.write_now(
        store.save_sizes, {StoragePart.SAMPLES: -(10**13), StoragePart.DATABASE: 10**12}, now=NOW - 2 * DAY_MS
    )
    now = NOW + DAY_MS
    status = sqlite_database.read_now(assess_storage, settings, now=now)
    assert status.forecast.full_at is not None
    kept_no_time = replace(settings.retention, **dict.fromkeys(settings.retention.__struct_fields__, 0))
    settings = replace(settings, retention=kept_no_time)
    assert sqlite_database.read_now(assess_storage, settings, now=now).forecast.full_at is None
