"""Transfer of a firmware image over the air in steps, with a rate that may change from step to step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from meshfleet.emulator.simulation.clock import SimulationScheduler

STEP_SECONDS: Final = 2.0
"""Simulated seconds between two steps of a firmware transfer."""

MESH_RATE: Final = 300.0
"""Transfer rate in bytes per second in one branch of the mesh; a typical image takes 10 to 15 minutes."""

BROADCAST_RATE: Final = 200.0
"""Transfer rate in bytes per second of a broadcast to many devices."""
NORDIC_RATE: Final = 2000.0
"""Transfer rate in bytes per second of a direct link from the gateway to a device in DFU mode."""
HOST_RATE: Final = 100_000.0
"""Transfer rate in bytes per second of a download to the gateway itself."""

FULL_PERCENT: Final = 100
"""Percentage of a complete transfer."""

_STALL_TIMEOUT: Final = 60.0
"""A transfer fails if its rate was 0 for more than this many simulated seconds."""


class TransferDelegate(Protocol):
    """Receives the progress of a firmware transfer, and determines its rate."""

    def get_bytes_per_second(self) -> float:
        """Return the current transfer rate in bytes per second; 0 while the transfer is stalled."""

    def on_progress(self, percent: int) -> None:
        """Handle a change of the transferred percentage."""

    def on_complete(self) -> None:
        """Handle the arrival of the last byte of the image."""

    def on_stalled(self) -> None:
        """Handle that the transfer failed, because it was stalled for too long."""


class ImageTransfer:
    """Transfers one firmware image in steps, at the rate that `delegate` returns, starting at once."""

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
        """Stop the transfer without calling the delegate."""
        self._is_stopped = True

    def _next_step_seconds(self) -> float:
        """Return the simulated seconds until the end of the next step; the last step may be shorter."""
        rate = self._delegate.get_bytes_per_second()
        return min(STEP_SECONDS, (self._size - self._sent) / rate) if rate else STEP_SECONDS

    def _step(self, _sim_time: float) -> None:
        """Send the bytes of one step, report a new percentage, and schedule the next step."""
        if self._is_stopped:
            return
        rate = self._delegate.get_bytes_per_second()
        previous_percent = self._get_percent()
        self._sent = min(self._size, self._sent + rate * STEP_SECONDS)
        self._stalled_seconds = 0.0 if rate else self._stalled_seconds + STEP_SECONDS
        if (percent := self._get_percent()) != previous_percent:
            self._delegate.on_progress(percent)
        self._schedule_next_step()

    def _schedule_next_step(self) -> None:
        """Schedule the next step, or tell the delegate that the transfer is complete or has stalled."""
        if self._is_stopped:
            return  # stopped by `on_progress`
        if self._sent >= self._size:
            self._delegate.on_complete()
        elif self._stalled_seconds > _STALL_TIMEOUT:
            self._delegate.on_stalled()
        else:
            self._scheduler.after(self._next_step_seconds(), self._step)

    def _get_percent(self) -> int:
        return int(FULL_PERCENT * self._sent / self._size)
