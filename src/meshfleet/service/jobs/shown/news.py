"""What follows when somebody has made or steered a job: it is told, and goes on at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshfleet.service.jobs.bell import Bell
    from meshfleet.service.live.jobs import Jobs
    from meshfleet.wire.rest import Job


class News:
    """For routes: a job that is not as it was goes through here."""

    def __init__(self, live: Jobs, bell: Bell) -> None:
        self.changed = live.changed
        """Tells who listens what others have become of it."""
        self._bell = bell

    def tell(self, job: Job) -> Job:
        """Tell who listens, and wake who runs jobs; gives the same job."""
        self.changed([int(job.id.removeprefix("job-"))], [])
        self._bell.ring()
        return job

    def tell_deleted(self, number: int) -> None:
        """Tell listeners that a job is gone, and wake the runner, which removes what is left of it."""
        self.changed([number], [])
        self._bell.ring()
