"""Where each wave of a job is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from meshfleet.service.clock import steady
from meshfleet.service.jobs.job_states import FINISHED
from meshfleet.service.jobs.outcome import FAILURES
from meshfleet.wire.percent import reaches
from meshfleet.wire.rest import ExecutionState as E
from meshfleet.wire.rest import JobState, JobWave, PauseReason, WaveState
from meshfleet.wire.times import write_millis

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sqlalchemy import Row

    from meshfleet.service.jobs.making.waves import FallenWave
    from meshfleet.service.jobs.plan import Counts
    from meshfleet.wire.rest import Gate

_RAN: Final = (E.SUCCEEDED, *FAILURES)
"""Who is over, and was not just left out."""

_PAUSES: Final = {PauseReason.GATE: WaveState.HELD, PauseReason.GATE_FAILED: WaveState.FAILED}


def wave_states(row: Row[Any], gate: Gate, fallen: Sequence[FallenWave], counts: Counts) -> list[JobWave]:
    """The waves of a job as they stand."""
    states = [_state(row, gate, wave, counts) for wave in range(len(fallen))]
    return [
        JobWave(
            name=each.name,
            state=state,
            size=_size(counts, wave),
            succeeded=counts.of(E.SUCCEEDED, wave=wave),
            failed=counts.of(*FAILURES, wave=wave),
            soaks_until=_soaks_until(row) if state is WaveState.SOAKING else None,
        )
        for wave, (each, state) in enumerate(zip(fallen, states, strict=True))
        if _size(counts, wave)
    ]


def _size(counts: Counts, wave: int) -> int:
    """Return how many devices are in a wave. Those that misreported their version came to it later."""
    return sum(count for (place, _), count in counts.items() if place == wave)


def _state(row: Row[Any], gate: Gate, wave: int, counts: Counts) -> WaveState:
    if row.state in FINISHED:
        return _ended(gate, wave, counts)
    if wave < row.wave:
        return WaveState.PASSED if _passed(gate, wave, counts) else WaveState.FAILED
    if wave > row.wave or row.started_at is None:
        return WaveState.WAITING
    if row.state == JobState.PAUSED and row.pause_reason in _PAUSES:
        return _PAUSES[row.pause_reason]
    return WaveState.RUNNING if row.soaks_until is None else WaveState.SOAKING


def _soaks_until(row: Row[Any]) -> str:
    return write_millis(steady.on_the_wall(row.soaks_until))


def _ended(gate: Gate, wave: int, counts: Counts) -> WaveState:
    """A wave of a job that is over: one of which nobody ran was left out."""
    if not counts.of(*_RAN, wave=wave):
        return WaveState.SKIPPED
    is_whole = not counts.of(E.CANCELED, wave=wave)
    return WaveState.PASSED if is_whole and _passed(gate, wave, counts) else WaveState.FAILED


def _passed(gate: Gate, wave: int, counts: Counts) -> bool:
    ran = counts.of(*_RAN, wave=wave)
    return reaches(counts.of(E.SUCCEEDED, wave=wave), ran, gate.success_percent)
