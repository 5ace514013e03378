"""Tests of the store of single readings of anchors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from meshfleet.service.ingest.readings import CHANNEL_SHIFT, ReadingKind
from meshfleet.service.positions.reading_store import AnchorLevel, AnchorReading, ReadingStore

if TYPE_CHECKING:
    from meshfleet.service.ingest.readings import Reading

SITE, GATEWAY, DEVICE = 1, 0x02005E000001, 0xC0FFEE010000
ANCHORS = {0xC0FFEE000000 + number: SITE for number in range(3)}
A, B, C = ANCHORS
NOW = 1_800_000_000_000
MINUTE, HOUR = 60_000, 3_600_000


def build_link(time: int, anchor: int, rssi: int = -60, *, channel: int = 0, device: int = DEVICE) -> Reading:
    """Build a reading of a link; `channel` is 1 to 3, or 0 without a channel."""
    return (int(ReadingKind.LINK), device, GATEWAY, time, rssi, anchor, channel << CHANNEL_SHIFT)


def build_store(*readings: Reading) -> ReadingStore:
    """Build a store with three anchors and some readings."""
    store = ReadingStore(retention_ms=3_600_000)
    store.set_anchors(ANCHORS)
    store.add(store.select(readings), NOW)
    return store


def test_a_reading_that_was_delivered_twice_counts_once_but_each_channel_counts() -> None:
    on_channels = [build_link(NOW, A, -60 - channel, channel=channel) for channel in (1, 2, 3)]
    store = build_store(*on_channels, on_channels[0], build_link(NOW, B), build_link(NOW, B))
    assert store.list_readings(DEVICE, NOW - 1, NOW) == [
        AnchorReading(NOW, A, -61),
        AnchorReading(NOW, A, -62),
        AnchorReading(NOW, A, -63),
        AnchorReading(NOW, B, -60),
    ]
    (minute,) = store.take_snapshot(SITE).list_minutes()
    assert minute.levels == {A: AnchorLevel(-62, 3), B: AnchorLevel(-60, 1)}


def test_readings_of_other_kinds_and_parents_and_impossible_ones_are_not_kept() -> None:
    dfu = (int(ReadingKind.DFU), DEVICE, GATEWAY, NOW, -60, A, 0)
    store = build_store(
        dfu, build_link(NOW, 0xC0FFEE0000FF), build_link(NOW, A, -128), build_link(NOW, A, 21)
    )
    assert store.list_readings(DEVICE, 0, NOW) == []
    assert not store.take_updated_devices()


def test_a_device_is_forgotten_with_its_last_reading() -> None:
    store = build_store(build_link(NOW, A))
    assert store.list_devices(SITE) == {DEVICE}
    store.drop_expired(NOW + 3_700_000)
    assert not store.list_devices(SITE)


def test_readings_expire_after_the_clock_was_ahead_and_has_been_set_right() -> None:
    store = ReadingStore(retention_ms=HOUR, max_readings=1_000)
    store.set_anchors(ANCHORS)
    store.add([build_link(NOW, A)], NOW + 10 * HOUR)
    times = [NOW + minute * MINUTE for minute in range(30)]
    for now in times:
        store.add([build_link(now + number, B) for number in range(100)], now)
        assert len(store) <= 1_000
    store.drop_expired(times[-1] + HOUR + 2 * MINUTE)
    assert len(store) == 0


class CountedAnchors(dict[int, int]):
    """Numbers of sites by anchor that count how often a site is looked up."""

    lookups = 0

    def get(self, *args: Any) -> Any:
        self.lookups += 1
        return super().get(*args)


def test_the_minutes_of_a_site_take_no_time_for_the_devices_of_other_sites() -> None:
    anchors = CountedAnchors({A: SITE, B: SITE + 1})
    store = ReadingStore(retention_ms=3_600_000)
    store.set_anchors(anchors)
    store.add([build_link(NOW, A), *(build_link(NOW, B, device=DEVICE + n) for n in range(1, 100))], NOW)
    snapshot = store.take_snapshot(SITE)
    anchors.lookups = 0
    assert [each.device for each in snapshot.list_minutes()] == [DEVICE]
    assert anchors.lookups == 1


def test_a_device_on_two_sites_has_minutes_on_both() -> None:
    store = ReadingStore(retention_ms=3_600_000)
    store.set_anchors({A: SITE, B: SITE + 1})
    store.add([build_link(NOW, A), build_link(NOW, B)], NOW)
    snapshots = [store.take_snapshot(site) for site in (SITE, SITE + 1)]
    store.add([build_link(NOW + 1, B)], NOW)  # a snapshot does not change
    assert [list(minute.levels) for each in snapshots for minute in each.list_minutes()] == [[A], [B]]
    assert [minute.levels[B].count for minute in snapshots[1].list_minutes()] == [1]
    assert store.take_snapshot(SITE + 2).list_minutes() == []


@pytest.mark.parametrize("count", [10, 5_000])
def test_readings_of_a_period_are_found_in_short_and_long_recordings(count: int) -> None:
    times = [NOW - 1_000 * number for number in range(count)]
    store = build_store(*(build_link(time, C) for time in times))
    found = store.list_readings(DEVICE, NOW - 5_000, NOW - 1_000)
    assert [each.time for each in found] == [NOW - 4_000, NOW - 3_000, NOW - 2_000, NOW - 1_000]
    assert len(store.list_readings(DEVICE, 0, NOW)) == count
    device = store.take_device(DEVICE)
    store.add([build_link(NOW + 1, C)], NOW)
    assert device.find_next(NOW - 1_500) == NOW - 1_000
    assert device.find_next(NOW) is None
