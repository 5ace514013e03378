"""When series with holes are looked at, and that nobody waits for the holes of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from meshfleet.service.acks.agenda import Agenda
from meshfleet.service.acks.checking import check
from tests.service.acks.ground import TEMPERATURE, at
from tests.service.ingest.intake import MINUTE
from tests.service.ingest.messages import B, report

if TYPE_CHECKING:
    from meshfleet.service.acks.series import Key
    from tests.service.acks.ground import Ground


def key(device: int) -> Key:
    return device, 1, 0x8800


def taken(agenda: Agenda, now: int) -> list[int]:
    """The devices that are due."""
    agenda.call(now)
    found = []
    while (each := agenda.take()) is not None:
        found.append(each[0][0])
    return found


def test_a_series_is_due_once_when_its_time_has_come() -> None:
    agenda = Agenda()
    agenda.put(key(1), 7, 100)
    agenda.put(key(2), 7, 50)
    agenda.put(key(3), 7, None)
    assert len(agenda) == 2
    assert taken(agenda, 49) == []
    assert taken(agenda, 100) == [2, 1]
    assert (taken(agenda, 1000), len(agenda)) == ([], 0)


def test_a_series_may_be_due_sooner_and_not_later_than_it_was_told() -> None:
    agenda = Agenda()
    agenda.put(key(1), 7, 100)
    agenda.put(key(1), 7, 200)
    agenda.put(key(1), 7, 50)
    assert taken(agenda, 50) == [1]
    assert taken(agenda, 1000) == []


def test_what_is_dropped_is_not_looked_at() -> None:
    agenda = Agenda()
    agenda.put(key(1), 7, 100)
    agenda.put(key(2), 7, 100)
    agenda.drop(key(1))
    agenda.call(100)
    agenda.drop(key(2))
    assert agenda.take() is None


def test_owners_have_their_turns_one_after_the_other() -> None:
    agenda = Agenda()
    for device in range(10, 14):
        agenda.put(key(device), 1, 0)
    agenda.put(key(20), 2, 1)
    agenda.put(key(30), 3, 1)
    assert taken(agenda, 1) == [10, 20, 30, 11, 12, 13]


@pytest.mark.anyio
async def test_many_holes_of_a_gateway_keep_nobody_elses_from_being_looked_at(in_file: Ground) -> None:
    devices = [f"c0ffee{each:06x}" for each in range(300)]
    for device in devices:
        samples = [report("event/8810", at(each), seq=each, device=device, gateway=B) for each in (0, 2)]
        await in_file.take(*samples)
    await in_file.tell(0, 2)
    in_file.intake.now += 2 * MINUTE
    await in_file.tell(1)
    in_file.intake.now += MINUTE
    await check(in_file.acks, in_file.intake.store, lambda: in_file.intake.now)
    assert in_file.holes == []
    looked = [series for each, series in in_file.acks.series.items() if each != TEMPERATURE]
    assert sum(bool(hole.checked_at) for series in looked for hole in series.holes or ()) == 99
