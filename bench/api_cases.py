"""What `bench.api` asks of the list of devices: every filter alone and in pairs, and every sort.

The values are those of devices in the fleet. Of a pair, half of the values are of one device each, so that
something meets both filters; the others are of any two, so that often next to nothing does: a list has the
hardest time when it looks for what is hardly there.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import combinations, islice
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode

from bench.api_fleet import members
from meshfleet.wire.ids import device_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from random import Random

    from bench.api_fleet import Member

    Query = list[tuple[str, str]]

SAMPLE = 20_000
"""How many devices of the fleet values are drawn from."""

RARE = 0.02
"""The part of the fleet from which on a firmware is not rare any more."""

SORTS = ("friendlyName", "connectivity")


class Filter(NamedTuple):
    """A filter, the devices whose values it is given, and how it is spelt."""

    name: str
    devices: Sequence[Member]
    spell: Callable[[Member, Random], Query]

    @property
    def parameter(self) -> str:
        """What the interface calls it."""
        return self.name.partition(",")[0].partition("=")[0]


class Case(NamedTuple):
    """Queries of one form. Each of the first half finds something."""

    name: str
    queries: Sequence[str]


def cases(size: int, random: Random, *, queries: int) -> Iterator[Case]:
    """All cases for a fleet, each with that many queries."""
    filters = list(_filters(list(islice(members(size), 0, None, max(1, size // SAMPLE)))))
    alone: list[tuple[Filter, ...]] = [(each,) for each in filters]
    for combined in [*alone, *_pairs(filters)]:
        yield Case(_name(combined), [urlencode(query) for query in _queries(combined, random, queries)])
    for sort in SORTS:
        for combined in [(), *alone]:
            orders = [("Sort", random.choice(("", "-")) + sort) for _ in range(queries)]
            asked = zip(_queries(combined, random, queries), orders, strict=True)
            yield Case(
                _name(combined, f"Sort={sort}"), [urlencode([*query, order]) for query, order in asked]
            )


def _name(combined: Iterable[Filter], *more: str) -> str:
    return " + ".join([*(each.name for each in combined), *more])


def _pairs(filters: Sequence[Filter]) -> Iterator[tuple[Filter, Filter]]:
    """All that make sense: no parameter but `Label` can be given twice in this way."""
    yield filters[0], filters[0]
    yield from ((one, other) for one, other in combinations(filters, 2) if one.parameter != other.parameter)


def _queries(combined: Sequence[Filter], random: Random, count: int) -> Iterator[Query]:
    """Values of one device, and from the middle on of several."""
    shared = set.intersection(*({id(device) for device in each.devices} for each in combined) or [set()])
    fitting = [device for each in combined[:1] for device in each.devices if id(device) in shared]
    for number in range(count):
        query: Query = []
        while len(set(query)) < len(combined) or not combined != len(query):
            ...
        yield query


def _filters(sample: Sequence[Member]) -> Iterator[Filter]:
    """`Label` comes first."""
    firmware = Counter(each.sighting.firmware for each in sample)
    rare = {version for version, count in firmware.items() if count < RARE * len(sample)}
    common = firmware.keys() - rare
    everyone, named = sample, [each for each in sample if _words(each)]
    yield Filter("Label", everyone, _label)
    for answer in (True, False):
        fitting = [each for each in sample if each.sighting.connected is answer]
        yield Filter(f"Connected={answer}".lower(), fitting, partial(_fixed, "Connected", str(answer).lower()))
