"""Errors of backup and restore."""

from __future__ import annotations

from meshfleet.errors import FleetError


class BackupFailed(FleetError):
    """Raised when a backup cannot be written, for example because a disk is full."""

    code = "backup-failed"


class BackupNotRecorded(FleetError):
    """Raised when a finished backup cannot be recorded in the database. The backup itself is complete."""

    code = "backup-not-recorded"


class BackupDamaged(FleetError):
    """Raised when a backup file is incomplete or was changed. `member` names the damaged part of the file."""

    code = "backup-damaged"

    def __init__(self, member: str, reason: str) -> None:
        super().__init__(member, reason)
        self.member = member
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.member}: {self.reason}"


class RestoreRefused(FleetError):
    """Raised when a backup cannot be restored by this version or to this target; nothing was changed."""

    code = "restore-refused"
