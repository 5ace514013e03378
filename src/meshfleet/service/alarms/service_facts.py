"""Facts about the service that only its process knows: disk, broker, lag of ingest and certificate."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from meshfleet.errors.readiness import ReadinessCode
from meshfleet.service.alarms.watches.watch import ServiceFacts

if TYPE_CHECKING:
    from pathlib import Path

    from meshfleet.errors.readiness import ReadinessProblem
    from meshfleet.service.clock import Now
    from meshfleet.service.ingest.commit_timer import CommitTimer
    from meshfleet.service.server_certificate import ServerCertificate
    from meshfleet.service.storage.monitor import StorageMonitor

    class Source(Protocol):
        """Part of the service that receives reports: the embedded broker, or the client of another one."""

        @property
        def problem(self) -> ReadinessProblem | None:
            """Problem that keeps reports from being received or committed; None if there is none."""


_DISK_MS: Final = 30_000
"""Milliseconds between two looks at the disk."""


class _DiskSpace(NamedTuple):
    """Space on a disk in bytes."""

    free: int
    total: int


class ServiceFactsReader:
    """Reads facts about the service. It must be asked often: it remembers since when the broker fails."""

    def __init__(  # noqa: PLR0913 # keyword-only collaborators
        self,
        data: Path | None,
        *,
        source: Source,
        commit_timer: CommitTimer,
        storage: StorageMonitor,
        certificate: ServerCertificate | None,
        now: Now,
    ) -> None:
        """Create a reader. `data` is the data folder; None if the data are on a database server."""
        self._data = data
        self._source = source
        self._commit_timer = commit_timer
        self._storage = storage
        self._certificate = certificate
        self._now = now
        self._disk: _DiskSpace | None = None
        self._disk_read_at: int | None = None
        self._broker_failing_since: int | None = None

    def read(self) -> ServiceFacts:
        """Return the facts of now. This may block while the disk does not respond."""
        now = self._now()
        disk, status = self._read_disk(now), self._storage.newest
        ends_at = None if self._certificate is None else self._certificate.ends_at
        return ServiceFacts(
            disk_free=None if disk is None else disk.free,
            disk_total=None if disk is None else disk.total,
            disk_full_at=None if status is None else status.forecast.full_at,
            broker_failing_since=self._find_broker_failure(now),
            ingest_lag=int(self._commit_timer.compute_lag() * 1000),
            certificate_ends_at=None if ends_at is None else ends_at * 1000,
        )

    def _read_disk(self, now: int) -> _DiskSpace | None:
        if self._data is None:
            return None
        if self._disk_read_at is None or not 0 <= now - self._disk_read_at < _DISK_MS:
            self._disk_read_at = now
            try:
                usage = shutil.disk_usage(self._data)
            except OSError:
                self._disk = None  # the folder is not there now: nothing is known about its disk
            else:
                self._disk = _DiskSpace(usage.free, usage.total)
        return self._disk

    def _find_broker_failure(self, now: int) -> int | None:
        """Return since when the broker fails. A database that fails is not the fault of the broker."""
        problem = self._source.problem
        if problem is None or problem.code is not ReadinessCode.BROKER:
            self._broker_failing_since = None
        elif self._broker_failing_since is None:
            self._broker_failing_since = now
        return self._broker_failing_since
