"""When series with holes are looked at, and that nobody waits for the holes of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.backfill.gap_check import check_due_gaps
from meshfleet.service.backfill.gap_index import CheckSchedule
from tests.service.backfill.ack_harness import TEMPERATURE, sample_time
from tests.service.ingest.ingest_harness import MINUTE
from tests.service.ingest.messages import B, build_report

if TYPE_CHECKING:
    from meshfleet.service.backfill.series import SeriesKey
    from tests.service.backfill.ack_harness import AckHarness


def key(device: int) -> SeriesKey:
    return device, 1, 0x8800


def taken(agenda: CheckSchedule, now: int) -> list[int]:
    """The devices that are due."""
    agenda.advance(now)
    found = []
    while (each := agenda.pop_due()) is not None:
        found.append(each[0][0])
    return found


def test_a_series_is_due_once_when_its_time_has_come() -> None:
    agenda = CheckSchedule()
    agenda.schedule(key(1), 7, 100)
    agenda.schedule(key(2), 7, 50)
    agenda.schedule(key(3), 7, None)
    assert len(agenda) == 2
    assert taken(agenda, 49) == []
    assert taken(agenda, 100) == [2, 1]
    assert (taken(agenda, 1000), len(agenda)) == ([], 0)


def test_a_series_may_be_due_sooner_and_not_later_than_it_was_told() -> None:
    agenda = CheckSchedule()
    agenda.schedule(key(1), 7, 100)
    agenda.schedule(key(1), 7, 200)
    agenda.schedule(key(1), 7, 50)
    assert taken(agenda, 50) == [1]
    assert taken(agenda, 1000) == []


def test_what_is_dropped_is_not_looked_at() -> None:
    agenda = CheckSchedule()
    agenda.schedule(key(1), 7, 100)
    agenda.schedule(key(2), 7, 100)
    agenda.remove(key(1))
    agenda.advance(100)
    agenda.remove(key(2))
    assert agenda.pop_due() is None


def test_owners_have_their_turns_one_after_the_other() -> None:
    agenda = CheckSchedule()
    for device in range(10, 14):
        agenda.schedule(key(device), 1, 0)
    agenda.schedule(key(20), 2, 1)
    agenda.schedule(key(30), 3, 1)
    assert taken(agenda, 1) == [10, 20, 30, 11, 12, 13]


@pytest.mark.anyio
async def test_many_holes_of_a_gateway_keep_nobody_elses_from_being_looked_at(in_file: AckHarness) -> None:
    devices = [f"c0ffee{each:06x}" for each in range(300)]
    for device in devices:
        samples = [
            build_report("event/8810", sample_time(each), seq=each, device=device, gateway=B)
            for each in (0, 2)
        ]
        await in_file.commit(*samples)
    await in_file.commit_samples(0, 2)
    in_file.ingest_harness.now += 2 * MINUTE
    await in_file.commit_samples(1)
    in_file.ingest_harness.now += MINUTE
    await check_due_gaps(
        in_file.acknowledger, in_file.ingest_harness.store, lambda: in_file.ingest_harness.now
    )
    assert in_file.gaps == []
    looked = [series for each, series in in_file.acknowledger.series.items() if each != TEMPERATURE]
    assert sum(bool(hole.checked_at) for series in looked for hole in series.gaps or ()) == 99
