"""Transfers: their duration, progress and stalls."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshfleet.emulator.simulation.clock import SimulationScheduler
from meshfleet.emulator.updates.transfer import MESH_RATE, STEP_SECONDS, ImageTransfer


class RecordingDelegate:
    """Delegate with a list of rates, one per step, that records all calls."""

    def __init__(self, rates: list[float], final_rate: float = 0.0) -> None:
        self._rates = rates
        self._final_rate = final_rate
        self.scheduler = SimulationScheduler()
        self.percents: list[int] = []
        self.outcomes: list[tuple[str, float]] = []

    def get_bytes_per_second(self) -> float:
        step = int(self.scheduler.now / STEP_SECONDS)
        return self._rates[step] if step < len(self._rates) else self._final_rate

    def on_progress(self, percent: int) -> None:
        self.percents.append(percent)

    def on_complete(self) -> None:
        self.outcomes.append(("arrived", self.scheduler.now))

    def on_stalled(self) -> None:
        self.outcomes.append(("lost", self.scheduler.now))


def test_a_transfer_takes_the_size_divided_by_the_rate() -> None:
    delegate = RecordingDelegate([], MESH_RATE)
    ImageTransfer(delegate.scheduler, 30_000, delegate)
    delegate.scheduler.run(1000.0)
    assert delegate.outcomes == [("arrived", 100.0)]


def test_the_last_step_is_shortened() -> None:
    delegate = RecordingDelegate([], 300.0)
    ImageTransfer(delegate.scheduler, 150, delegate)
    delegate.scheduler.run(1000.0)
    assert delegate.outcomes == [("arrived", 0.5)]
    assert delegate.percents == [100]


def test_a_short_stall_does_not_end_a_transfer() -> None:
    delegate = RecordingDelegate([100.0] * 5 + [0.0] * 29, 100.0)
    ImageTransfer(delegate.scheduler, 2000, delegate)
    delegate.scheduler.run(1000.0)
    assert [outcome for outcome, _ in delegate.outcomes] == ["arrived"]


def test_a_stall_of_a_minute_ends_a_transfer_once() -> None:
    delegate = RecordingDelegate([100.0] * 5)
    ImageTransfer(delegate.scheduler, 2000, delegate)
    delegate.scheduler.run(5000.0)
    ((outcome, time),) = delegate.outcomes
    assert outcome == "lost"
    assert 60.0 <= time - 10.0 < 70.0
    assert delegate.percents[-1] < 100


def test_short_stalls_do_not_add_up() -> None:
    delegate = RecordingDelegate(([0.0] * 20 + [100.0]) * 10, 100.0)
    ImageTransfer(delegate.scheduler, 1500, delegate)
    delegate.scheduler.run(5000.0)
    assert [outcome for outcome, _ in delegate.outcomes] == ["arrived"]


def test_a_stopped_transfer_makes_no_more_calls() -> None:
    delegate = RecordingDelegate([], 100.0)
    transfer = ImageTransfer(delegate.scheduler, 2000, delegate)
    delegate.scheduler.run(10.0)
    call_count = len(delegate.percents)
    transfer.stop()
    delegate.scheduler.run(1000.0)
    assert (len(delegate.percents), delegate.outcomes) == (call_count, [])


@given(
    st.lists(st.sampled_from([0.0, 1.0, 37.5, 300.0, 2000.0]), max_size=60),
    st.integers(1, 100_000),
    st.sampled_from([0.0, 250.0]),
)
def test_progress_only_grows_and_there_is_exactly_one_outcome(
    rates: list[float], size: int, final_rate: float
) -> None:
    delegate = RecordingDelegate(rates, final_rate)
    ImageTransfer(delegate.scheduler, size, delegate)
    delegate.scheduler.run(1_000_000.0)
    assert delegate.percents == sorted(set(delegate.percents))
    assert len(delegate.outcomes) == 1
    assert (delegate.outcomes[0][0] == "arrived") == (delegate.percents[-1:] == [100])
