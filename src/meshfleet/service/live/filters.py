"""What a listener wants to hear of, and what all of them together do."""

from __future__ import annotations

import re
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Final, TypeVar

from msgspec import Struct

from meshfleet.errors import Fault, InvalidRequest, TooManySubscriptions
from meshfleet.errors.protocol import MalformedText, WireError
from meshfleet.protocol.ids import mac_to_int, parse_device_id, to_mac
from meshfleet.rest.live import LIVE_EVENT_TYPES, MAX_FILTER_VALUES
from meshfleet.service.devices.parameters import parse_gateway_mac
from meshfleet.service.live.event import RESYNC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from meshfleet.service.live.event import PublishedEvent
    from meshfleet.service.live.subscriber import LiveSubscriber


# Who wants an event, found without asking everybody: the cost is what matches, not who listens.

_MAX_NAMED_PER_ACCOUNT: Final = 50_000
"""Devices, gateways and jobs that all who listen for one account may name."""


class FilterIndex:
    """All wants, each with its listeners."""

    def __init__(self) -> None:
        self._subscribers: dict[EventFilter, set[LiveSubscriber]] = {}
        self._by_device: dict[int, set[EventFilter]] = {}
        self._by_gateway: dict[int, set[EventFilter]] = {}
        self._by_job: dict[int, set[EventFilter]] = {}
        self._by_type: dict[str, set[EventFilter]] = {about: set() for about in LIVE_EVENT_TYPES}
        """Those that name neither devices nor gateways nor jobs."""
        self._named_counts: Counter[tuple[str, str]] = Counter()

    def add(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
        """Somebody wants this, unless their account wants too much."""
        if (
            event_filter.named_count
            and self._named_counts[subscriber.account] + event_filter.named_count > _MAX_NAMED_PER_ACCOUNT
        ):
            raise TooManySubscriptions(
                f"all who listen for {subscriber.actor.display_name} name more than "
                f"{_MAX_NAMED_PER_ACCOUNT} things"
            )
        self._named_counts[subscriber.account] += event_filter.named_count
        holders = self._subscribers.get(event_filter)
        if holders is None:
            holders = self._subscribers[event_filter] = set()
            self._index_filter(event_filter)
        holders.add(subscriber)

    def remove(self, subscriber: LiveSubscriber, event_filter: EventFilter) -> None:
        """Somebody does not want it any more."""
        self._named_counts[subscriber.account] -= event_filter.named_count
        if not self._named_counts[subscriber.account]:
            del self._named_counts[subscriber.account]
        holders = self._subscribers[event_filter]
        holders.discard(subscriber)
        if not holders:
            del self._subscribers[event_filter]
            self._unindex_filter(event_filter)

    def get_subscribers(self, event_filter: EventFilter) -> set[LiveSubscriber]:
        """Who wants this."""
        return self._subscribers[event_filter]

    def find_matches(self, event: PublishedEvent) -> Iterator[EventFilter]:
        """The wants that take an event."""
        return (want for want in self._candidates(event) if want.matches(event))

    def _candidates(self, event: PublishedEvent) -> Iterable[EventFilter]:
        if event.type == RESYNC:
            return self._subscribers
        found: list[Iterable[EventFilter]] = [self._by_type[event.about]]
        if event.job is not None:
            found.append(self._by_job.get(event.job, ()))
        if event.device is not None:
            found.append(self._by_device.get(event.device, ()))
        if event.gateway is None:
            found.append(set().union(*self._by_gateway.values()))
        elif event.former is None:
            found.append(self._by_gateway.get(event.gateway, ()))
        else:
            both = (self._by_gateway.get(each, ()) for each in (event.gateway, event.former))
            found.append(set().union(*both))
        return chain.from_iterable(found)

    def _index_filter(self, event_filter: EventFilter) -> None:
        for entries, key in self._entries(event_filter):
            entries.setdefault(key, set()).add(event_filter)

    def _unindex_filter(self, event_filter: EventFilter) -> None:
        for entries, key in self._entries(event_filter):
            entries[key].discard(event_filter)
            if not entries[key] and entries is not self._by_type:
                del entries[key]

    def _entries(self, event_filter: EventFilter) -> Iterator[tuple[dict[object, set[EventFilter]], object]]:
        """Where a want is found: by what it names, of which few events are."""
        entries: object
        keys: Iterable[object]
        if event_filter.jobs is not None:
            entries, keys = self._by_job, event_filter.jobs
        elif event_filter.devices is not None:
            entries, keys = self._by_device, event_filter.devices
        elif event_filter.gateways is not None:
            entries, keys = self._by_gateway, event_filter.gateways
        else:
            entries, keys = (
                self._by_type,
                LIVE_EVENT_TYPES if event_filter.types is None else event_filter.types,
            )
        for key in keys:
            yield entries, key  # type: ignore[misc] # keys are those of the entries


Value = TypeVar("Value")

_JOB_ID: Final = re.compile(r"job-([1-9][0-9]{0,17})")

_JOB_TYPES: Final = frozenset({"job", "execution"})
"""Types of events that tell of jobs."""


class EventFilter(Struct, frozen=True, kw_only=True):
    """A filter: all that is given must hold, and of each any value (rest-147). None: anything."""

    types: frozenset[str] | None = None
    devices: frozenset[int] | None = None
    gateways: frozenset[int] | None = None
    jobs: frozenset[int] | None = None

    def matches(self, event: PublishedEvent) -> bool:
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

    def covers(self, other: EventFilter) -> bool:
        """Whether all that the other takes is taken by this one."""
        return (
            _covers(self.types, other.types)
            and _covers(self.devices, other.devices)
            and _covers(self.gateways, other.gateways)
            and _covers(self.jobs, other.jobs)
        )

    @property
    def named_count(self) -> int:
        """How many devices, gateways and jobs it names."""
        return len(self.devices or ()) + len(self.gateways or ()) + len(self.jobs or ())


def _covers(mine: frozenset[Value] | None, others: frozenset[Value] | None) -> bool:
    return mine is None or (others is not None and others <= mine)


class Interest:
    """Whose events of one type anybody wants. Tells it at once, and now and then too much."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._filters = self._unrestricted = 0
        self.devices: Counter[int] = Counter()
        self.gateways: Counter[int] = Counter()
        self.jobs: Counter[int] = Counter()

    def __bool__(self) -> bool:
        return self._filters > 0

    @property
    def includes_all(self) -> bool:
        """Whether somebody wants the events of everybody."""
        return self._unrestricted > 0

    def includes(self, device: int, gateway: int | None) -> bool:
        """Whether somebody may want an event of this device."""
        if self._unrestricted or device in self.devices:
            return True
        return bool(self.gateways) and (gateway is None or gateway in self.gateways)

    def includes_job(self, job: int) -> bool:
        """Whether somebody may want an event of this job as a whole."""
        return self._unrestricted > 0 or job in self.jobs

    def adjust(self, event_filter: EventFilter, by: int) -> None:
        """One more wants it, or one less."""
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
    for number in numbers:
        counts[number] += by
        if not counts[number]:
            del counts[number]


def parse_event_filter(filters: Mapping[str, Sequence[str] | None]) -> EventFilter:
    """Read filters by their names, or tell all that is wrong with them."""
    faults: list[Fault] = []

    def read(name: str, parse: Callable[[str, str], Value]) -> frozenset[Value] | None:
        given = filters.get(name)
        if given is None:
            return None
        values = [part for text in given for part in text.split(",")]
        if len(values) > MAX_FILTER_VALUES:
            faults.append(Fault(name, f"has more than {MAX_FILTER_VALUES} values"))
            return None
        found: set[Value] = set()
        for value in values:
            try:
                found.add(parse(value, name))
            except WireError as exc:
                faults.append(Fault(exc.field, exc.reason))
        return frozenset(found)

    want = EventFilter(
        types=read("Types", _parse_type),
        devices=read("Ids", lambda text, field: mac_to_int(to_mac(parse_device_id(text, field)))),
        gateways=read("Gateway", lambda text, field: mac_to_int(parse_gateway_mac(text, field))),
        jobs=read("Jobs", _parse_job),
    )
    if faults:
        raise InvalidRequest(faults)
    return want


def _parse_type(text: str, field: str) -> str:
    if text not in LIVE_EVENT_TYPES:
        raise MalformedText(field, f"is none of {', '.join(LIVE_EVENT_TYPES)}")
    return text


def _parse_job(text: str, field: str) -> int:
    found = _JOB_ID.fullmatch(text)
    if found is None:
        raise MalformedText(field, "is not the id of a job, such as job-12")
    return int(found[1])
