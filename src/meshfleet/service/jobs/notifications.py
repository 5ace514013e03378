"""Notifies the job runner and the subscribers of live events about changed jobs and executions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from meshfleet.rest.jobs import Job


class ExecutionChange(NamedTuple):
    """Execution whose state changed: job number, device and gateway as integers."""

    job: int
    device: int
    gateway: int | None


ChangeListener = Callable[[Sequence[int], Sequence[ExecutionChange]], None]
"""Callback that receives the numbers of changed jobs and the list of changed executions."""


class RunnerWakeup:
    """Wakes the job runner after a job was created or changed, without waiting for the next polling round."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Add a callback that `wake` calls."""
        self._callbacks.append(callback)

    def wake(self) -> None:
        """Call all subscribed callbacks, which wake the job runner."""
        for callback in self._callbacks:
            callback()


class JobNotifier:
    """Publishes live events and wakes the job runner when a REST route creates, changes or deletes a job."""

    def __init__(self, on_changes: ChangeListener, wakeup: RunnerWakeup) -> None:
        self.on_changes = on_changes
        """Callback that publishes live events about changed jobs and executions."""
        self._wakeup = wakeup

    def notify_changed(self, job: Job) -> Job:
        """Publish a live event about a changed job, and wake the job runner. Return `job` unchanged."""
        self.on_changes([int(job.id.removeprefix("job-"))], [])
        self._wakeup.wake()
        return job

    def notify_deleted(self, job_number: int) -> None:
        """Publish a live event about a deleted job, and wake the job runner to delete the rows of the job."""
        self.on_changes([job_number], [])
        self._wakeup.wake()


def ignore_changes(_jobs: Sequence[int], _changed: Sequence[ExecutionChange]) -> None:
    """Do nothing: default `ChangeListener` of code that runs without live events."""
