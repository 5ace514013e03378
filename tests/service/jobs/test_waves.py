from __future__ import annotations

from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshfleet.rest.job_requests import Wave
from meshfleet.service.jobs.waves import PlannedWave, WaveAssignment, find_wave_faults
from tests.row_tables import each_row

devices = st.sets(st.integers(0, 2**48 - 1), max_size=200)
seeds = st.integers(0, 2**63 - 1)
counts = st.builds(Wave, count=st.integers(1, 80))


@st.composite
def wave_requests(draw: st.DrawFn) -> list[Wave]:
    """Generate waves by count and by growing percentages, in any mixture."""
    percents = sorted(draw(st.sets(st.floats(0.1, 100), max_size=4)))
    waves = [Wave(percent=each) for each in percents]
    for each in draw(st.lists(counts, max_size=4)):
        waves.insert(draw(st.integers(0, len(waves))), each)
    return waves


@pytest.mark.rule("rest-123", "rest-124")
@given(seeds, devices, wave_requests())
def test_every_device_has_its_own_rank_and_waves_are_consecutive(
    seed: int, fleet: set[int], requested: list[Wave]
) -> None:
    waves = WaveAssignment(seed, fleet, requested)
    positions = {device: waves.find_position(device) for device in fleet}
    assert sorted(position.rank for position in positions.values()) == list(range(len(fleet)))
    assert sum(each.size for each in waves.planned) == len(fleet)
    assert all(each.size > 0 for each in waves.planned)
    ends = list(accumulate(each.size for each in waves.planned))
    for wave, rank in positions.values():
        assert (ends[wave - 1] if wave else 0) <= rank < ends[wave]


@given(seeds, st.permutations(list(range(0, 7000, 70))), wave_requests())
def test_the_same_seed_gives_the_same_waves_for_any_order_of_devices(
    seed: int, fleet: list[int], requested: list[Wave]
) -> None:
    one, other = WaveAssignment(seed, sorted(fleet), requested), WaveAssignment(seed, fleet, requested)
    assert [one.find_position(each) for each in fleet] == [other.find_position(each) for each in fleet]
    assert one.planned == other.planned


@pytest.mark.rule("rest-208")
@given(seeds, devices, devices, wave_requests())
def test_deferred_devices_come_after_all_others_in_the_order_of_the_seed(
    seed: int, fleet: set[int], offline: set[int], requested: list[Wave]
) -> None:
    first, deferred = fleet - offline, offline
    waves = WaveAssignment(seed, first, requested, deferred=deferred)
    ranks = {device: waves.find_position(device).rank for device in first | deferred}
    assert sorted(ranks.values()) == list(range(len(ranks)))
    for group, start in ((first, 0), (deferred, len(first))):
        separate = WaveAssignment(seed, group, [])
        assert {each: ranks[each] - start for each in group} == {
            each: separate.find_position(each).rank for each in group
        }
    assert waves.planned == WaveAssignment(seed, first | deferred, requested).planned


def test_the_order_of_a_seed_never_changes() -> None:
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
    ("requested", "number", "sizes"),
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
def test_percentages_are_cumulative_and_counts_are_absolute(
    requested: list[Wave], number: int, sizes: list[int]
) -> None:
    assert list(find_wave_faults(requested)) == []
    assert [each.size for each in WaveAssignment(1, range(number), requested).planned] == sizes


def test_an_empty_wave_is_omitted_and_the_others_keep_their_names() -> None:
    requested = [Wave(name="canary", count=5), Wave(name="tenth", percent=10), Wave(name="all", percent=100)]
    assert WaveAssignment(1, range(20), requested).planned == [
        PlannedWave("canary", 5),
        PlannedWave("all", 15),
    ]


@pytest.mark.rule("rest-123")
@each_row(
    ("requested", "fields"),
    [
        ([Wave()], ["waves[0]"]),
        ([Wave(count=1, percent=5)], ["waves[0]"]),
        ([Wave(percent=10), Wave(percent=10)], ["waves[1]"]),
        ([Wave(percent=50), Wave(count=3), Wave(percent=20), Wave(percent=30)], ["waves[2]", "waves[3]"]),
        ([Wave(percent=50), Wave(), Wave(percent=60)], ["waves[1]"]),
    ],
)
def test_invalid_waves_are_reported(requested: list[Wave], fields: list[str]) -> None:
    assert [each.field for each in find_wave_faults(requested)] == fields
