"""An order is checked before anything is looked up for it."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from meshfleet.errors import Fault, InvalidRequest, MalformedTime
from meshfleet.service.jobs.making import waves
from meshfleet.wire.rest import bidirectional_control
from meshfleet.wire.times import parse_millis, write_millis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from meshfleet.wire.rest import NewJob


_INVISIBLE: Final = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


class Checked(NamedTuple):
    """An order without mistakes, as far as it tells by itself."""

    order: NewJob
    """With its times in one spelling."""
    start_at: int | None
    deadline: int | None


def check(asked: NewJob, now: int) -> Checked:
    """Read the times of an order and look at its waves, or tell all that is wrong."""
    faults = [*_names(asked), *waves.faults(asked.waves)]
    start_at = _time(asked.start_at, "startAt", faults)
    deadline = _time(asked.deadline, "deadline", faults)
    if deadline is not None and deadline <= now:
        faults.append(Fault("deadline", "is over"))
    elif deadline is not None and start_at is not None and deadline <= start_at:
        faults.append(Fault("deadline", "is not after startAt"))
    if faults:
        raise InvalidRequest(faults)
    return Checked(replace(asked, start_at=_text(start_at), deadline=_text(deadline)), start_at, deadline)


def _names(asked: NewJob) -> Iterator[Fault]:
    """What is wrong with names: they are shown to people, in consoles and on terminals."""
    names = {"name": asked.name, **{f"waves[{n}].name": each.name for n, each in enumerate(asked.waves)}}
    for field, name in names.items():
        if name is None:
            continue
        if not name.strip():
            yield Fault(field, "is empty")
        elif (reason := bidirectional_control(name)) is not None:
            yield Fault(field, reason)
        elif any(unicodedata.category(each) in _INVISIBLE for each in name):
            yield Fault(field, "has characters that nobody sees")


def _time(text: str | None, field: str, faults: list[Fault]) -> int | None:
    try:
        return None if text is None else parse_millis(text, field)
    except MalformedTime as exc:
        faults.append(Fault(field, exc.reason))
        return None


def _text(millis: int | None) -> str | None:
    return None if millis is None else write_millis(millis)
