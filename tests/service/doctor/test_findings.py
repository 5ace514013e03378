"""Findings about the disk and the clock, which tests cannot break."""

from __future__ import annotations

from meshfleet.db.samples import DAY_MS
from meshfleet.rest.operations import StoragePart
from meshfleet.service.doctor.database import judge_disk
from meshfleet.service.doctor.finding import Finding, Level
from meshfleet.service.doctor.machine import check_clock
from meshfleet.service.storage.forecast import Forecast
from meshfleet.service.storage.monitor import StorageStatus
from meshfleet.service.storage.sizes import Measurement
from tests.row_tables import each_row

GB = 10**9


@each_row(
    ("free", "growth", "days", "level", "text"),
    [
        (12 * GB, None, None, Level.OK, "3.0 GB of data, 12.0 GB free; growth not known yet"),
        (12 * GB, 0, None, Level.OK, "3.0 GB of data, 12.0 GB free; 0 bytes a day"),
        (12 * GB, 10**8, 40.5, Level.OK, "3.0 GB of data, 12.0 GB free; 300 MB a day: full in 40 days"),
        (12 * GB, 10**8, 29.5, Level.WARN, "3.0 GB of data, 12.0 GB free; 300 MB a day: full in 29 days"),
        (12 * GB, 10**8, 2.5, Level.FAIL, "3.0 GB of data, 12.0 GB free; 300 MB a day: full in 2 days"),
        (10**8, 0, None, Level.FAIL, "disk-full: 3.0 GB of data, 100 MB free; 0 bytes a day"),
        (None, 10**8, None, Level.OK, "3.0 GB of data; 300 MB a day; the disk of the server is not known"),
    ],
)
def test_a_disk_that_is_full_soon_is_a_fault(
    free: int | None, growth: int | None, days: float | None, level: Level, text: str
) -> None:
    full_at = None if days is None else round(days * DAY_MS)
    status = StorageStatus(
        0,
        Measurement(dict.fromkeys(StoragePart, GB), free),
        Forecast(dict.fromkeys(StoragePart, growth), 0, full_at),
    )
    command = None if level is Level.OK else "du"
    assert judge_disk(status, "du", now=0) == Finding(level, "disk", text, command)


@each_row(
    ("state", "level", "text"),
    [
        (0, Level.OK, "synchronized"),
        (4, Level.OK, "synchronized"),
        (5, Level.WARN, "not synchronized; wrong times make certificates invalid and samples implausible"),
        (None, Level.OK, "not known whether it is synchronized"),
    ],
)
def test_a_clock_that_is_not_synchronized_is_a_warning(state: int | None, level: Level, text: str) -> None:
    (finding,) = check_clock(state)
    assert (finding.level, finding.check, finding.text) == (level, "clock", text)
    assert finding.next_command == (None if level is Level.OK else "timedatectl status")
