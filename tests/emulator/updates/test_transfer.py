"""Bytes over the air: how long they take, and what becomes of them when nothing gets through."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.simulation.clock import SimulationScheduler
from meshfleet.emulator.updates.transfer import MESH_RATE, STEP_SECONDS, ImageTransfer


class RecordingDelegate:
    """Carries an image at the rates of a list, one step at each, and notes what happens."""

    def __init__(self, rates: list[float], then: float = 0.0) -> None:
        self._rates = rates
        self._then = then
        self.scheduler = SimulationScheduler()
        self.percents: list[int] = []
        self.ends: list[tuple[str, float]] = []

    def bytes_per_second(self) -> float:
        step = int(self.scheduler.now / STEP_SECONDS)
        return self._rates[step] if step < len(self._rates) else self._then

    def on_progress(self, percent: int) -> None:
        self.percents.append(percent)

    def on_complete(self) -> None:
        self.ends.append(("arrived", self.scheduler.now))

    def on_stalled(self) -> None:
        self.ends.append(("lost", self.scheduler.now))


def test_an_image_takes_its_size_by_the_rate() -> None:
    road = RecordingDelegate([], MESH_RATE)
    ImageTransfer(road.scheduler, 30_000, road)
    road.scheduler.run(1000.0)
    assert road.ends == [("arrived", 100.0)]


def test_a_short_image_takes_no_longer_than_it_must() -> None:
    road = RecordingDelegate([], 300.0)
    ImageTransfer(road.scheduler, 150, road)
    road.scheduler.run(1000.0)
    assert road.ends == [("arrived", 0.5)]
    assert road.percents == [100]


def test_a_standstill_is_survived_when_it_is_short() -> None:
    road = RecordingDelegate([100.0] * 5 + [0.0] * 29, 100.0)
    ImageTransfer(road.scheduler, 2000, road)
    road.scheduler.run(1000.0)
    assert [end for end, _ in road.ends] == ["arrived"]


def test_a_standstill_of_a_minute_is_the_end_and_is_told_once() -> None:
    road = RecordingDelegate([100.0] * 5)
    ImageTransfer(road.scheduler, 2000, road)
    road.scheduler.run(5000.0)
    ((end, when),) = road.ends
    assert end == "lost"
    assert 60.0 <= when - 10.0 < 70.0
    assert road.percents[-1] < 100


def test_standstills_do_not_add_up() -> None:
    road = RecordingDelegate(([0.0] * 20 + [100.0]) * 10, 100.0)
    ImageTransfer(road.scheduler, 1500, road)
    road.scheduler.run(5000.0)
    assert [end for end, _ in road.ends] == ["arrived"]


def test_who_stops_it_hears_nothing_more() -> None:
    road = RecordingDelegate([], 100.0)
    transfer = ImageTransfer(road.scheduler, 2000, road)
    road.scheduler.run(10.0)
    heard = len(road.percents)
    transfer.stop()
    road.scheduler.run(1000.0)
    assert (len(road.percents), road.ends) == (heard, [])


@given(
    st.lists(st.sampled_from([0.0, 1.0, 37.5, 300.0, 2000.0]), max_size=60),
    st.integers(1, 100_000),
    st.sampled_from([0.0, 250.0]),
)
def test_percents_only_grow_and_there_is_exactly_one_end(rates: list[float], size: int, then: float) -> None:
    road = RecordingDelegate(rates, then)
    ImageTransfer(road.scheduler, size, road)
    road.scheduler.run(1_000_000.0)
    assert road.percents == sorted(set(road.percents))
    assert len(road.ends) == 1
    assert (road.ends[0][0] == "arrived") == (road.percents[-1:] == [100])
