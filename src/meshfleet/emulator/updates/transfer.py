"""An image on its way over the air, in steps: links are shared, nodes come and go."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.clock import SimulationScheduler

STEP_SECONDS: Final = 2.0
"""Seconds of transfer between two looks at it."""

MESH_RATE: Final = 300.0
"""Bytes per second that one branch of the mesh carries: a usual image takes ten to fifteen minutes."""

BROADCAST_RATE: Final = 200.0
NORDIC_RATE: Final = 2000.0
"""Straight from the gateway to a device that does nothing else."""
HOST_RATE: Final = 100_000.0
"""Over the wire, to the gateway itself."""

FULL_PERCENT: Final = 100
"""Percent."""

_STALL_TIMEOUT: Final = 60.0


class TransferDelegate(Protocol):
    """Who wants an image carried, and decides what becomes of it."""

    def bytes_per_second(self) -> float:
        """Bytes per second that get through now; 0 is a standstill."""

    def on_progress(self, percent: int) -> None:
        """So much has arrived."""

    def on_complete(self) -> None:
        """All of it has."""

    def on_stalled(self) -> None:
        """It stood still for too long."""


class ImageTransfer:
    """Carries an image."""

    __slots__ = ("_delegate", "_is_stopped", "_scheduler", "_sent", "_size", "_stalled_seconds")

    def __init__(self, scheduler: SimulationScheduler, size: int, delegate: TransferDelegate) -> None:
        self._scheduler = scheduler
        self._size = size
        self._delegate = delegate
        self._sent = 0.0
        self._stalled_seconds = 0.0
        self._is_stopped = False
        scheduler.after(self._next_step_seconds(), self._step)

    def stop(self) -> None:
        """Stop without a word: whoever stops it knows."""
        self._is_stopped = True

    def _next_step_seconds(self) -> float:
        """A step, or less when less is left."""
        rate = self._delegate.bytes_per_second()
        return min(STEP_SECONDS, (self._size - self._sent) / rate) if rate else STEP_SECONDS

    def _step(self, _t: float) -> None:
        if self._is_stopped:
            return
        rate = self._delegate.bytes_per_second()
        before = self._percent()
        self._sent = min(self._size, self._sent + rate * STEP_SECONDS)
        self._stalled_seconds = 0.0 if rate else self._stalled_seconds + STEP_SECONDS
        if (percent := self._percent()) != before:
            self._delegate.on_progress(percent)
        self._schedule_next_step()

    def _schedule_next_step(self) -> None:
        if self._is_stopped:
            return  # whoever heard how far it is has stopped it
        if self._sent >= self._size:
            self._delegate.on_complete()
        elif self._stalled_seconds > _STALL_TIMEOUT:
            self._delegate.on_stalled()
        else:
            self._scheduler.after(self._next_step_seconds(), self._step)

    def _percent(self) -> int:
        return int(FULL_PERCENT * self._sent / self._size)
