"""What is told of executions that are in another state, to whoever listens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from meshfleet.rest import Job
    from meshfleet.service.live.job_events import JobEvents


# A bell for who runs jobs: whoever has made or changed one rings it.


class RunnerWakeup:
    """Nobody needs to hear it: whoever runs jobs also looks by itself, only later."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Call this whenever it rings."""
        self._callbacks.append(callback)

    def wake(self) -> None:
        """There is something to do."""
        for callback in self._callbacks:
            callback()


# What follows when somebody has made or steered a job: it is told, and goes on at once.


class JobNotifier:
    """For routes: a job that is not as it was goes through here."""

    def __init__(self, live: JobEvents, wakeup: RunnerWakeup) -> None:
        self.on_changes = live.mark_changed
        """Tells who listens what others have become of it."""
        self._wakeup = wakeup

    def notify_changed(self, job: Job) -> Job:
        """Tell who listens, and wake who runs jobs; gives the same job."""
        self.on_changes([int(job.id.removeprefix("job-"))], [])
        self._wakeup.wake()
        return job

    def notify_deleted(self, job_number: int) -> None:
        """Tell listeners that a job is gone, and wake the runner, which removes what is left of it."""
        self.on_changes([job_number], [])
        self._wakeup.wake()


class ExecutionChange(NamedTuple):
    """An execution that is in another state now."""

    job: int
    device: int
    gateway: int | None


ChangeListener = Callable[[Sequence[int], Sequence[ExecutionChange]], None]
"""Hears which jobs and which executions have changed."""


def ignore_changes(_jobs: Sequence[int], _changed: Sequence[ExecutionChange]) -> None:
    """Nobody listens."""
