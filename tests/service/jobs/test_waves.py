from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.rest import Wave
from meshfleet.service.jobs.waves import PlannedWave, WaveAssignment, find_wave_faults
from tests.row_tables import each_row

devices = st.sets(st.integers(0, 2**48 - 1), max_size=200)
seeds = st.integers(0, 2**63 - 1)
counts = st.builds(Wave, count=st.integers(1, 80))


@st.composite
def wishes(draw: st.DrawFn) -> list[Wave]:
    """Waves by count and by growing percentages, in any mixture."""
    percents = sorted(draw(st.sets(st.floats(0.1, 100), max_size=4)))
    waves = [Wave(percent=each) for each in percents]
    for each in draw(st.lists(counts, max_size=4)):
        waves.insert(draw(st.integers(0, len(waves))), each)
    return waves


@pytest.mark.rule("rest-123", "rest-124")
@given(seeds, devices, wishes())
def test_every_device_has_a_turn_of_its_own_and_waves_follow_each_other(
    seed: int, fleet: set[int], wanted: list[Wave]
) -> None:
    waves = WaveAssignment(seed, fleet, wanted)
    places = {device: waves.find_position(device) for device in fleet}
    assert sorted(place.rank for place in places.values()) == list(range(len(fleet)))
    assert sum(each.size for each in waves.planned) == len(fleet)
    assert all(each.size > 0 for each in waves.planned)
    ends = list(accumulate(each.size for each in waves.planned))
    for wave, turn in places.values():
        assert (ends[wave - 1] if wave else 0) <= turn < ends[wave]


@given(seeds, st.permutations(list(range(0, 7000, 70))), wishes())
def test_the_same_seed_gives_the_same_waves_in_whatever_order_devices_come(
    seed: int, fleet: list[int], wanted: list[Wave]
) -> None:
    one, other = WaveAssignment(seed, sorted(fleet), wanted), WaveAssignment(seed, fleet, wanted)
    assert [one.find_position(each) for each in fleet] == [other.find_position(each) for each in fleet]
    assert one.planned == other.planned


@pytest.mark.rule("rest-208")
@given(seeds, devices, devices, wishes())
def test_who_comes_later_has_a_turn_behind_all_others_in_the_order_of_the_seed(
    seed: int, fleet: set[int], away: set[int], wanted: list[Wave]
) -> None:
    first, later = fleet - away, away
    waves = WaveAssignment(seed, first, wanted, deferred=later)
    turns = {device: waves.find_position(device).rank for device in first | later}
    assert sorted(turns.values()) == list(range(len(turns)))
    for some, start in ((first, 0), (later, len(first))):
        alone = WaveAssignment(seed, some, [])
        assert {each: turns[each] - start for each in some} == {
            each: alone.find_position(each).rank for each in some
        }
    assert waves.planned == WaveAssignment(seed, first | later, wanted).planned


def test_the_order_of_a_seed_is_the_same_for_ever() -> None:
    waves = WaveAssignment(42, range(10), [])
    assert sorted(range(10), key=lambda each: waves.find_position(each).rank) == [
        7,
        4,
        0,
        2,
        6,
        5,
        1,
        8,
        3,
        9,
    ]


def test_another_seed_gives_another_order() -> None:
    orders = {
        tuple(WaveAssignment(seed, range(50), []).find_position(each).rank for each in range(50))
        for seed in range(20)
    }
    assert len(orders) == 20


@pytest.mark.rule("rest-123", "rest-124")
@each_row(
    ("wanted", "number", "sizes"),
    [
        ([], 7, [7]),
        ([], 0, []),
        ([Wave(count=5), Wave(percent=10), Wave(percent=100)], 100, [5, 5, 90]),
        ([Wave(count=5), Wave(percent=10)], 100, [5, 5, 90]),
        ([Wave(percent=10), Wave(count=5)], 100, [10, 5, 85]),
        ([Wave(count=50), Wave(percent=10), Wave(percent=60)], 100, [50, 10, 40]),
        ([Wave(count=5)], 3, [3]),
        ([Wave(count=2), Wave(count=2), Wave(count=2)], 3, [2, 1]),
        ([Wave(percent=1), Wave(percent=100)], 5, [1, 4]),
        ([Wave(percent=33.3), Wave(percent=66.6)], 1000, [333, 333, 334]),
        ([Wave(percent=100)], 12, [12]),
    ],
)
def test_percentages_are_of_all_and_counts_are_counts(
    wanted: list[Wave], number: int, sizes: list[int]
) -> None:
    assert list(find_wave_faults(wanted)) == []
    assert [each.size for each in WaveAssignment(1, range(number), wanted).planned] == sizes


def test_a_wave_without_devices_is_left_out_and_the_others_keep_their_names() -> None:
    wanted = [Wave(name="canary", count=5), Wave(name="tenth", percent=10), Wave(name="all", percent=100)]
    assert WaveAssignment(1, range(20), wanted).planned == [PlannedWave("canary", 5), PlannedWave("all", 15)]


@pytest.mark.rule("rest-123")
@each_row(
    ("wanted", "wrong"),
    [
        ([Wave()], ["waves[0]"]),
        ([Wave(count=1, percent=5)], ["waves[0]"]),
        ([Wave(percent=10), Wave(percent=10)], ["waves[1]"]),
        ([Wave(percent=50), Wave(count=3), Wave(percent=20), Wave(percent=30)], ["waves[2]", "waves[3]"]),
        ([Wave(percent=50), Wave(), Wave(percent=60)], ["waves[1]"]),
    ],
)
def test_waves_that_cannot_be_are_named(wanted: list[Wave], wrong: list[str]) -> None:
    assert [each.field for each in find_wave_faults(wanted)] == wrong
