"""Notifications about changed jobs and executions: to the job runner and to live events."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from meshfleet.rest.jobs import Job


class ExecutionChange(NamedTuple):
    """Execution whose state changed."""

    job: int
    device: int
    gateway: int | None


ChangeListener = Callable[[Sequence[int], Sequence[ExecutionChange]], None]
"""Called with the numbers of changed jobs and with changed executions."""


class RunnerWakeup:
    """Wake-up of the job runner after a job was created or changed.

    Without it the runner, which also polls, sees the change only later.
    """

    def __init__(self) -> None:
        self._callbacks: list[Callable[[], None]] = []

    def subscribe(self, callback: Callable[[], None]) -> None:
        """Add a callback of `wake`."""
        self._callbacks.append(callback)

    def wake(self) -> None:
        """Call all callbacks."""
        for callback in self._callbacks:
            callback()


class JobNotifier:
    """Notifier of routes that create, change or delete a job."""

    def __init__(self, on_changes: ChangeListener, wakeup: RunnerWakeup) -> None:
        self.on_changes = on_changes
        """Listener of live events, for other jobs and executions that change with a job."""
        self._wakeup = wakeup

    def notify_changed(self, job: Job) -> Job:
        """Publish a changed job to live events and wake the runner. Return the same job."""
        self.on_changes([int(job.id.removeprefix("job-"))], [])
        self._wakeup.wake()
        return job

    def notify_deleted(self, job_number: int) -> None:
        """Publish a deleted job to live events and wake the runner, which removes its remaining rows."""
        self.on_changes([job_number], [])
        self._wakeup.wake()


def ignore_changes(_jobs: Sequence[int], _changed: Sequence[ExecutionChange]) -> None:
    """Ignore changes: the default listener."""
