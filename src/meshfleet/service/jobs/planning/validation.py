"""Validates the body of a job request: all checks that need no database."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.errors import Fault, InvalidRequest
from meshfleet.errors.protocol import MalformedTime
from meshfleet.protocol.times import format_optional_millis, parse_millis
from meshfleet.rest.inputs import find_bidirectional_control
from meshfleet.service.jobs import waves

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.rest.job_requests import NewJob


_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class ValidatedJob(NamedTuple):
    """Job request with valid names, waves and times. Firmware and targets are not checked yet."""

    body: NewJob
    """Body of the request, with `startAt` and `deadline` in the standard time format."""
    start_at: int | None
    """Start time as Unix time in milliseconds; None to start at once."""
    deadline: int | None
    """Deadline as Unix time in milliseconds; None if the job has no deadline."""


def validate_job(body: NewJob, now: int) -> ValidatedJob:
    """Validate the names, waves and times of a job request. Raise `InvalidRequest` with all faults."""
    faults = [*_find_name_faults(body), *waves.find_wave_faults(body.waves)]
    start_at = _parse_time(body.start_at, "startAt", faults)
    deadline = _parse_time(body.deadline, "deadline", faults)
    if deadline is not None and deadline <= now:
        faults.append(Fault("deadline", "must be in the future"))
    elif deadline is not None and start_at is not None and deadline <= start_at:
        faults.append(Fault("deadline", "must be after startAt"))
    if faults:
        raise InvalidRequest(faults)
    return ValidatedJob(
        replace(body, start_at=format_optional_millis(start_at), deadline=format_optional_millis(deadline)),
        start_at,
        deadline,
    )


def _find_name_faults(body: NewJob) -> Iterator[Fault]:
    """Find the faults in the names of a job and its waves.

    Invisible characters are not allowed, because names are printed on terminals.
    """
    names = {"name": body.name, **{f"waves[{n}].name": each.name for n, each in enumerate(body.waves)}}
    for field, name in names.items():
        if name is None:
            continue
        if not name.strip():
            yield Fault(field, "must not be empty")
        elif (reason := find_bidirectional_control(name)) is not None:
            yield Fault(field, reason)
        elif any(unicodedata.category(each) in _INVISIBLE for each in name):
            yield Fault(field, "must not contain invisible characters")


def _parse_time(text: str | None, field: str, faults: list[Fault]) -> int | None:
    """Convert a time to Unix time in milliseconds. If it is malformed, add a fault and return None."""
    try:
        return None if text is None else parse_millis(text, field)
    except MalformedTime as exc:
        faults.append(Fault(field, exc.reason))
        return None
