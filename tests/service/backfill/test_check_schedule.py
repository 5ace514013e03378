"""Schedule of gap checks: times, and turns of the gateways."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.backfill.gap_check import check_due_gaps
from meshfleet.service.backfill.gap_index import GapCheckSchedule
from tests.service.backfill.ack_harness import TEMPERATURE, AckHarness, sample_time
from tests.service.ingest.ingest_harness import MINUTE
from tests.service.ingest.messages import B, build_report

if TYPE_CHECKING:
    from meshfleet.service.backfill.series import SeriesKey


def build_key(device: int) -> SeriesKey:
    return device, 1, 0x8800


def pop_devices(schedule: GapCheckSchedule, now: int) -> list[int]:
    """Return the due devices in order."""
    schedule.advance(now)
    devices = []
    while (due := schedule.pop_due()) is not None:
        device, *_ = due.key
        devices.append(device)
    return devices


def test_a_series_is_due_once_when_its_time_has_come() -> None:
    schedule = GapCheckSchedule()
    schedule.schedule(build_key(1), 7, 100)
    schedule.schedule(build_key(2), 7, 50)
    schedule.schedule(build_key(3), 7, None)
    assert len(schedule) == 2
    assert pop_devices(schedule, 49) == []
    assert pop_devices(schedule, 100) == [2, 1]
    assert (pop_devices(schedule, 1000), len(schedule)) == ([], 0)


def test_a_check_can_be_moved_to_an_earlier_time_only() -> None:
    schedule = GapCheckSchedule()
    schedule.schedule(build_key(1), 7, 100)
    schedule.schedule(build_key(1), 7, 200)
    schedule.schedule(build_key(1), 7, 50)
    assert pop_devices(schedule, 50) == [1]
    assert pop_devices(schedule, 1000) == []


def test_a_removed_series_is_not_checked() -> None:
    schedule = GapCheckSchedule()
    schedule.schedule(build_key(1), 7, 100)
    schedule.schedule(build_key(2), 7, 100)
    schedule.remove(build_key(1))
    schedule.advance(100)
    schedule.remove(build_key(2))
    assert schedule.pop_due() is None


def test_gateways_take_turns() -> None:
    schedule = GapCheckSchedule()
    for device in range(10, 14):
        schedule.schedule(build_key(device), 1, 0)
    schedule.schedule(build_key(20), 2, 1)
    schedule.schedule(build_key(30), 3, 1)
    assert pop_devices(schedule, 1) == [10, 20, 30, 11, 12, 13]


@pytest.mark.anyio
async def test_many_gaps_of_one_gateway_do_not_delay_the_checks_of_others(sqlite_harness: AckHarness) -> None:
    devices = [f"c0ffee{index:06x}" for index in range(300)]
    for device in devices:
        samples = [
            build_report("event/8810", sample_time(index), seq=index, device=device, gateway=B)
            for index in (0, 2)
        ]
        await sqlite_harness.commit(*samples)
    await sqlite_harness.commit_samples(0, 2)
    sqlite_harness.ingest_harness.now += 2 * MINUTE
    await sqlite_harness.commit_samples(1)
    sqlite_harness.ingest_harness.now += MINUTE
    await check_due_gaps(
        sqlite_harness.acknowledger,
        sqlite_harness.ingest_harness.store,
        lambda: sqlite_harness.ingest_harness.now,
    )
    assert sqlite_harness.gaps == []
    other_series = [
        series for key, series in sqlite_harness.acknowledger.series.items() if key != TEMPERATURE
    ]
    assert sum(bool(gap.checked_at) for series in other_series for gap in series.gaps or ()) == 99
