"""What changes in the row of a job when it begins, or is to begin."""

from __future__ import annotations

from typing import Any

from meshfleet.wire.rest import JobState


def begin(*, start_at: int | None, now: int) -> dict[str, Any]:
    """Begin now, or wait for the start time."""
    if start_at is not None and start_at > now:
        return {"state": str(JobState.SCHEDULED)}
    return {
        "state": str(JobState.IN_PROGRESS),
        "started_at": now,
    }
