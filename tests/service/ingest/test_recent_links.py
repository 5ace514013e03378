"""The newest minute of each link stays in memory for an hour or two."""

from __future__ import annotations

from meshfleet.service.ingest.readings import CHANNEL_SHIFT, ReadingKind
from meshfleet.service.ingest.rollups import Rollups

START = 1_700_000_040_000
MINUTE = 60_000
DEVICE, GATEWAY, P, Q = 1, 5, 2, 3
HEARD = 1 << CHANNEL_SHIFT


def add(rollups: Rollups, at: int, parent: int, *, flags: int = 0, gateway: int = GATEWAY) -> None:
    """Add a reading of -50 dBm, and close the minutes that have ended."""
    rollups.add(1, [(ReadingKind.LINK, DEVICE, gateway, at, -50, parent, flags)], at)
    rollups.drop_closed_minutes(rollups.close_ended_minutes(at))


def test_a_link_has_its_newest_minute_and_remembers_when_it_was_established() -> None:
    rollups = Rollups()
    for offset in (0, 1000, 2000):
        add(rollups, START + offset, P)
    for minute in (1, 2, -10):  # heard twice, then a late reading
        add(rollups, START + minute * MINUTE, P, flags=HEARD)
    link = rollups.get_links(DEVICE)[P]
    assert (link.seen_at, link.linked_at) == (START + 2 * MINUTE, START + 2000)
    rollups = Rollups()
    for offset in (0, 1000, MINUTE):
        add(rollups, START + offset, P)
    assert rollups.get_links(DEVICE)[P].count == 2  # that of a whole minute


def test_links_are_forgotten_after_some_hours() -> None:
    rollups = Rollups()
    add(rollups, START, P)
    for minute in range(0, 180, 20):
        add(rollups, START + minute * MINUTE, Q)
        if minute < 60 or minute > 120:
            assert rollups.get_links(DEVICE).keys() == ({P, Q} if minute < 60 else {Q})
    assert rollups.recent.list_devices(GATEWAY) == {DEVICE}


def test_a_device_is_listed_at_every_gateway_that_reported_it() -> None:
    rollups = Rollups()
    add(rollups, START, P)
    add(rollups, START + MINUTE, P, gateway=6)
    assert rollups.recent.list_devices(GATEWAY) == rollups.recent.list_devices(6) == {DEVICE}


def test_invented_parents_do_not_fill_the_memory() -> None:
    rollups = Rollups()
    readings = [(ReadingKind.LINK, DEVICE, GATEWAY, START + each, -50, 100 + each, 0) for each in range(500)]
    rollups.add(1, readings, START)
    assert len(rollups.get_links(DEVICE)) <= 64
    rollups.drop_closed_minutes(rollups.close_ended_minutes(START + 2 * MINUTE))
    assert len(rollups.get_links(DEVICE)) <= 64
    assert 599 in rollups.get_links(DEVICE)
