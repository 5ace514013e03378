"""Queries of `bench.api`: every filter of the device list alone and in pairs, and every sort order.

Filter values are those of devices in the fleet. Half of the value pairs belong to one device each, so that
something matches; the others belong to any two devices, so that often almost nothing matches, which is the
hardest case for a list.
"""

from __future__ import annotations

from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlencode

from bench.api_fleet import generate_members
from meshfleet.protocol.ids import Version, to_device_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from random import Random

    from bench.api_fleet import Member

    Query = list[tuple[str, str]]

SAMPLE = 20_000
"""Approximate number of devices that filter values are drawn from."""

SORTS = ("friendlyName", "connectivity")

RARE = frozenset(map(Version.parse, ("2.3.7", "2.5.0-beta.3", "3.0.0", "1.0.3")))
"""Firmware that few devices have."""

SHORT = 3
"""Minimum length of a text that is searched anywhere in a name; shorter ones match its beginning."""


class Source(NamedTuple):
    """Devices that filter values are drawn from, with a random generator."""

    devices: Sequence[Member]
    random: Random


class Filter(NamedTuple):
    """Filter of the list: its name here, which devices have values for it, and the values of a device."""

    name: str
    fits: Callable[[Member], object]
    values: Callable[[Member, Source], Sequence[str]]

    @property
    def parameter(self) -> str:
        """Name of the query parameter."""
        return self.name.partition(",")[0].partition("=")[0]


class Case(NamedTuple):
    """Queries of one form. Each of the first half matches something."""

    name: str
    queries: Sequence[str]


def build_cases(size: int, random: Random, *, queries: int) -> Iterator[Case]:
    """Yield all cases for a fleet, each with this number of queries."""
    source = Source([each for each in generate_members(size) if random.random() < SAMPLE / size], random)
    alone = [(), *((each,) for each in FILTERS)]
    for combined in (*alone, (TWO_LABELS,), *PAIRS):
        yield Case(_name(combined), [urlencode(query) for query in _queries(combined, source, queries)])
    for sort in SORTS:
        for combined in alone:
            sorted_queries = [[*query, _order(sort, random)] for query in _queries(combined, source, queries)]
            yield Case(f"{_name(combined)}, by {sort}", [urlencode(query) for query in sorted_queries])


def _queries(combined: Sequence[Filter], source: Source, count: int) -> Iterator[Query]:
    choose = source.random.choice
    each_fits = [[device for device in source.devices if each.fits(device)] for each in combined]
    all_fit = [device for device in source.devices if all(each.fits(device) for each in combined)]
    for number in range(count):
        together = number < count // 2 and all_fit
        devices = [choose(all_fit)] * len(combined) if together else map(choose, each_fits)
        pairs = zip(combined, devices, strict=True)
        yield [(each.parameter, value) for each, device in pairs for value in each.values(device, source)]


def _order(sort: str, random: Random) -> tuple[str, str]:
    return "Sort", f"{random.choice(('', '-'))}{sort}"


def _name(combined: Sequence[Filter]) -> str:
    return " + ".join(each.name for each in combined) or "all"


def _any(_: Member) -> bool:
    return True


def _words(device: Member) -> list[str]:
    """Return the words in the friendly name of a device; none if it has no name of its own."""
    name = device.sighting.name
    return [each for each in name.split()[:-1] if len(each) >= SHORT] if isinstance(name, str) else []


def _ids(device: Member, source: Source) -> list[str]:
    """Return the ids of the device and of up to 99 others."""
    others = source.random.sample(source.devices, source.random.choice((0, 9, 99)))
    return sorted({to_device_id(each.sighting.device) for each in (device, *others)})


FILTERS = (
    Filter("Label", _any, lambda device, source: [source.random.choice(device.labels)]),
    Filter("Connected=true", lambda device: device.sighting.connected, lambda *_: ["true"]),
    Filter("Connected=false", lambda device: not device.sighting.connected, lambda *_: ["false"]),
    Filter("ModelNumber", _any, lambda device, _: [str(device.sighting.model)]),
    Filter(
        "FirmwareVersion",
        lambda device: device.sighting.firmware not in RARE,
        lambda device, _: [str(device.sighting.firmware)],
    ),
    Filter(
        "FirmwareVersion, rare",
        lambda device: device.sighting.firmware in RARE,
        lambda device, _: [str(device.sighting.firmware)],
    ),
    Filter("HardwareVersion", _any, lambda device, _: [str(device.sighting.hardware)]),
    Filter("FriendlyName, a word", _words, lambda device, source: [source.random.choice(_words(device))]),
    Filter(
        "FriendlyName, digits",
        _words,
        lambda device, source: [str(device.sighting.name)[-source.random.choice((3, 4, 6)) :]],
    ),
    Filter(
        "FriendlyName, beginning",
        _words,
        lambda device, source: [str(device.sighting.name)[: source.random.choice((1, 2))]],
    ),
    Filter("Gateway", _any, lambda device, _: [str(device.sighting.gateway)]),
    Filter("Ids", _any, _ids),
)
TWO_LABELS = Filter("Label, two", _any, lambda device, source: source.random.sample(device.labels, 2))
PAIRS = [(one, other) for one, other in combinations(FILTERS, 2) if one.parameter != other.parameter]
