"""An order is checked before anything is looked up for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from meshfleet.errors import Fault, InvalidRequest, MalformedTime
from meshfleet.service.jobs.making import waves
from meshfleet.wire.times import parse_time, to_millis, write_millis

if TYPE_CHECKING:
    from meshfleet.wire.rest import NewJob


class Checked(NamedTuple):
    """An order without mistakes, as far as it tells by itself."""

    order: NewJob
    """With its times in one spelling."""
    start_at: int | None
    deadline: int | None


def check(asked: NewJob, now: int) -> Checked:
    """Read the times of an order and look at its waves, or tell all that is wrong."""
    faults = list(waves.faults(asked.waves))
    start_at = _time(asked.start_at, "startAt", faults)
    deadline = _time(asked.deadline, "deadline", faults)
    if deadline is not None and deadline <= now:
        faults.append(Fault("deadline", "is over"))
    elif deadline is not None and start_at is not None and deadline <= start_at:
        faults.append(Fault("deadline", "is not after startAt"))
    if faults:
        raise InvalidRequest(faults)
    return Checked(replace(asked, start_at=_text(start_at), deadline=_text(deadline)), start_at, deadline)


def _time(text: str | None, field: str, faults: list[Fault]) -> int | None:
    try:
        return None if text is None else to_millis(parse_time(text, field))
    except MalformedTime as exc:
        faults.append(Fault(field, exc.reason))
        return None


def _text(millis: int | None) -> str | None:
    return None if millis is None else write_millis(millis)
