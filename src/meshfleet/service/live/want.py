"""What a listener wants to hear of, and what all of them together do."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from meshfleet.errors import Fault, InvalidRequest, MalformedText, WireError
from meshfleet.service.devices.paths import parse_gateway
from meshfleet.service.live.event import RESYNC
from meshfleet.wire.ids import mac_number, mac_of, parse_device_id
from meshfleet.wire.rest.live import LIVE_TYPES, MAX_FILTER

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from meshfleet.service.live.event import Event

Value = TypeVar("Value")

_JOB: Final = re.compile(r"job-([1-9][0-9]{0,17})")

_OF_JOBS: Final = frozenset({"job", "execution"})
"""Types of events that tell of jobs."""


class Want(Struct, frozen=True, kw_only=True):
    """A filter: all that is given must hold, and of each any value (rest-147). None: anything."""

    types: frozenset[str] | None = None
    devices: frozenset[int] | None = None
    gateways: frozenset[int] | None = None
    jobs: frozenset[int] | None = None

    def takes(self, event: Event) -> bool:
        """Whether an event is wanted. What was missed concerns whoever wants events of that type."""
        if event.type == RESYNC:
            return self.types is None or event.about in self.types or RESYNC in self.types
        if self.types is not None and event.about not in self.types:
            return False
        if self.devices is not None and event.device not in self.devices:
            return False
        if self.jobs is not None and event.job not in self.jobs:
            return False
        return (
            self.gateways is None
            or event.gateway is None
            or event.gateway in self.gateways
            or event.former in self.gateways
        )

    def covers(self, other: Want) -> bool:
        """Whether all that the other takes is taken by this one."""
        return (
            _covers(self.types, other.types)
            and _covers(self.devices, other.devices)
            and _covers(self.gateways, other.gateways)
            and _covers(self.jobs, other.jobs)
        )

    @property
    def size(self) -> int:
        """How many devices, gateways and jobs it names."""
        return len(self.devices or ()) + len(self.gateways or ()) + len(self.jobs or ())


def _covers(mine: frozenset[Value] | None, others: frozenset[Value] | None) -> bool:
    return mine is None or (others is not None and others <= mine)


class Interest:
    """Whose events of one type anybody wants. Tells it at once, and now and then too much."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._wants = self._alls = 0
        self.devices: Counter[int] = Counter()
        self.gateways: Counter[int] = Counter()
        self.jobs: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return self._wants > 0

    @property
    def is_all(self) -> bool:
        """Whether somebody wants the events of everybody."""
        return self._alls > 0

    def includes(self, device: int, gateway: int | None) -> bool:
        """Whether somebody may want an event of this device."""
        if self._alls or device in self.devices:
            return True
        return bool(self.gateways) and (gateway is None or gateway in self.gateways)

    def includes_job(self, job: int) -> bool:
        """Whether somebody may want an event of this job as a whole."""
        return self._alls > 0 or job in self.jobs

    def change(self, want: Want, by: int) -> None:
        """One more wants it, or one less."""
        if want.types is not None and self._about not in want.types:
            return
        if want.jobs is not None and self._about not in _OF_JOBS:
            return
        self._wants += by
        if want.jobs is not None:
            _change(self.jobs, want.jobs, by)
        elif want.devices is not None:
            _change(self.devices, want.devices, by)
        elif want.gateways is not None:
            _change(self.gateways, want.gateways, by)
        else:
            self._alls += by


def _change(counts: Counter[int], numbers: frozenset[int], by: int) -> None:
    for number in numbers:
        counts[number] += by
        if not counts[number]:
            del counts[number]


def read_want(filters: Mapping[str, Sequence[str] | None]) -> Want:
    """Read filters by their names, or tell all that is wrong with them."""
    faults: list[Fault] = []

    def read(name: str, parse: Callable[[str, str], Value]) -> frozenset[Value] | None:
        given = filters.get(name)
        if given is None:
            return None
        values = [part for text in given for part in text.split(",")]
        if len(values) > MAX_FILTER:
            faults.append(Fault(name, f"has more than {MAX_FILTER} values"))
            return None
        found: set[Value] = set()
        for value in values:
            try:
                found.add(parse(value, name))
            except WireError as exc:
                faults.append(Fault(exc.field, exc.reason))
        return frozenset(found)

    want = Want(
        types=read("Types", _parse_type),
        devices=read("Ids", lambda text, field: mac_number(mac_of(parse_device_id(text, field)))),
        gateways=read("Gateway", lambda text, field: mac_number(parse_gateway(text, field))),
        jobs=read("Jobs", _parse_job),
    )
    if faults:
        raise InvalidRequest(faults)
    return want


def _parse_type(text: str, field: str) -> str:
    if text not in LIVE_TYPES:
        raise MalformedText(field, f"is none of {', '.join(LIVE_TYPES)}")
    return text


def _parse_job(text: str, field: str) -> int:
    found = _JOB.fullmatch(text)
    if found is None:
        raise MalformedText(field, "is not the id of a job, such as job-12")
    return int(found[1])
