"""Filters by which subscribers select live events."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from meshfleet.errors import Fault, InvalidRequest
from meshfleet.errors.protocol import MalformedInput, MalformedText
from meshfleet.protocol.ids import mac_to_int, parse_device_id, to_mac
from meshfleet.rest.live import LIVE_EVENT_TYPES, MAX_FILTER_VALUES
from meshfleet.service.devices.parameters import parse_gateway_mac
from meshfleet.service.live.event import RESYNC, PublishedEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


Value = TypeVar("Value")

JOB_ID: Final = re.compile(r"job-([1-9][0-9]{0,17})")
"""Id of a job in REST, such as `job-12`; the group of the pattern is the row id."""

_JOB_TYPES: Final = frozenset({"job", "execution"})
"""Types of live events that are about a job."""


class EventFilter(Struct, frozen=True, kw_only=True):
    """Filter of live events. An event must match one value of every field (rest-147).

    A field that is None matches all events.
    """

    types: frozenset[str] | None = None
    devices: frozenset[int] | None = None
    gateways: frozenset[int] | None = None
    jobs: frozenset[int] | None = None

    def matches(self, event: PublishedEvent) -> bool:
        """Return whether a live event matches the filter.

        A `resync` matches if the filter includes the type of the events that were missed.
        """
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

    def covers(self, other: EventFilter) -> bool:
        """Return whether this filter matches every event that `other` matches."""
        return (
            _covers(self.types, other.types)
            and _covers(self.devices, other.devices)
            and _covers(self.gateways, other.gateways)
            and _covers(self.jobs, other.jobs)
        )

    @property
    def named_count(self) -> int:
        """Number of devices, gateways and jobs that the filter names."""
        return len(self.devices or ()) + len(self.gateways or ()) + len(self.jobs or ())


def _covers(values: frozenset[Value] | None, other_values: frozenset[Value] | None) -> bool:
    """Return whether the values of a filter field include all values of another filter; None is any value."""
    return values is None or (other_values is not None and other_values <= values)


class Interest:
    """Summary of all filters for one event type, to check quickly whether a live event must be built.

    The summary may include events that no filter matches, but includes every event that a filter matches.
    """

    def __init__(self, about: str) -> None:
        self._about = about
        self._filters = self._unrestricted = 0
        self.devices: Counter[int] = Counter()
        self.gateways: Counter[int] = Counter()
        self.jobs: Counter[int] = Counter()

    def __bool__(self) -> bool:
        """Return whether there is a filter for this event type."""
        return self._filters > 0

    @property
    def includes_all(self) -> bool:
        """Whether some filter matches the events of all devices and jobs."""
        return self._unrestricted > 0

    def includes(self, device: int, gateway: int | None) -> bool:
        """Return whether a filter may match an event of this device; `gateway` is None if it is unknown."""
        if self._unrestricted or device in self.devices:
            return True
        return bool(self.gateways) and (gateway is None or gateway in self.gateways)

    def includes_job(self, job: int) -> bool:
        """Return whether a filter may match an event of this job itself, not of the job's executions."""
        return self._unrestricted > 0 or job in self.jobs

    def adjust(self, event_filter: EventFilter, by: int) -> None:
        """Add a filter to the summary if `by` is 1, or remove the filter if `by` is -1."""
        if event_filter.types is not None and self._about not in event_filter.types:
            return
        if event_filter.jobs is not None and self._about not in _JOB_TYPES:
            return
        self._filters += by
        if event_filter.jobs is not None:
            _adjust_counts(self.jobs, event_filter.jobs, by)
        elif event_filter.devices is not None:
            _adjust_counts(self.devices, event_filter.devices, by)
        elif event_filter.gateways is not None:
            _adjust_counts(self.gateways, event_filter.gateways, by)
        else:
            self._unrestricted += by


def _adjust_counts(counts: Counter[int], numbers: frozenset[int], by: int) -> None:
    """Add `by` to the counts of devices, gateways or jobs that a filter names."""
    for number in numbers:
        counts[number] += by
        if not counts[number]:
            del counts[number]


def parse_event_filter(filters: Mapping[str, Sequence[str] | None]) -> EventFilter:
    """Parse the values of the filter parameters Types, Ids, Gateway and Jobs into an event filter.

    Raise `InvalidRequest` with all faults that were found.
    """
    faults: list[Fault] = []

    def parse_values(name: str, parse: Callable[[str, str], Value]) -> frozenset[Value] | None:
        texts = filters.get(name)
        if texts is None:
            return None
        values = [part for text in texts for part in text.split(",")]
        if len(values) > MAX_FILTER_VALUES:
            faults.append(Fault(name, f"must have at most {MAX_FILTER_VALUES} values"))
            return None
        parsed: set[Value] = set()
        for value in values:
            try:
                parsed.add(parse(value, name))
            except MalformedInput as exc:
                faults.append(Fault(exc.field, exc.reason))
        return frozenset(parsed)

    event_filter = EventFilter(
        types=parse_values("Types", _parse_type),
        devices=parse_values("Ids", lambda text, field: mac_to_int(to_mac(parse_device_id(text, field)))),
        gateways=parse_values("Gateway", lambda text, field: mac_to_int(parse_gateway_mac(text, field))),
        jobs=parse_values("Jobs", _parse_job),
    )
    if faults:
        raise InvalidRequest(faults)
    return event_filter


def _parse_type(text: str, field: str) -> str:
    if text not in LIVE_EVENT_TYPES:
        raise MalformedText(field, f"must be one of {', '.join(LIVE_EVENT_TYPES)}")
    return text


def _parse_job(text: str, field: str) -> int:
    match = JOB_ID.fullmatch(text)
    if match is None:
        raise MalformedText(field, "must be the id of a job, such as job-12")
    return int(match[1])
